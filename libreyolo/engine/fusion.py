"""On a GPU, BatchNorm with the activation behind it by kernels that read and write each map as few times as they must."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from libreyolo.engine import collectives
from libreyolo.engine.batchnorm import synchronise
from libreyolo.engine.kernel_norm import KernelBatchNorm
from libreyolo.nn.fused import available
from libreyolo.nn.fused.scratch import Scratch

log = logging.getLogger(__name__)

# As in nn.fused.kernels, which only a machine with triton can import.
ACTIVATIONS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.SiLU: 1, nn.ReLU: 2}


class FusedNormAct(KernelBatchNorm):
    """A BatchNorm that also applies the activation behind it; the same parameters and buffers under the same names.

    Maps that the kernels don't take (on the CPU, not channels_last, in eval mode, with a cumulative mean) go through other operators, with
    statistics of the same ranks.
    """

    def __init__(self, norm: nn.BatchNorm2d, act: nn.Module, *, over_ranks: bool, scratch: Scratch) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats, scratch=scratch)
        self._parameters, self._buffers, self.training = norm._parameters, norm._buffers, norm.training
        self.act = act  # it has no state
        self.kind = ACTIVATIONS[type(act)]
        self.over_ranks = over_ranks

    def forward(self, input: Tensor) -> Tensor:
        if self.kernels_take(input):
            return self.by_kernels(input, self.kind, self.ranks())
        normalised = super().forward(input) if self.over_ranks else _BatchNorm.forward(self, input)
        found: Tensor = self.act(normalised)
        return found

    def with_another(self, x: Tensor, other: FusedNormAct, z: Tensor, act: int) -> Tensor:
        """Return the activated sum of two maps, each normalised by its own of two norms without activation; moves the statistics of both."""
        from libreyolo.nn.fused.pair_act import pair_act

        return pair_act(x, z, self.as_norm(), other.as_norm(), eps=self.eps, act=act, ranks=self.ranks(), scratch=self.scratch)


def with_norms(net: nn.Module, *, fused: bool | None, over_ranks: bool, compiled: bool) -> nn.Module:
    """Return the network with BatchNorm as its training runs it, on the device where it is. Every rank must call it, with the same arguments.

    fused: as one with the activation behind it, where the kernels run; None: so on a GPU, unless `compiled`. over_ranks: with statistics of all
    ranks, which meet inside the kernels where those of all ranks can and `fused` is not False: that costs the host less than two collectives a layer
    do. compiled: torch.compile will take the network, and the kernels are not for it.
    """
    device = next(net.parameters()).device
    scratch = Scratch()
    if over_ranks:
        scratch.exchange = collectives.exchange(device, able=fused is not False and not compiled and available.can_meet(device))
        if scratch.exchange:
            log.info("Statistics of all ranks meet in memory of this host, inside the kernels of BatchNorm.")
    if fused or (fused is None and not compiled and (device.type == "cuda" or available.runs_on(device))):
        net = fuse(net, over_ranks=over_ranks, scratch=scratch)
    if not over_ranks:
        return net
    return synchronise(net, partial(KernelBatchNorm, scratch=scratch) if scratch.exchange else None)


def fuse(net: nn.Module, *, over_ranks: bool, scratch: Scratch | None = None) -> nn.Module:
    """Replace, in the layers that say so, BatchNorm and activation by one module, and return the network.

    A layer says so with `NORM_ACT`, the names of the two children that its forward applies one after the other; an activation that is none makes the
    kernels no worse than torch's. One that only applies another child before them names it with `BEFORE_NORM`, and is run without what torch does
    around every module. over_ranks: statistics cover all ranks. Names of parameters and buffers stay. Where the kernels don't run nothing is
    replaced, and the log says so.
    """
    obstacle = available.obstacle(next(net.parameters()).device)
    if obstacle:
        log.info("BatchNorm and the activation behind it run apart: %s.", obstacle)
        return net
    count = _fuse(net, over_ranks=over_ranks, scratch=scratch or Scratch())
    log.info("%d BatchNorms run as one with the activation behind them (fused=false: apart).", count)
    return net


def _fuse(net: nn.Module, *, over_ranks: bool, scratch: Scratch) -> int:
    """Fuse BatchNorm and activation, and return how often."""
    count = 0
    for layer in net.modules():
        names: Any = getattr(layer, "NORM_ACT", None)
        if names is None:
            continue
        norm, act = getattr(layer, names[0]), getattr(layer, names[1])
        if type(norm) is not nn.BatchNorm2d or type(act) not in ACTIVATIONS or norm.momentum is None or not norm.affine:
            continue
        if not norm.track_running_stats:
            continue
        fused = FusedNormAct(norm, act, over_ranks=over_ranks, scratch=scratch)
        setattr(layer, names[0], fused)
        setattr(layer, names[1], nn.Identity())
        before: str | None = getattr(layer, "BEFORE_NORM", None)
        if before is not None:
            # A partial, not a closure: a copy of the network must run its own layers.
            layer.__dict__["forward"] = partial(_in_a_row, getattr(layer, before), fused)
        count += 1
    for layer in net.modules():
        _pair(layer)
    return count


def _pair(layer: nn.Module) -> None:
    """Let a layer that says so with `PAIR` (two children whose sum an activation, the third, takes) normalise both of them at once."""
    names: Any = getattr(layer, "PAIR", None)
    if names is None:
        return
    first, second, act = (getattr(layer, name) for name in names)
    branches = [forward.args for child in (first, second) if isinstance(forward := child.__dict__.get("forward"), partial)]
    if len(branches) < 2 or type(act) not in ACTIVATIONS:
        return
    (before, norm), (other_before, other_norm) = branches
    if norm.kind == other_norm.kind == 0 and (norm.eps, norm.momentum) == (other_norm.eps, other_norm.momentum):
        layer.__dict__["forward"] = partial(_as_a_pair, before, norm, other_before, other_norm, act)


def _as_a_pair(before: nn.Module, norm: FusedNormAct, other_before: nn.Module, other_norm: FusedNormAct, act: nn.Module, x: Tensor) -> Tensor:
    """Run act(norm(before(x)) + other_norm(other_before(x)))."""
    if any(_hooked(module) for module in (before, norm, other_before, other_norm, act)):
        total = norm(before(x)) + other_norm(other_before(x))
    else:
        mine, other = before.forward(x), other_before.forward(x)
        if norm.kernels_take(mine) and other_norm.kernels_take(other) and mine.shape == other.shape and mine.dtype == other.dtype:
            return norm.with_another(mine, other_norm, other, ACTIVATIONS[type(act)])
        total = norm.forward(mine) + other_norm.forward(other)
    found: Tensor = act(total)
    return found


def _in_a_row(before: nn.Module, norm: FusedNormAct, x: Tensor) -> Tensor:
    """Run a layer of a module and a fused norm: a call of a module costs the host microseconds, and a small network has hundreds."""
    if _hooked(before) or _hooked(norm):
        found: Tensor = norm(before(x))
        return found
    return norm.forward(before.forward(x))


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)
