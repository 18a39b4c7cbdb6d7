"""SimOTA against a plain loop over pictures and targets, and its promises about padding, conflicts and pieces."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from libreyolo.ops import simota as module
from libreyolo.ops.boxes import grid_centres
from libreyolo.ops.iou import pairwise_iou
from libreyolo.ops.simota import SlotAssignment, class_cost, simota

SIDE, CLASSES = 64, 3
CENTRES, STRIDES = grid_centres([(8, 8), (4, 4), (2, 2)], (8, 16, 32))
ANCHORS = len(CENTRES)


def case(batch: int, targets: int, seed: int) -> tuple[Tensor, ...]:
    """Predictions near their cells and random targets, the last of each picture but the first not valid."""
    draw = torch.Generator().manual_seed(seed)
    middle = CENTRES.double() + torch.randn(batch, ANCHORS, 2, generator=draw, dtype=torch.float64) * 3
    half = STRIDES.double() * (0.5 + torch.rand(batch, ANCHORS, 2, generator=draw, dtype=torch.float64))
    boxes = torch.cat((middle - half, middle + half), dim=2)
    objectness = torch.randn(batch, ANCHORS, generator=draw, dtype=torch.float64)
    classes = torch.randn(batch, ANCHORS, CLASSES, generator=draw, dtype=torch.float64)
    start = torch.rand(batch, targets, 2, generator=draw, dtype=torch.float64) * 40
    size = 8 + torch.rand(batch, targets, 2, generator=draw, dtype=torch.float64) * 24
    labels = torch.randint(CLASSES, (batch, targets), generator=draw)
    valid = torch.ones(batch, targets, dtype=torch.bool)
    valid[1:, -1] = False
    return boxes, objectness, classes, torch.cat((start, start + size), dim=2), labels, valid


def assign(boxes: Tensor, objectness: Tensor, classes: Tensor, targets: Tensor, labels: Tensor, valid: Tensor) -> SlotAssignment:
    return simota(boxes, objectness, classes, CENTRES.double(), STRIDES.double(), targets, labels, valid)


def pairs(found: SlotAssignment, picture: int) -> dict[int, int]:
    """Return target by anchor of one picture."""
    used = found.used[picture]
    anchors, targets = found.anchors[picture][used].tolist(), found.targets[picture][used].tolist()
    assert len(set(anchors)) == len(anchors), "an anchor is in use twice"
    return dict(zip(anchors, targets, strict=True))


def by_hand(boxes: Tensor, objectness: Tensor, classes: Tensor, targets: Tensor, labels: Tensor) -> dict[int, int]:
    """One picture, as the paper tells it, with dense tables and plain loops."""
    middles = (targets[:, :2] + targets[:, 2:]) / 2
    around = [[all(abs(CENTRES[a] - m) < 1.5 * STRIDES[a]) for a in range(ANCHORS)] for m in middles.float()]
    candidates = [a for a in range(ANCHORS) if any(row[a] for row in around)]
    overlap = pairwise_iou(targets, boxes)
    p = (objectness.sigmoid()[:, None] * classes.sigmoid()).sqrt()
    cost = torch.full((len(targets), ANCHORS), math.inf, dtype=torch.float64)
    taken: dict[int, list[int]] = {}
    for t, label in enumerate(labels.tolist()):
        for a in candidates:
            entropy = -sum(float(p[a, c].log() if c == label else (1 - p[a, c]).log()) for c in range(CLASSES))
            cost[t, a] = entropy - 3 * float((overlap[t, a] + 1e-8).log()) + (0 if around[t][a] else 1e6)
        best = sorted((float(overlap[t, a]) for a in candidates), reverse=True)[:10]
        k = max(1, int(sum(best)))
        for a in sorted(candidates, key=lambda a: float(cost[t, a]))[:k]:
            taken.setdefault(a, []).append(t)
    return {a: owners[0] if len(owners) == 1 else int(cost[:, a].argmin()) for a, owners in taken.items()}


@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_plain_loops_find(seed: int) -> None:
    inputs = case(2, 6, seed)
    found = assign(*inputs)
    contested = 0
    for picture in range(2):
        boxes, objectness, classes, targets, labels, valid = (tensor[picture] for tensor in inputs)
        expected = by_hand(boxes, objectness, classes, targets[valid], labels[valid])
        assert pairs(found, picture) == expected
        overlap = pairwise_iou(targets, boxes)
        for anchor, target, used, value in zip(*(part[picture].tolist() for part in found), strict=True):
            assert value == (pytest.approx(float(overlap[target, anchor])) if used else 0)
        contested += len(expected)
    assert contested > 12  # more than one anchor for each target: the number of anchors is not always its floor of 1


def test_an_anchor_goes_to_the_cheapest_target_even_where_that_one_did_not_take_it() -> None:
    """Three targets of one place; the third is the cheapest for the shared anchor, but has cheaper ones for its k of 1."""
    cost = torch.tensor([[[2.0, 9.0, 9.0], [3.0, 9.0, 9.0], [1.0, 0.5, 9.0]]])
    anchors = torch.tensor([[[0, 1], [0, 1], [1, 0]]])
    used = torch.tensor([[[True, False], [True, False], [True, False]]])
    found = module._settle(anchors, used, cost, torch.arange(9.0).reshape(1, 3, 3))
    assert pairs(found, 0) == {0: 2, 1: 2}
    assert found.overlap[0].tolist() == [6.0, 0, 0, 0, 7.0, 0]


def test_the_region_is_open_and_measured_in_strides() -> None:
    """Around (16, 16) the centres 12 and 20 of stride 8 are in; 4 and 28 lie exactly 1.5 strides away and are out."""
    around = module._around(CENTRES.double(), 1.5 * STRIDES.double(), torch.tensor([[[6.0, 6.0, 26.0, 26.0]]], dtype=torch.float64))
    expected = (
        [[x, y] for x in (12, 20) for y in (12, 20)] + [[x, y] for x in (8, 24) for y in (8, 24)] + [[x, y] for x in (16, 48) for y in (16, 48)]
    )
    assert sorted(CENTRES[around[0, 0]].tolist()) == sorted(expected)


def test_padding_and_no_target_take_nothing() -> None:
    boxes, objectness, classes, targets, labels, valid = case(2, 4, 7)
    found = assign(boxes, objectness, classes, targets, labels, torch.zeros_like(valid))
    assert not found.used.any()
    assert (found.overlap == 0).all()
    valid = torch.ones_like(valid)
    wider = [torch.cat((t, torch.zeros(2, 5, *t.shape[2:], dtype=t.dtype)), dim=1) for t in (targets, labels, valid)]
    for picture in range(2):
        assert pairs(assign(boxes, objectness, classes, targets, labels, valid), picture) == pairs(
            assign(boxes, objectness, classes, *wider), picture
        )


def test_pieces_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = case(5, 4, 3)
    whole = assign(*inputs)
    monkeypatch.setattr(module, "MAX_PAIRS", 2 * 4 * ANCHORS)  # two pictures at a time
    for one, other in zip(whole, assign(*inputs), strict=True):
        assert torch.equal(one, other)


def test_class_cost_is_the_cross_entropy_of_probabilities_and_finite_where_it_is_sure() -> None:
    objectness, classes = torch.tensor([[0.3, 200.0]]).double(), torch.tensor([[[0.5, -1.0, 2.0], [200.0, -900.0, 0.0]]]).double()
    labels = torch.tensor([[2, 1]])
    p = (objectness.sigmoid().unsqueeze(2) * classes.sigmoid()).sqrt()
    found = class_cost(objectness, classes, labels)
    for row, label in enumerate((2, 1)):
        wanted = torch.nn.functional.one_hot(torch.tensor(label), 3).double().expand(2, 3)
        expected = torch.nn.functional.binary_cross_entropy(p[0], wanted, reduction="none").sum(dim=1)
        assert torch.allclose(found[0, row], expected)
    assert float(found[0, 1, 1]) == pytest.approx(200 - math.log(1 - math.sqrt(0.5)), rel=1e-6)
