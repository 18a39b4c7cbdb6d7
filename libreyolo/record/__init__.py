"""What a run leaves behind: tables, logs, pictures, trackers."""
