"""How many pictures go through a network at once in evaluation, where a picture may be larger than any crop that is trained on."""

from __future__ import annotations

# Bounds the memory of a batch: without it, a batch that is trained on in crops would run out of memory in its first validation.
PIXELS_PER_PASS = 1 << 22


def pictures_per_pass(height: int, width: int) -> int:
    """Return how many pictures of that size make a pass; one at least, however large it is."""
    return max(1, PIXELS_PER_PASS // (height * width))
