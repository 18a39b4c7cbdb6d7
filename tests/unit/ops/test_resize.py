"""Maps at another size: in parts where one piece would be too large, and the same then."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from libreyolo.ops import resize as module
from libreyolo.ops.resize import resize, twice


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(("largest", "parts"), [(10**6, [(5, 6)]), (2 * 6 * 80, [(2, 6), (2, 6), (1, 6)]), (4 * 80, [(1, 4), (1, 2)] * 5)])
def test_maps_that_are_made_in_parts_are_those_made_at_once(
    mode: str, largest: int, parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", largest)
    made = []
    original = F.interpolate
    monkeypatch.setattr(module.F, "interpolate", lambda x, **named: made.append(tuple(x.shape[:2])) or original(x, **named))
    x = torch.randn(5, 6, 4, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last).requires_grad_()
    twin = x.detach().clone(memory_format=torch.channels_last).requires_grad_()
    named = {"align_corners": False} if mode == "bilinear" else {}
    y, expected = resize(x, (8, 10), mode), original(twin, size=(8, 10), mode=mode, **named)
    assert made == parts
    assert y.is_contiguous(memory_format=torch.channels_last) and torch.equal(y, expected)
    pull = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (y * pull).sum().backward(), (expected * pull).sum().backward()
    assert torch.equal(x.grad, twin.grad)


def test_twice_the_size_by_hand() -> None:
    x = torch.tensor([[[[1.0, 3.0]]]])
    assert twice(x).tolist() == [[[[1, 1, 3, 3], [1, 1, 3, 3]]]]
    assert twice(x, "bilinear").tolist() == [[[[1, 1.5, 2.5, 3], [1, 1.5, 2.5, 3]]]]
