"""yolo9's terms are sums: they add up over pictures and ranks, ignore padding, and survive empty batches and half precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from libreyolo.interfaces.term import Term
from libreyolo.models.yolo9.loss import REACH, YOLO9Loss, distribution_focal
from libreyolo.models.yolo9.network import YOLO9, YOLO9Output, build
from tests.family.batches import Row, detection_batch
from tests.family.parity.fill import TARGETS, fill, pictures
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
MAIN = {"box", "cls", "dfl"}
ALL = MAIN | {f"aux_{name}" for name in MAIN}


@pytest.fixture(scope="module")
def net() -> YOLO9:
    """Size t with its PGI branch, training except for BatchNorm, so that a picture's output does not depend on its neighbours."""
    return trained_without_statistics(build("t", NC, aux=True))


def terms_of(net: YOLO9, images: Tensor, targets: list[list[Row]], *, weight: list[float] | None = None, **settings: Any) -> dict[str, Term]:
    loss = YOLO9Loss(NC, **settings)
    batch = detection_batch(images, targets, weight=weight)
    return loss.terms(net(*loss.inputs(batch, loss.facts(batch))), batch)


def test_a_batch_is_the_sum_of_its_pictures(net: YOLO9) -> None:
    assert_a_batch_is_the_sum_of_its_pictures(net, terms_of, ALL)


def test_two_ranks_have_the_gradient_of_one_process(net: YOLO9) -> None:
    assert_two_ranks_have_the_gradient_of_one_process(net, terms_of)


def test_a_padded_repeat_counts_in_no_sum(net: YOLO9) -> None:
    assert_a_padded_repeat_counts_in_no_sum(net, terms_of)


def test_no_object_gives_background_loss_only_and_a_gradient_for_every_parameter(net: YOLO9) -> None:
    terms = terms_of(net, pictures(SIDE, SIDE).double(), [[], []])
    for name, term in terms.items():
        assert number(term.stats) == 0
        assert float(term.scale(term.stats)) == 1, "the floor of the normaliser is 1"
        assert term.total.isfinite()
        assert (number(term.total) > 0) == name.endswith("cls")
    assert gradients(total_of(terms, {name: term.stats for name, term in terms.items()}), net).isfinite().all()


def test_background_loss_is_the_cross_entropy_with_zero(net: YOLO9) -> None:
    images = pictures(SIDE, SIDE).double()
    logits = torch.cat([level[:, 64:].flatten() for level in net(images).main])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), reduction="sum")
    assert number(terms_of(net, images, [[], []])["cls"].total) == pytest.approx(0.5 * number(expected), rel=1e-7)


def test_normalisers_are_named_by_branch_and_gains_scale_the_terms(net: YOLO9) -> None:
    images = pictures(SIDE, SIDE).double()
    terms = terms_of(net, images, TARGETS)
    assert {terms[name].normaliser for name in MAIN} == {"targets"}
    assert {terms[f"aux_{name}"].normaliser for name in MAIN} == {"aux_targets"}
    other = terms_of(net, images, TARGETS, aux_weight=0.5, box_gain=15, dfl_gain=4.5, cls_gain=2)
    for name, factor in {"box": 2, "dfl": 3, "cls": 4}.items():
        assert number(other[name].total) == pytest.approx(factor * number(terms[name].total), rel=1e-9)
        assert number(other[f"aux_{name}"].total) == pytest.approx(2 * factor * number(terms[f"aux_{name}"].total), rel=1e-9)
    assert set(terms_of(net, images, TARGETS, aux_weight=0)) == MAIN
    assert YOLO9Loss(NC).facts(detection_batch(images, TARGETS)) == {}


def test_each_branch_has_the_terms_it_would_have_alone_at_every_size(net: YOLO9) -> None:
    loss = YOLO9Loss(NC, aux_weight=0.5)
    for side in (SIDE, 2 * SIDE, SIDE):  # what a loss keeps between steps is that of one size
        batch = detection_batch(pictures(side, side).double(), TARGETS)
        output = net(batch.images)
        assert output.aux is not None
        together = loss.terms(output, batch)
        for prefix, maps, weight in (("", output.main, 1.0), ("aux_", output.aux, 0.5)):
            alone = YOLO9Loss(NC).terms(YOLO9Output(maps, None), batch)
            assert number(together[f"{prefix}box"].stats) == pytest.approx(number(alone["box"].stats), rel=1e-9)
            for name in MAIN:
                assert number(together[prefix + name].total) == pytest.approx(weight * number(alone[name].total), rel=1e-9)


