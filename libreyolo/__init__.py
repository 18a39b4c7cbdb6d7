"""LibreYOLO Train."""
