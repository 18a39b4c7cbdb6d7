"""The pictures of a run, one file for each kind; every function takes plain arrays and the path to write."""
