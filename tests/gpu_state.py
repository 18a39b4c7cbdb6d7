"""One test that leaves the GPU unusable fails alone: those after it in the same process say so instead of failing for its sake.

A capture that fails, say, leaves torch's CUDA generator in the middle of it, and every later draw raises; a fault of the device stays for good.
"""

from __future__ import annotations

import pytest

broken_by: list[str] = []  # the test, once there is one


def pytest_runtest_setup(item: pytest.Item) -> None:
    if broken_by and item.get_closest_marker("gpu"):
        pytest.skip(f"the GPU has not answered this process since {broken_by[0]}: run this test in one of its own")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if not broken_by and item.get_closest_marker("gpu") and not answers():
        broken_by.append(item.nodeid)


def answers() -> bool:
    """Return whether the GPU draws a number; True where there is none."""
    import torch

    if not torch.cuda.is_available():
        return True
    try:
        torch.rand(1, device="cuda").item()
    except RuntimeError:
        return False
    return True
