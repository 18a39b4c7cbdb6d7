"""Augmentation: a small plan drawn on the CPU (NumPy), carried out in one batch on the device (plain torch)."""
