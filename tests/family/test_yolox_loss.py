"""yolox's terms are sums: they add up over pictures and ranks, ignore padding, and survive empty batches and half precision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from libreyolo.interfaces.term import Term
from libreyolo.models.yolox.loss import YOLOXLoss, shifts_to
from libreyolo.models.yolox.network import YOLOX, build
from tests.family.batches import Row, detection_batch
from tests.family.parity.fill import TARGETS, pictures
from tests.family.sums_of_pictures import (
    SIDE,
    assert_a_batch_is_the_sum_of_its_pictures,
    assert_a_padded_repeat_counts_in_no_sum,
    assert_two_ranks_have_the_gradient_of_one_process,
    gradients,
    number,
    total_of,
    trained_without_statistics,
)

NC = 80
ALL = {"iou", "obj", "cls", "l1"}
LAST: dict[str, Any] = {"epochs": 1, "no_aug_epochs": 1}


@pytest.fixture(scope="module")
def net() -> YOLOX:
    """Size n, training except for BatchNorm, so that a picture's output does not depend on its neighbours."""
    return trained_without_statistics(build("n", NC))


def terms_of(net: YOLOX, images: Tensor, targets: list[list[Row]], *, weight: list[float] | None = None, **settings: Any) -> dict[str, Term]:
    loss = YOLOXLoss(NC, **(LAST | settings))
    batch = detection_batch(images, targets, weight=weight)
    return loss.terms(net(*loss.inputs(batch, loss.facts(batch))), batch)


def test_a_batch_is_the_sum_of_its_pictures(net: YOLOX) -> None:
    assert_a_batch_is_the_sum_of_its_pictures(net, terms_of, ALL)


def test_two_ranks_have_the_gradient_of_one_process(net: YOLOX) -> None:
    assert_two_ranks_have_the_gradient_of_one_process(net, terms_of)


def test_a_padded_repeat_counts_in_no_sum(net: YOLOX) -> None:
    assert_a_padded_repeat_counts_in_no_sum(net, terms_of)


def test_no_object_gives_background_loss_only_and_a_gradient_for_every_parameter(net: YOLOX) -> None:
    images = pictures(SIDE, SIDE).double()
    terms = terms_of(net, images, [[], []], no_aug_epochs=0)
    for name, term in terms.items():
        assert number(term.stats) == 0
        assert float(term.scale(term.stats)) == 1, "the floor of the normaliser is 1"
        assert (number(term.total) > 0) == (name == "obj")
    assert gradients(total_of(terms, {name: term.stats for name, term in terms.items()}), net).isfinite().all()
    logits = torch.cat([level[:, 4].flatten() for level in net(images)])
    expected = F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), reduction="sum")
    assert number(terms["obj"].total) == pytest.approx(number(expected), rel=1e-7)


def test_one_number_divides_the_whole_loss(net: YOLOX) -> None:
    terms = terms_of(net, pictures(SIDE, SIDE).double(), TARGETS)
    assert {term.normaliser for term in terms.values()} == {"positives"}
    assert len({number(term.stats) for term in terms.values()}) == 1
    assert number(terms["iou"].stats) == int(number(terms["iou"].stats)) >= 4


@pytest.mark.parametrize(("epochs", "last", "with_l1"), [(10, 3, [7, 8, 9]), (3, 15, [0, 1, 2]), (3, 0, [])])
def test_l1_counts_in_the_last_epochs_and_is_a_function_of_the_epoch(net: YOLOX, epochs: int, last: int, with_l1: list[int]) -> None:
    loss = YOLOXLoss(NC, epochs=epochs, no_aug_epochs=last)
    batch = detection_batch(pictures(SIDE, SIDE).double(), TARGETS)
    with torch.no_grad():
        output = net(batch.images)
    named = {epoch: set(loss.terms(output, replace(batch, epoch=epoch))) for epoch in reversed(range(epochs))}
    assert sorted(epoch for epoch, names in named.items() if names == ALL) == with_l1
    assert all(names == ALL - {"l1"} for epoch, names in named.items() if epoch not in with_l1)


