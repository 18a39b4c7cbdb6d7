"""Metrics of the field; states that ranks can merge."""
