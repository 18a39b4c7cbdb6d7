"""BatchNorm by the kernels of `nn.fused`, or by torch's with little between them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from libreyolo.engine import collectives
from libreyolo.engine.batchnorm import SyncBatchNorm
from libreyolo.nn.fused import available
from libreyolo.nn.fused.scratch import ALONE, Ranks, Scratch

KINDS = frozenset((torch.float32, torch.bfloat16, torch.float16))


class KernelBatchNorm(SyncBatchNorm):
    """BatchNorm on a GPU with few operators and few calls; with the statistics of all ranks where `over_ranks`.

    Maps that the kernels of `nn.fused` take need two launches and one collective in each direction; others go through torch's own kernels, and
    what those don't take (float64, a cumulative mean, no weights) through plain operators.
    """

    over_ranks = True
    COMPILES = False  # see engine.compilation

    def __init__(self, *arguments: Any, scratch: Scratch, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.scratch = scratch

    def forward(self, input: Tensor) -> Tensor:
        ranks = self.ranks()
        if ranks.size == 1 or not self._usual(input):
            return super().forward(input)
        if self.kernels_take(input):
            return self.by_kernels(input, 0, ranks)
        return self._by_torch_s(input, ranks) if torch_s_run_on(input.device) else super().forward(input)

    def ranks(self) -> Ranks:
        """Return the ranks whose pictures the statistics cover."""
        return collectives.ranks() if self.over_ranks and self.training else ALONE

    def kernels_take(self, x: Tensor) -> bool:
        """Return whether the kernels of `nn.fused` take this map."""
        return self._usual(x) and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and available.runs_on(x.device)

    def by_kernels(self, x: Tensor, act: int, ranks: Ranks) -> Tensor:
        """Return the normalised map after an activation of `nn.fused.kernels`, 0 for none; moves the running statistics."""
        norm_act, running = _kernels()
        own, found = self._buffers, self._parameters  # what a module finds by attribute it looks for in several places
        mean, var, tracked, weight, bias = own["running_mean"], own["running_var"], own["num_batches_tracked"], found["weight"], found["bias"]
        assert mean is not None and var is not None and tracked is not None and weight is not None and bias is not None and self.momentum is not None
        return norm_act(x, weight, bias, running(mean, var, tracked, self.momentum), eps=self.eps, act=act, ranks=ranks, scratch=self.scratch)

    def as_norm(self) -> Any:
        """Return its tensors as `nn.fused.pair_act.Norm`."""
        own, found, (norm, running) = self._buffers, self._parameters, _pair_s()
        return norm(found["weight"], found["bias"], running(own["running_mean"], own["running_var"], own["num_batches_tracked"], self.momentum))

    def _usual(self, x: Tensor) -> bool:
        return (
            self.training
            and self.momentum is not None  # None while statistics are recomputed: a mean over all batches, of a weight that is on the device
            and self.affine
            and self._buffers["running_mean"] is not None
            and self._parameters["weight"].dtype == torch.float32  # type: ignore[union-attr]
            and x.dtype in KINDS
            and x.numel() > 0
        )

    def _by_torch_s(self, x: Tensor, ranks: Ranks) -> Tensor:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        found: Tensor = _TorchKernels.apply(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps, self.momentum, ranks)
        return found


def torch_s_run_on(device: torch.device) -> bool:
    """Return whether torch's kernels for synchronised BatchNorm run on this device."""
    return device.type == "cuda"


class _TorchKernels(torch.autograd.Function):
    """Synchronised BatchNorm by torch's kernels for CUDA.

    Torch's own function makes the host wait in every layer, to leave out ranks without pictures; here no rank is.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float, momentum: float, ranks: Ranks
    ) -> Tensor:
        x = _dense(x)
        mean, rstd = torch.batch_norm_stats(x, eps)
        channels = len(mean)
        table = mean.new_empty((ranks.size, 2 * channels + 1))
        torch.cat((mean, rstd, _as_tensor(x.numel() // channels, x.device)), out=table[ranks.rank])
        ranks.gather(table)
        means, rstds, counts = table.split((channels, channels, 1), dim=1)
        counts = counts.reshape(-1)
        mean, rstd = torch.batch_norm_gather_stats_with_counts(x, means, rstds, running_mean, running_var, momentum, eps, counts)
        ctx.save_for_backward(x, weight, mean, rstd, counts.to(torch.int32))
        ctx.ranks = ranks
        y: Tensor = torch.batch_norm_elemt(x, weight, bias, mean, rstd, eps)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, rstd, counts = ctx.saved_tensors
        channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        gradient = gradients[0].contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        first, second, of_weight, of_bias = torch.batch_norm_backward_reduce(gradient, x, mean, rstd, weight, True, True, True)
        sums = torch.stack((first, second))
        ctx.ranks.add(sums)
        dx = torch.batch_norm_backward_elemt(gradient, x, mean, rstd, weight, sums[0], sums[1], counts)
        return dx, of_weight, of_bias, None, None, None, None, None


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """Return `norm_act` and `Running`: only a machine with triton can import them, and an import that is done already still costs a microsecond."""
    from libreyolo.nn.fused.norm_act import Running, norm_act

    return norm_act, Running


@functools.cache
def _pair_s() -> tuple[Any, Any]:
    """Return `pair_act.Norm` and `Running`; see `_kernels`."""
    from libreyolo.nn.fused.pair_act import Norm, Running

    return Norm, Running


def _dense(x: Tensor) -> Tensor:
    return x if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


@functools.lru_cache(maxsize=1024)
def _as_tensor(number: int, device: torch.device) -> Tensor:
    """Return the number as float32 [1] on the device, where it stays: to send it there would take a copy a layer."""
    return torch.full((1,), float(number), device=device)
