"""The process's own random generators (Python, NumPy, torch): seeded by us while training, the caller's before and after.

Draws of ours are functions of a key (`ops.keyed`). These states are for what is not ours: dropout, and code of users.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_process(seed: int) -> None:
    """Seed every generator that this process has, those of its devices that are in use too; `seed` is in [0, 2**63)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed notes the seed, with a formatted traceback, for each kind of device that is not in use: a millisecond of every step.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextmanager
def caller_untouched() -> Iterator[None]:
    """Put the process's generators back at the end to where they were at the beginning (a CUDA device's too, where CUDA was in use)."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
