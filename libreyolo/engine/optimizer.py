"""Parameter groups and optimisers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def parameter_groups(net: nn.Module, weight_decay: float, lr_scales: Mapping[str, float] | None = None) -> list[dict[str, object]]:
    """Return groups for an optimiser: norm weights, weights (the only ones that decay), biases and everything else.

    `lr_scales` maps a parameter-name prefix to a factor of the learning rate; the longest prefix wins and makes groups of its own. Each group has
    `params`, `weight_decay`, `lr_scale` and `names`. Parameters that do not require a gradient are left out; a shared one is listed once.
    """
    kinds = _parameter_kinds(net)
    scales = dict(lr_scales or {})
    buckets: dict[tuple[float, str], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            buckets.setdefault((_scale_of(name, scales), kinds[name]), []).append((name, parameter))
    order = {"norm": 0, "weight": 1, "other": 2}
    # The base learning rate comes first so that lr/group0..2 are always its three groups.
    keys = sorted(buckets, key=lambda k: (k[0] != 1.0, -k[0], order[k[1]]))
    return [
        {
            "params": [p for _, p in buckets[k]],
            "names": [n for n, _ in buckets[k]],
            "weight_decay": weight_decay if k[1] == "weight" else 0.0,
            "lr_scale": k[0],
        }
        for k in keys
    ]


def _parameter_kinds(net: nn.Module) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for module_name, module in net.named_modules():
        for own_name, _ in module.named_parameters(recurse=False):
            full = f"{module_name}.{own_name}" if module_name else own_name
            if own_name.endswith("weight"):  # attention keeps its projections in one `in_proj_weight`
                kinds[full] = "norm" if isinstance(module, NORMS) else "weight"
            else:
                kinds[full] = "other"
    return kinds


def _scale_of(name: str, scales: Mapping[str, float]) -> float:
    matches = [prefix for prefix in scales if name.startswith(prefix)]
    return scales[max(matches, key=len)] if matches else 1.0


def build_optimizer(
    groups: Iterable[dict[str, object]],
    *,
    name: str,
    lr: float,
    momentum: float = 0.937,
    nesterov: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    device: torch.device,
) -> torch.optim.Optimizer:
    """Return SGD, Adam or AdamW over the groups, fused where the device has it (one kernel for all tensors, no host synchronisation).

    Adam decays weights through the gradient, AdamW apart from it (arXiv 1711.05101).
    """
    chosen = [{**group} for group in groups]
    fused = device.type == "cuda"
    if name == "sgd":
        return SGD(chosen, lr=lr, momentum=momentum, nesterov=nesterov and momentum > 0, fused=fused)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(chosen, lr=lr, betas=betas, fused=fused)


class SGD(torch.optim.SGD):
    """torch's SGD, which, fused, can step without looking each parameter's state up: torch does so every time."""

    _kept: tuple[object, list[list[Tensor]]] | None = None  # a state, and its momenta by group

    @torch.no_grad()
    def step_at_once(self, found_inf: Tensor) -> bool:
        """Return whether this is an ordinary fused step, each parameter having gradient and momentum; if so take it, unless `found_inf` is not 0."""
        if not all(group["fused"] and group["momentum"] for group in self.param_groups):
            return False
        gradients = [[p.grad for p in group["params"]] for group in self.param_groups]
        if any(g is None for row in gradients for g in row):
            return False
        if self._kept is None or self._kept[0] is not self.state:
            momenta = [[self.state.get(p, {}).get("momentum_buffer") for p in group["params"]] for group in self.param_groups]
            kinds = {None if m is None else (m.device, m.dtype) for row in momenta for m in row}
            if None in kinds or len(kinds) != 1:
                return False
            self._kept = self.state, momenta
        for group, row, buffers in zip(self.param_groups, gradients, self._kept[1], strict=True):
            options = {name: group[name] for name in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")}
            torch._fused_sgd_(group["params"], row, buffers, **options, is_first_step=False, grad_scale=None, found_inf=found_inf)
        return True


def load_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put back what `state_dict` gave, on this device or another one: how the optimiser runs (fused or not) stays as it was built here.

    State takes the memory format of its parameter, without which a fused optimiser refuses it: on a GPU weights are channels_last. Raises ValueError
    or KeyError for a state that does not fit.
    """
    saved, mine = state["param_groups"], optimizer.param_groups
    kept = [{key: group[key] for key in ("fused", "foreach") if key in group} for group in mine]
    if len(saved) == len(mine):  # else torch says what is wrong
        state = {**state, "param_groups": [{**group, **own} for group, own in zip(saved, kept, strict=True)]}
    optimizer.load_state_dict(dict(state))
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def step_unless(refused: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Step, unless `refused` ([1], on the device of the parameters) is not 0: then parameters and state stay as they are.

    A fused optimiser looks at it on the device; any other makes the host wait for it, which on the CPU costs nothing.
    """
    if isinstance(optimizer, SGD) and optimizer.step_at_once(refused.reshape(())):
        return
    if not all(group.get("fused") for group in optimizer.param_groups):
        if not bool(refused):
            optimizer.step()
        return
    _give_momentum_a_start(optimizer)
    optimizer.grad_scale, optimizer.found_inf = None, refused.reshape(())  # type: ignore[attr-defined]  # as GradScaler tells it
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def _give_momentum_a_start(optimizer: torch.optim.Optimizer) -> None:
    """Give fused SGD momentum buffers of 0 where it has none: it would make them without a value, and a first step that is refused writes none.

    momentum * 0 + gradient is what its first step writes.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    num_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    if len(optimizer.state) == num_parameters and all(state.get("momentum_buffer") is not None for state in optimizer.state.values()):
        return  # looking each parameter up costs more than the kernel
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
