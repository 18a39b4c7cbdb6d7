"""Hydra config groups: presets over the arguments of train()."""
