"""Layers that a GPU runs in fewer passes over memory than torch's own; the same numbers, the same parameter names."""