def test_class_weights_scale_what_their_class_costs(net: YOLOX) -> None:
    images = pictures(SIDE, SIDE).double()
    weights = torch.ones(NC, dtype=torch.float64)
    plain = terms_of(net, images, TARGETS)
    unit = terms_of(net, images, TARGETS, class_weights=weights)
    weights[3] = 5.0
    heavier = terms_of(net, images, TARGETS, class_weights=weights)
    only = terms_of(net, images, TARGETS, class_weights=F.one_hot(torch.tensor(3), NC).double())
    assert number(unit["cls"].total) == pytest.approx(number(plain["cls"].total), rel=1e-9)
    assert number(heavier["cls"].total) == pytest.approx(number(plain["cls"].total) + 4 * number(only["cls"].total), rel=1e-9)
    assert number(only["cls"].total) > 0
    for name in ALL - {"cls"}:
        assert number(heavier[name].total) == number(plain[name].total)


def test_shifts_are_undone_by_decoding() -> None:
    """A cell of stride 8 whose centre is (20, 12), and a box of 16 by 8 around (22, 10)."""
    found = shifts_to(torch.tensor([14.0, 6.0, 30.0, 14.0]), torch.tensor([20.0, 12.0]), torch.tensor([8.0]))
    assert found.tolist() == pytest.approx([(22 - 16) / 8, (10 - 8) / 8, math.log(2), 0.0], abs=1e-6)
    assert shifts_to(torch.zeros(4), torch.zeros(2), torch.ones(1)).isfinite().all()


def test_a_confident_right_answer_costs_almost_nothing() -> None:
    """A box of 4 cells; the ten anchors around it that are assigned predict it exactly, and nothing else is sure of anything."""
    maps = [torch.zeros(1, 5 + 2, SIDE // s, SIDE // s) for s in (8, 16, 32)]
    box = torch.tensor([32.0, 32.0, 64.0, 64.0])
    for level, stride in zip(maps, (8, 16, 32), strict=True):
        level[:, 4:] = -30
        level[:, 2:4] = -20  # boxes of no size: no overlap with anything
        cells = torch.arange(level.shape[2])
        for row in cells.tolist():
            for column in cells.tolist():
                centre = torch.tensor([column + 0.5, row + 0.5]) * stride
                if ((centre - 48).abs() < 1.5 * stride).all():
                    level[0, :4, row, column] = shifts_to(box, centre, torch.tensor([float(stride)]))
                    level[0, 4, row, column] = level[0, 6, row, column] = 30
    batch = detection_batch(torch.zeros(1, 3, SIDE, SIDE), [[(1, *(box / SIDE).tolist())]])
    terms = YOLOXLoss(2, **LAST).terms(maps, batch)
    # 4 cells of stride 8, 4 of stride 16 and, its own centre at (48, 48), 9 of stride 32 (of a grid of 3) are around it; 17 say 30.
    positives = number(terms["iou"].stats)
    assert 9 <= positives <= 10
    assert number(terms["iou"].total) == pytest.approx(0, abs=1e-3)
    assert number(terms["cls"].total) == pytest.approx(0, abs=1e-3)
    assert number(terms["l1"].total) == pytest.approx(0, abs=1e-3)
    sure = sum(int((level[0, 4] == 30).sum()) for level in maps)
    assert number(terms["obj"].total) == pytest.approx(30 * (sure - positives), abs=1e-2)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_half_precision_autocast_is_finite_and_close(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    half_net = build("n", NC).to(memory_format=memory_format).train()
    images = pictures(SIDE, SIDE).contiguous(memory_format=memory_format)
    background = number(terms_of(half_net, images, [[], []])["obj"].total)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = terms_of(half_net, images, TARGETS)
        half_background = number(terms_of(half_net, images, [[], []])["obj"].total)
    for term in half.values():
        assert term.total.dtype == torch.float32
        assert term.total.isfinite()
    # With objects the number of positives may differ by one: rounded overlaps decide it.
    assert half_background == pytest.approx(background, rel=0.02)
    grads = torch.autograd.grad(total_of(half, {name: term.stats for name, term in half.items()}), list(half_net.parameters()))
    assert all(grad.isfinite().all() for grad in grads)


def test_loss_under_autocast_is_the_loss_of_the_same_maps_without_it() -> None:
    batch = detection_batch(pictures(SIDE, SIDE), TARGETS)
    with torch.no_grad():
        output = build("n", NC)(batch.images)
    plain = YOLOXLoss(NC, **LAST).terms(output, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = YOLOXLoss(NC, **LAST).terms(output, batch)
    for name, term in plain.items():
        assert torch.equal(term.total, cast[name].total)
