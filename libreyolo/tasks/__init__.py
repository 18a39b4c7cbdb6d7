"""One file per task: three verbs each."""
