"""What to say of a step that was refused: which term, on which rank, with which pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from libreyolo.engine import collectives

# Refused steps in a row after which training ends (earlier where they are all steps of two epochs). float16's scale of 65536 may need 16 halvings
# to find its place.
MOST_IN_A_ROW = 20
NAMED = 8  # pictures named of each rank


@dataclass(frozen=True)
class Refusal:
    """terms: whether a term of the loss was not finite on some rank; else only the gradient was, as when float16 overflows. text: what to say."""

    terms: bool
    text: str


def explain(own: Sequence[tuple[str, Tensor, Tensor]], pictures: Sequence[Callable[[], list[str]]]) -> Refusal:
    """Return what every rank knows of a refused step, the same on all of them. A collective, for steps that all ranks know to be refused.

    own: name, total and stats of this rank's terms. pictures: for each micro-batch, what names its pictures.
    """
    bad: dict[str, float] = {}
    for name, total, stats in own:
        values = torch.cat([total.reshape(-1).double(), stats.reshape(-1).double()])
        if not bool(torch.isfinite(values).all()):
            bad[name] = float(values[~torch.isfinite(values)][0])
    mine = (bad, [name for names in pictures for name in names()])
    every = collectives.broadcast_object(collectives.gather_objects(mine)) or [mine]
    guilty = [(rank, terms, names) for rank, (terms, names) in enumerate(every) if terms]
    if guilty:
        said = "; ".join(f"{_terms(terms)} on rank {rank} ({_pictures(names)})" for rank, terms, names in guilty)
        return Refusal(True, f"the loss is not finite: {said}")
    said = "; ".join(f"rank {rank}: {_pictures(names)}" for rank, (_, names) in enumerate(every))
    return Refusal(False, f"the gradient is not finite, though every term of the loss is ({said})")


# What `torch._foreach_norm` takes; weights files of others may hold more kinds.
_NORMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.no_grad()
def not_finite_tensor(state: Mapping[str, Tensor]) -> str | None:
    """Return the name of a tensor that holds an infinity or NaN, None where there is none. The device is waited for once."""
    floating = {name: t for name, t in state.items() if _may_hold_infinity(t)}
    doubted = [name for name, suspect in zip(floating, _suspects(list(floating.values())), strict=True) if suspect]
    return next((name for name in doubted if not bool(torch.isfinite(floating[name]).all())), None)


def _may_hold_infinity(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0


def _suspects(tensors: Sequence[Tensor]) -> list[bool]:
    """Return of which tensors the norm is not finite: of those that hold an infinity or NaN, and of those whose squares have no finite sum.

    The norms of a thousand tensors are a few kernels; asking each tensor for its elements are six thousand, while the device does nothing else.
    """
    found = [True] * len(tensors)
    kinds = dict.fromkeys((t.device, t.dtype) for t in tensors if t.dtype in _NORMED)
    for device, dtype in kinds:
        places = [place for place, t in enumerate(tensors) if t.device == device and t.dtype == dtype]
        norms = torch._foreach_norm([tensors[place] for place in places])
        for place, fine in zip(places, torch.isfinite(torch.stack(norms)).tolist(), strict=True):
            found[place] = not fine
    return found


def _terms(terms: dict[str, float]) -> str:
    return ", ".join(f"{name} is {value}" for name, value in terms.items())


def _pictures(names: Sequence[str]) -> str:
    if not names:
        return "pictures unknown"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
