"""Randomness as a function: every draw is a pure function of (seed, key), never of a process's history.

The key says what the draw is for ("order", "augment", ...) and which picture it serves, so the number of workers, the number of ranks and a
resume change nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return a fresh generator for this seed and this whole key: the same on every platform, independent of every other key."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest("generator", seed, key), "little")))


def derive(seed: int, *key: int | str) -> int:
    """Return a seed in [0, 2**63) for this seed and this whole key, for generators that are not NumPy's."""
    return int.from_bytes(_digest("derive", seed, key)[:8], "little") >> 1


def _digest(purpose: str, seed: int, key: tuple[int | str, ...]) -> bytes:
    # NumPy's SeedSequence flattens its entropy to 32-bit words and pads with zeros, so (1,) and (1, 0) would be one key. Each part is
    # therefore written with its type and length before it is hashed; 16 bytes are exactly Philox's 128-bit key.
    digest = hashlib.blake2b(digest_size=16)
    for part in (purpose, int(seed), *key):
        if isinstance(part, str):
            text, tag = part, "s"
        elif isinstance(part, (int, np.integer)):
            text, tag = str(int(part)), "i"
        else:
            raise TypeError(f"a key holds integers and strings, not {type(part).__name__}")
        raw = text.encode()
        digest.update(f"{tag}{len(raw)}:".encode())
        digest.update(raw)
    return digest.digest()
