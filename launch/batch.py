"""`batch` is the global batch: images per optimiser step over all processes."""

from __future__ import annotations

from launch.errors import BatchError


def check_divisible(batch: int, world_size: int) -> None:
    """Raise BatchError unless each of `world_size` processes can take `batch // world_size` images, at least one."""
    if batch < 1:
        raise BatchError(f"batch={batch} must be 1 or more: it counts the images per optimiser step over all processes.")
    if batch % world_size == 0:
        return
    upper = (batch // world_size + 1) * world_size
    lower = upper - world_size
    choice = f"batch={lower} or batch={upper}" if lower else f"batch={upper}"
    raise BatchError(
        f"batch={batch} is the global batch and must be divisible by world_size={world_size}: each rank trains at batch // world_size, "
        f"so this value would silently train at a different global batch than requested. Use {choice}."
    )
