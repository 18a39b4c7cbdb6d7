"""The trainer and its parts; nothing here knows a task or a family."""
