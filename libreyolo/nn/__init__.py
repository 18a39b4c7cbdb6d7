"""Layers shared by two or more families."""