def test_class_weights_scale_what_their_class_costs(net: YOLO9) -> None:
    images = pictures(SIDE, SIDE).double()
    weights = torch.ones(NC, dtype=torch.float64)
    plain = terms_of(net, images, TARGETS, class_weights=weights)
    weights[3] = 5.0
    heavier = terms_of(net, images, TARGETS, class_weights=weights)
    only = terms_of(net, images, TARGETS, class_weights=torch.nn.functional.one_hot(torch.tensor(3), NC).double())
    for name in ("cls", "aux_cls"):
        assert number(heavier[name].total) == pytest.approx(number(plain[name].total) + 4 * number(only[name].total), rel=1e-9)
        assert number(only[name].total) > 0
    for name in ("box", "dfl"):
        assert number(heavier[name].total) == number(plain[name].total)
        assert torch.equal(heavier[name].stats, plain[name].stats)


def test_distribution_focal_loss_by_hand() -> None:
    logits = torch.zeros(4, 16, dtype=torch.float64)
    logits[:, 3] = 1.0
    log_z = math.log(15 + math.e)
    # 2.75 is a quarter bin 2 and three quarters bin 3; -4 clamps to bin 0; 99 clamps to 14.99, one hundredth of it in bin 14.
    losses = [log_z - 0.75, log_z, log_z, log_z - 1.0]
    found = distribution_focal(logits, torch.tensor([2.75, -4.0, 99.0, 3.0], dtype=torch.float64))
    assert float(found) == pytest.approx(sum(losses) / 4, rel=1e-9)
    assert math.floor(REACH) + 1 == 15


def test_a_confident_right_answer_costs_almost_nothing() -> None:
    """One box of 4 strides, every anchor in it predicts it exactly: box loss 0, dfl 0, class loss that of a soft target of 1."""
    maps = [torch.zeros(1, 64 + 2, SIDE // s, SIDE // s) for s in (8, 16, 32)]
    for level in maps:
        level[:, 64:] = -30
        level[:, :64].unflatten(1, (4, 16))[:, :, 0] = 60  # boxes of no size: no overlap with anything
    box = torch.tensor([32.0, 32.0, 64.0, 64.0])
    for row in range(4, 8):
        for col in range(4, 8):
            sides = torch.tensor([col + 0.5 - 4, row + 0.5 - 4, 8 - col - 0.5, 8 - row - 0.5])
            for side, distance in enumerate(sides.tolist()):
                logits = torch.full((16,), -60.0)
                logits[int(distance)] = logits[int(distance) + 1] = 60  # every distance here is a bin and a half
                maps[0][0, side * 16 : side * 16 + 16, row, col] = logits
            maps[0][0, 64 + 1, row, col] = 30
    batch = detection_batch(torch.zeros(1, 3, SIDE, SIDE), [[(1, *(box / SIDE).tolist())]])
    terms = YOLO9Loss(2).terms(YOLO9Output(maps, None), batch)
    assert number(terms["box"].stats) == pytest.approx(10, abs=1e-3)
    assert number(terms["box"].total) == pytest.approx(0, abs=1e-3)
    assert number(terms["dfl"].total) == pytest.approx(1.5 * 10 * math.log(2), abs=1e-3)
    # Six of the sixteen matching anchors are beyond the ten best and say 30 where 0 is wanted.
    assert number(terms["cls"].total) == pytest.approx(0.5 * 6 * 30, abs=1e-2)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_half_precision_autocast_is_finite_and_close(memory_format: torch.memory_format) -> None:
    net = build("t", NC, aux=True).to(memory_format=memory_format).train()
    fill(net)
    images = pictures(SIDE, SIDE).contiguous(memory_format=memory_format)
    exact = terms_of(net, images, TARGETS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = terms_of(net, images, TARGETS)
    for term in half.values():
        assert term.total.dtype == torch.float32
        assert term.total.isfinite()
    # The filled network amplifies bfloat16's 3 digits; the summed background loss averages that out, the few boxes don't.
    assert number(half["cls"].total) == pytest.approx(number(exact["cls"].total), rel=0.05)
    grads = torch.autograd.grad(total_of(half, {name: term.stats for name, term in half.items()}), list(net.parameters()))
    assert all(grad.isfinite().all() for grad in grads)


def test_loss_under_autocast_is_the_loss_of_the_same_maps_without_it(net: YOLO9) -> None:
    images = pictures(SIDE, SIDE)
    batch = detection_batch(images, TARGETS)
    with torch.no_grad():
        output = net.float()(images)
    net.double()
    plain = YOLO9Loss(NC).terms(output, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = YOLO9Loss(NC).terms(output, batch)
    for name, term in plain.items():
        assert torch.equal(term.total, cast[name].total)
