"""Readers, decoding, sampling, augmentation and the generated demo sets."""
