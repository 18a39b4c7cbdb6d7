"""From what the user writes as `device` to what to run on.

Indices are positions in the visible set: with CUDA_VISIBLE_DEVICES=2,3 the first visible GPU is 0. Nothing here touches CUDA; the caller
counts the devices (`torch.cuda.device_count()` makes no context).
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from launch.errors import DeviceError

FORMS = "write device=0, device='0,1', device=[0,1], device=cuda:0, device=cpu, device=mps or device=auto"


@dataclass(frozen=True)
class Placement:
    """Where the processes run.

    kind: "cuda", "cpu" or "mps".
    indices: one visible CUDA index per process; () for cpu and mps.
    num_processes: at least 1; more than 1 only for a CUDA list, or for the CPU with `nproc`.
    note: what "auto" chose, for the log; "" when the user chose.
    """

    kind: Literal["cuda", "cpu", "mps"]
    indices: tuple[int, ...] = ()
    num_processes: int = 1
    note: str = ""

    def device_for(self, local_rank: int) -> str:
        """Return the torch device of a process, like "cuda:1"; IndexError for a rank that there isn't."""
        if not 0 <= local_rank < self.num_processes:
            raise IndexError(f"local rank {local_rank} of {self.num_processes} processes")
        return f"cuda:{self.indices[local_rank]}" if self.kind == "cuda" else self.kind


def parse(device: object, *, cuda_count: int, nproc: int | None = None, mps_available: bool = False) -> Placement:
    """Return the placement for `device`; DeviceError, in one sentence, for anything that can't be run here.

    `nproc` starts that many processes on the CPU; beside a CUDA list it must equal the list's length.
    """
    num_requested = _check_nproc(nproc)
    names = split(device)
    kinds = {"cuda" if isinstance(name, int) else name for name in names}
    if len(kinds) > 1:
        raise DeviceError(f"device={device!r} mixes kinds of devices: {FORMS}.")
    kind = kinds.pop()
    note = ""
    if kind == "auto":
        kind = "cuda" if cuda_count > 0 else "mps" if mps_available else "cpu"
        names = [0] if kind == "cuda" else [kind]
        note = f"device=auto: training on {'cuda:0' if kind == 'cuda' else kind} ({cuda_count} CUDA devices visible)"
    if len(names) > 1 and kind != "cuda":
        raise DeviceError(f"device={device!r} names {kind} more than once: write device={kind}, and nproc=N for N processes on the CPU.")
    if kind == "cpu":
        return Placement("cpu", (), num_requested or 1, note)
    if kind == "mps":
        return _mps(device, mps_available, num_requested, note)
    indices = tuple(name for name in names if isinstance(name, int))
    _check_indices(device, indices, cuda_count)
    if num_requested is not None and num_requested != len(indices):
        raise DeviceError(
            f"nproc={num_requested} contradicts device={device!r}, which is {len(indices)} CUDA device(s) and so {len(indices)} "
            "process(es): "
            "leave nproc out, or use it with device=cpu."
        )
    return Placement("cuda", indices, len(indices), note)


def split(device: object) -> list[int | str]:
    """Return the names in `device`: ints for CUDA indices, else "cpu", "mps" or "auto". At least one.

    Counts nothing, checks no hardware.
    """
    if isinstance(device, (bool, float)) or device is None:
        raise DeviceError(f"device={device!r} is not a device: {FORMS}.")
    if isinstance(device, str):
        return _split_text(device, device)
    if hasattr(device, "type") and hasattr(device, "index"):  # a torch.device, recognised without importing torch
        return _split_text(str(device), device)
    if hasattr(device, "__index__"):
        return [_non_negative(operator.index(device), device)]
    if isinstance(device, Iterable) and not isinstance(device, (bytes, dict, set, frozenset)):
        names: list[int | str] = []
        for item in device:
            if isinstance(item, Iterable) and not isinstance(item, str):
                raise DeviceError(f"device={_shown(device)} holds a list inside a list: {FORMS}.")
            names.extend(split(item))
        if not names:
            raise DeviceError(f"device={_shown(device)} is empty: {FORMS}.")
        return names
    raise DeviceError(f"device={device!r} is not a device: {FORMS}.")


def is_list(device: object) -> bool:
    """Return whether `device` was written as a list: a sequence, or a text with a comma or brackets."""
    if isinstance(device, str):
        return "," in device or device.strip().startswith(("[", "("))
    return isinstance(device, Iterable)


def _split_text(text: str, device: object) -> list[int | str]:
    bare = text.strip()
    if bare[:1] in ("[", "(") and bare[-1:] == {"[": "]", "(": ")"}[bare[:1]]:
        bare = bare[1:-1].strip().removesuffix(",")
    if not bare:
        raise DeviceError(f"device={device!r} is empty: {FORMS}.")
    return [_one_name(part.strip().strip("'\""), device) for part in bare.split(",")]


def _one_name(part: str, device: object) -> int | str:
    lowered = part.lower()
    if lowered in ("cpu", "mps", "auto"):
        return lowered
    if lowered in ("cpu:0", "mps:0"):  # torch prints them so
        return lowered[:3]
    if lowered == "cuda":
        return 0
    match = re.fullmatch(r"(?:cuda:)?([+-]?\d+)", lowered)
    if match is None:
        raise DeviceError(f"device={device!r}: {part!r} is not a device: {FORMS}.")
    return _non_negative(int(match.group(1)), device)


def _non_negative(index: int, device: object) -> int:
    if index < 0:
        raise DeviceError(f"device={device!r}: {index} is negative, but a CUDA index counts from 0: {FORMS}.")
    return index


def _check_indices(device: object, indices: tuple[int, ...], cuda_count: int) -> None:
    shown = _shown(device)
    for index in indices:
        if indices.count(index) > 1:
            raise DeviceError(f"device={shown} names CUDA device {index} twice: each process needs a GPU of its own, so name each once.")
    if cuda_count <= 0:
        raise DeviceError(f"device={shown} asks for CUDA, but no CUDA device is visible here{_visible_setting()}: use device=cpu or device=auto.")
    beyond = [index for index in indices if index >= cuda_count]
    if beyond:
        raise DeviceError(
            f"device={shown}: there is no CUDA device {beyond[0]}, because {cuda_count} {'is' if cuda_count == 1 else 'are'} visible"
            f"{_visible_setting()} and indices are positions in the visible set: use "
            f"{'0' if cuda_count == 1 else f'0 to {cuda_count - 1}'}."
        )


def _visible_setting() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"


def _mps(device: object, mps_available: bool, num_requested: int | None, note: str) -> Placement:
    if not mps_available:
        raise DeviceError(f"device={device!r}: MPS is not available here: use device=cpu or device=auto.")
    if num_requested not in (None, 1):
        raise DeviceError(f"nproc={num_requested} contradicts device={device!r}: there is one MPS device; use nproc with device=cpu.")
    return Placement("mps", (), 1, note)


def _check_nproc(nproc: object) -> int | None:
    if nproc is None:
        return None
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise DeviceError(f"nproc={nproc!r} must be a whole number of processes, 1 or more.")
    return nproc


def _shown(device: object) -> str:
    if isinstance(device, Iterable) and not isinstance(device, str):
        return repr(list(device))
    return repr(device)
