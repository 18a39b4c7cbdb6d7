"""The refusal for model families that can't be started on several GPUs automatically."""

from __future__ import annotations

from launch.errors import UnsupportedFamilyError


def require_spawn_support(family: str, supported: bool, api_call: str, num_processes: int) -> None:
    """Raise UnsupportedFamilyError when `num_processes` > 1 and the family doesn't support automatic spawning.

    `api_call` is the model's own call, like "LibreYOLO('x.pt').train"; the sentence names it and the torchrun command.
    """
    if supported or num_processes <= 1:
        return
    raise UnsupportedFamilyError(
        f"{api_call}(device=...) can't start {num_processes} processes for family '{family}', which has no automatic multi-GPU "
        "start: write the "
        f"script that calls {api_call}() for one device and run it with torchrun --nproc_per_node={num_processes} your_script.py, "
        "or name one device."
    )
