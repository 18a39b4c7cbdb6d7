"""Keep parts of a network as they are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from libreyolo.errors import UserError, nearest


def freeze(net: nn.Module, selection: int | str | Sequence[str | int] | None) -> list[str]:
    """Stop gradients of the selected parts and return their names.

    selection: N freezes the first N parts of `parts(net)`; a name freezes the module or parameter of that name and all below it; a list holds names
    or part numbers. None freezes nothing. Raises UserError for a name or number that is not there, or when nothing would be left to train.
    """
    names = _names(net, selection)
    for name, parameter in net.named_parameters():
        if any(name == n or name.startswith(f"{n}.") for n in names):
            parameter.requires_grad_(False)
    if names and not any(p.requires_grad for p in net.parameters()):
        raise UserError(f"freeze={selection} leaves no parameter to train; freeze fewer parts.")
    return names


def parts(net: nn.Module) -> list[str]:
    """Return the parts that `freeze=N` counts, in order: the children of the network's direct children ("backbone.conv0", ...)."""
    found = []
    for name, child in net.named_children():
        below = [f"{name}.{n}" for n, _ in child.named_children()]
        found += below or [name]
    return found


def keep_frozen_norms_still(net: nn.Module) -> None:
    """Put every BatchNorm whose parameters are all frozen into eval mode: its statistics are part of what stays. Call after `net.train()`."""
    for module in net.modules():
        if isinstance(module, _NormBase):
            own = list(module.parameters(recurse=False))
            if own and not any(p.requires_grad for p in own):
                module.eval()


def _names(net: nn.Module, selection: int | str | Sequence[str | int] | None) -> list[str]:
    if selection is None or selection == [] or selection is False:
        return []
    known = parts(net)
    if isinstance(selection, int):
        if not 0 <= selection <= len(known):
            raise UserError(f"freeze={selection} asks for more parts than the network has: 0 to {len(known)}.")
        return known[:selection]
    entries = [selection] if isinstance(selection, str) else list(selection)
    every = {n for n, _ in net.named_modules() if n} | {n for n, _ in net.named_parameters()}
    names = []
    for entry in entries:
        if isinstance(entry, int) and 0 <= entry < len(known):
            names.append(known[entry])
        elif entry in every:
            names.append(str(entry))
        else:
            raise UserError(f"freeze={entry} is no part of the network.{nearest(str(entry), every)} Parts: {', '.join(known)}.")
    return names
