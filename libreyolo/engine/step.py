"""One optimiser step: a window of micro-batches in, moved weights out. This file keeps the promise that N ranks train the same model as one.

With R ranks, micro-batch m and term t the trained loss is

    sum over m and t of  scale_t(stats summed over ranks) * total_t(rank) * share_m * R

(share_m: m's part of the window's pictures; 1 where the stats are those of the whole window).

DDP averages gradients over ranks, so the factor R turns its mean into the sum that one process would have computed; nothing else scales the loss.

A step whose loss or gradient is not finite is refused: weights, momentum and BatchNorm's statistics stay as they were. The gradient after DDP's
all-reduce is the same on all ranks and not finite on all of them when it is on one, so they decide alike without asking each other, and the
decision is carried out on the device: the host learns of it later (docs/adr/0007-refused-steps-and-signals.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function

from libreyolo.engine import collectives
from libreyolo.engine.data_parallel import finish_gradients
from libreyolo.engine.host_copy import HostCopy
from libreyolo.engine.norm_counters import NormCounters
from libreyolo.engine.norm_statistics import NormStatistics
from libreyolo.engine.optimizer import step_unless
from libreyolo.interfaces.phases import BACKWARD, LOSS, OPTIMISER
from libreyolo.interfaces.task import Task
from libreyolo.interfaces.term import Term


class TrainStep:
    """Runs forward, loss, backward and the optimiser.

    Accumulation (docs/adr/0003-accumulation.md): a window's gradient is that of one true batch where every normaliser is known from the targets
    (`Task.target_stats`), or where all terms share one normaliser (the division then waits for the window's end). Elsewhere each micro-batch is
    normalised by itself and weighted by its share of the window's pictures; the rule is applied term by term.
    """

    def __init__(
        self,
        net: nn.Module,
        task: Task,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        amp_dtype: torch.dtype | None,
        clip_max_norm: float = 0.0,
        asked_to_leave: Callable[[], bool] = lambda: False,
    ) -> None:
        self.net, self.task, self.optimizer = net, task, optimizer
        self.device, self.amp_dtype, self.clip_max_norm = device, amp_dtype, clip_max_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype == torch.float16)
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.world_size = collectives.world_size()
        self.shown_only: frozenset[str] = frozenset()  # reports of the last step's terms that are no part of the loss
        self.norms, self.counters = NormStatistics(net), NormCounters(net)
        self.asked_to_leave = asked_to_leave
        self.own: list[tuple[str, Tensor, Tensor]] = []  # of the newest window: name, total and stats of this rank's terms, before any sum over ranks
        self._wishes: Tensor | None = None  # [1], how many ranks want to leave; None until a sum of this window has carried it

    def __call__(self, window: Sequence[Any], pictures: Sequence[int]) -> tuple[dict[str, Tensor], bool]:
        """Train on one window and wait for what came of it: `backward` and `move`, and whether the weights moved."""
        parts = self.backward(window, pictures)
        refused, _ = self.move().wait()
        return parts, not refused

    def backward(self, window: Sequence[Any], pictures: Sequence[int]) -> dict[str, Tensor]:
        """Run forward and backward over a window.

        pictures: real pictures over all ranks in each micro-batch. Returns this rank's part of every term's global value (detached, on the
        device; summed over ranks it is the loss of the window).
        """
        self.norms.take()
        self._wishes, self.own = None, []
        known = self._window_stats(window)
        facts = self._window_facts(window)
        num_pictures = max(sum(pictures), 1)
        parts: dict[str, Tensor] = {}
        waiting: list[dict[str, Term]] = []  # terms of one shared normaliser, divided at the window's end
        provisional = 1.0 / num_pictures if len(window) > 1 and not known else None
        for index, batch in enumerate(window):
            with self._no_sync() if index + 1 < len(window) else nullcontext():
                terms, found = self._micro_batch(batch, facts, known, share=pictures[index] / num_pictures, provisional=provisional)
            self.own += [(name, term.total, term.stats) for name, term in terms.items()]
            self.shown_only = frozenset(term.report or name for name, term in terms.items() if not term.trained)
            if found is None:
                waiting.append(terms)
            else:
                _add(parts, terms, *found)
        finish_gradients(self.net)
        if waiting:
            parts = self._divide_window(waiting, 1.0 / num_pictures)
        return parts

    def _micro_batch(
        self, batch: Any, facts: dict[str, int], known: Mapping[str, Tensor], *, share: float, provisional: float | None
    ) -> tuple[dict[str, Term], tuple[dict[str, Tensor], dict[str, Tensor]] | None]:
        """Run forward and backward over one micro-batch; return its terms, cut off from their graph, and what `_add` takes of them.

        provisional: what multiplies terms of one shared normaliser until the window's is known; None is returned beside them then.
        Nothing that is returned or kept holds a part of the graph. A CUDA graph can be captured only where no earlier one is left: a parameter's
        gradient would be accumulated by the node of that graph, on the stream where its forward ran, which a capture may not wait for.
        """
        autocast = torch.autocast(self.device.type, dtype=self.amp_dtype, enabled=self.amp_dtype is not None)
        with record_function(LOSS), autocast, self.counters.one_forward():
            terms = self.task.terms(self.net, batch, facts)
        values: dict[str, Tensor] | None = None
        if provisional is not None and _share_one_normaliser(terms):
            # A mean over pictures keeps float16 gradients in range until the real normaliser is known.
            multipliers = {name: term.total.new_full((), provisional) for name, term in terms.items()}
        else:
            multipliers, values = self._multipliers(terms, known, share)
        products = {name: _dot(term.total, multipliers[name]) for name, term in terms.items()}
        loss = torch.stack([products[name] for name, term in terms.items() if term.trained]).sum()
        # Times R, or times NaN where the loss is not finite: then every gradient says so, also that of a term which has none there.
        loss = loss * (loss.detach() * 0.0 + self.world_size)
        with record_function(BACKWARD):
            self.scaler.scale(loss).backward()
        cut_off = {name: replace(term, total=term.total.detach()) for name, term in terms.items()}
        return cut_off, None if values is None else ({name: product.detach() for name, product in products.items()}, values)

    def move(self) -> HostCopy:
        """Move the weights by the gradients, or refuse to; return (refused, ranks that want to leave), the same numbers on every rank."""
        with record_function(OPTIMISER):
            return self._move()

    def _move(self) -> HostCopy:
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        refused = _not_finite([g for p in self.parameters if (g := p.grad) is not None], self.device)
        if self.clip_max_norm > 0:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_max_norm)
        step_unless(refused, self.optimizer)
        self.norms.put_back(refused)
        if self.scaler.is_enabled():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        wishes = refused.new_full((1,), float(self.asked_to_leave())) if self._wishes is None else self._wishes.to(refused.dtype)
        return HostCopy(torch.cat([refused, wishes]))

    def drop(self) -> None:
        """Forget a `backward`: no gradient, and BatchNorm's statistics as they were before it."""
        self.optimizer.zero_grad(set_to_none=True)
        self.norms.put_back(torch.ones(1, device=self.device))

    def _window_facts(self, window: Sequence[Any]) -> dict[str, int]:
        """Return what the forwards need to know, over all ranks and micro-batches: a window is one batch, however it is cut."""
        found = [self.task.facts(batch) for batch in window]
        return collectives.max_integers({name: max(f[name] for f in found) for name in found[0]}, self.device)

    def _window_stats(self, window: Sequence[Any]) -> dict[str, Tensor]:
        """Return global stats by normaliser for the whole window, where the targets alone decide them, in one all-reduce."""
        if len(window) == 1:
            return {}
        found = [self.task.target_stats(batch) for batch in window]
        names = list(found[0])
        if not names:
            return {}
        mine = [torch.stack([f[name].to(self.device) for f in found]).sum(0).reshape(-1) for name in names]
        return dict(zip(names, self._sum(torch.cat(mine)).split([m.numel() for m in mine]), strict=True))

    def _multipliers(self, terms: Mapping[str, Term], known: Mapping[str, Tensor], share: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return every term's multiplier, and the global value of those that report one, from stats summed over ranks in one all-reduce.

        known: the window's stats by normaliser. What is not among them is normalised by this micro-batch and weighted by its `share` of the
        window.
        """
        shared = {t.normaliser: t for t in terms.values()}  # one term stands for all that have its stats and scale
        own = {normaliser: t for normaliser, t in shared.items() if normaliser not in known}
        sums = dict(known)
        if own:
            summed = self._sum(torch.cat([t.stats for t in own.values()]))
            sums |= zip(own, summed.split([t.stats.numel() for t in own.values()]), strict=True)
        shares = {normaliser: share if normaliser in own else 1.0 for normaliser in shared}
        scales = {normaliser: t.scale(sums[normaliser]) * shares[normaliser] for normaliser, t in shared.items()}
        values = {n: t.value(sums[t.normaliser]) * shares[t.normaliser] / self.world_size for n, t in terms.items() if t.value}
        return {n: scales[t.normaliser] for n, t in terms.items()}, values

    def _divide_window(self, waiting: Sequence[Mapping[str, Term]], provisional: float) -> dict[str, Tensor]:
        """Replace the provisional factor in the accumulated gradients by the one normaliser of the whole window."""
        first = next(iter(waiting[0].values()))
        stats = self._sum(torch.stack([next(iter(terms.values())).stats for terms in waiting]).sum(0))
        multiplier = first.scale(stats)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradients, multiplier / provisional)
        parts: dict[str, Tensor] = {}
        for terms in waiting:
            _add(parts, terms, {name: _dot(term.total, multiplier) for name, term in terms.items()}, {})
        return parts

    def _sum(self, stats: Tensor) -> Tensor:
        """Return sums over ranks; the first one of a window carries the wish to leave along."""
        if self.world_size == 1 or self._wishes is not None:
            return collectives.sum_(stats)
        summed = collectives.sum_(torch.cat([stats, stats.new_full((1,), float(self.asked_to_leave()))]))
        self._wishes = summed[-1:]
        return summed[:-1]

    def _no_sync(self) -> AbstractContextManager[Any]:
        """Gradients are synchronised in the last micro-batch of a window only."""
        return self.net.no_sync() if hasattr(self.net, "no_sync") else nullcontext()  # type: ignore[operator]


def _share_one_normaliser(terms: Mapping[str, Term]) -> bool:
    """Return whether one number divides the whole loss, so that the division can wait for the end of the window."""
    return len({t.normaliser for t in terms.values()}) == 1 and all(t.total.dim() == 0 for t in terms.values())


def _add(parts: dict[str, Tensor], terms: Mapping[str, Term], products: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, term in terms.items():
        shown = term.report or name
        value = values[name] if name in values else products[name]
        parts[shown] = parts[shown] + value if shown in parts else value


def _dot(total: Tensor, multiplier: Tensor) -> Tensor:
    product = total * multiplier
    return product.sum() if product.dim() else product


def _not_finite(gradients: list[Tensor], device: torch.device) -> Tensor:
    """Return [1], 1 where an element of the gradients is not finite, else 0; nothing waits for it."""
    refused = torch.zeros(1, device=device)
    if device.type in ("cpu", "cuda"):
        # GradScaler's own check, one pass over all tensors; the factor 1 leaves every bit of them.
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, refused, torch.ones(1, device=device))
        return refused
    for gradient in gradients:
        refused = torch.maximum(refused, (~torch.isfinite(gradient).all()).to(refused.dtype).reshape(1))
    return refused
