"""rtdetr's loss: what pictures, weights and ranks may and may not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from libreyolo.interfaces.batch import DetectionBatch
from libreyolo.models.rtdetr import network
from libreyolo.models.rtdetr.loss import RTDETRLoss
from libreyolo.nn import denoising
from libreyolo.nn.denoising import Denoising, Noise, attention_mask, denoising_queries, draw
from tests.dist.equality.checks import GRADIENT, Check, difference, run
from tests.family.batches import Row, detection_batch
from tests.family.parity.fill import pictures

TWO = [[(0, 0.1, 0.1, 0.5, 0.6), (2, 0.4, 0.3, 0.9, 0.8)], [(1, 0.2, 0.2, 0.7, 0.9)]]
SIDE = 64


@pytest.fixture(scope="module")
def net() -> network.RTDETR:
    torch.manual_seed(0)
    fresh = network.build("r18", 3).double().train()
    for module in fresh.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # so that a picture's output does not depend on its neighbours
    return fresh


def batch_of(targets: Sequence[Sequence[Row]], weight: Sequence[float] | None = None) -> DetectionBatch:
    return detection_batch(pictures(SIDE, SIDE, count=len(targets)).double(), targets, weight=weight)


def sums(net: network.RTDETR, batch: DetectionBatch, criterion: RTDETRLoss, objects: int | None = None) -> dict[str, Tensor]:
    """Return the totals; `objects`: of the fullest picture on all ranks, where it is not here."""
    facts = criterion.facts(batch) if objects is None else {"objects": objects}
    return {name: term.total for name, term in criterion.terms(net(*criterion.inputs(batch, facts)), batch).items()}


def test_the_sums_of_a_batch_are_those_of_its_pictures_however_they_are_shared(net: network.RTDETR) -> None:
    whole, criterion = batch_of(TWO), RTDETRLoss(3)
    together = sums(net, whole, criterion)
    apart = [sums(net, picture(whole, i), criterion, objects=2) for i in (0, 1)]
    for name, value in together.items():
        assert float(value.detach()) == pytest.approx(sum(float(part[name].detach()) for part in apart), rel=1e-9)
    alone = sums(net, picture(whole, 1), criterion)  # its own count of objects gives another number of groups
    assert float(alone["vfl"].detach()) != pytest.approx(float(apart[1]["vfl"].detach()), rel=1e-6)


def picture(batch: DetectionBatch, index: int) -> DetectionBatch:
    rows = slice(index, index + 1)
    names = ("images", "weight", "index", "key", "boxes", "labels", "valid", "num_boxes", "original_hw", "to_input")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in names})


def test_a_picture_of_weight_0_adds_nothing(net: network.RTDETR) -> None:
    criterion = RTDETRLoss(3)
    padded, one = batch_of(TWO, weight=[1.0, 0.0]), picture(batch_of(TWO), 0)
    found, expected = sums(net, padded, criterion), sums(net, one, criterion, objects=2)
    for name, value in expected.items():
        assert float(found[name].detach()) == pytest.approx(float(value.detach()), rel=1e-9)
    assert criterion.target_stats(padded)["boxes"].tolist() == [2.0]


def test_what_targets_say_of_the_normaliser_is_what_the_terms_say(net: network.RTDETR) -> None:
    batch, criterion = batch_of(TWO), RTDETRLoss(3)
    terms = criterion.terms(net(*criterion.inputs(batch, criterion.facts(batch))), batch)
    assert {term.normaliser for term in terms.values()} == {"boxes"}
    for term in terms.values():
        assert torch.equal(term.stats, criterion.target_stats(batch)["boxes"])
    assert [float(term.scale(torch.tensor([count]))) for term in terms.values() for count in (0.0, 4.0)] == [1.0, 0.25] * 3


@pytest.mark.parametrize("num_denoising", [0, 100])
def test_without_any_object_every_parameter_gets_a_gradient_and_only_background_counts(num_denoising: int, net: network.RTDETR) -> None:
    batch, criterion = batch_of([[], []]), RTDETRLoss(3, num_denoising=num_denoising)
    found = sums(net, batch, criterion)
    assert (float(found["bbox"].detach()), float(found["giou"].detach())) == (0.0, 0.0)
    logits = net(*criterion.inputs(batch, {"objects": 0})).matching.logits
    background = 0.75 * logits.sigmoid().square() * torch.nn.functional.softplus(logits)
    assert float(found["vfl"].detach()) == pytest.approx(float(background.sum().detach()), rel=1e-9)
    grads = torch.autograd.grad(torch.stack(list(found.values())).sum(), list(net.parameters()), allow_unused=True)
    assert not [name for (name, _), grad in zip(net.named_parameters(), grads, strict=True) if grad is None]


def test_weights_of_classes_are_factors_of_their_part_of_the_class_term(net: network.RTDETR) -> None:
    batch = batch_of(TWO)
    total = [sums(net, batch, RTDETRLoss(3, class_weights=w)) for w in (None, *torch.eye(3))]
    assert float(total[0]["vfl"].detach()) == pytest.approx(sum(float(t["vfl"].detach()) for t in total[1:]), rel=1e-6)
    assert torch.equal(total[0]["giou"], total[1]["giou"])


@pytest.mark.slow
def test_eight_pictures_can_be_learnt() -> None:
    torch.manual_seed(0)
    net = network.build("r18", 3).train()
    targets = [[(i % 3, 0.1 + 0.05 * i, 0.2, 0.5 + 0.05 * i, 0.7)] for i in range(8)]
    batch, criterion = detection_batch(pictures(SIDE, SIDE, count=8), targets), RTDETRLoss(3, num_denoising=8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4)
    history = []
    for _ in range(20):
        found = sums(net, batch, criterion)
        loss = torch.stack(list(found.values())).sum() / 8
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        history.append({name: float(value.detach()) for name, value in found.items()})
    assert history[-1]["bbox"] < 0.5 * history[0]["bbox"]
    assert history[-1]["giou"] < 0.6 * history[0]["giou"]


def test_a_validation_loss_has_every_layer_and_no_denoising(net: network.RTDETR) -> None:
    batch, criterion = batch_of(TWO), RTDETRLoss(3)
    matching = criterion.matching_sums(net(*criterion.inputs(batch, criterion.facts(batch))), batch).sum(dim=1)
    net.eval()
    with torch.no_grad():
        found = sums(net, batch, criterion)
    net.train()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    assert [float(v) for v in found.values()] == pytest.approx(matching.tolist(), rel=1e-9)


@pytest.mark.slow
def test_accumulated_micro_batches_are_one_batch() -> None:
    objects, keys = (3, 0, 1, 2), {**GRADIENT, "num_denoising": 8}  # the second half alone would get 4 groups where the first gets 2
    whole = run(Check("rtdetr", objects=objects, keys={**keys, "batch": 4}, frozen_norms=True))
    parts = run(Check("rtdetr", objects=objects, keys={**keys, "batch": 2, "nbs": 4}, frozen_norms=True))
    assert (whole.steps, parts.steps) == (1, 1)
    assert difference(whole, parts) < 1e-8
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)


# ------------------------------------------------------------------------------------------------------------- denoising queries

LABELS, VALID = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[True, True], [True, False]])
BOXES = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.25, 0.5, 0.1, 0.1]], [[0.6, 0.6, 0.4, 0.4], [0.0, 0.0, 0.0, 0.0]]])


def queries(noise: Noise, groups: int = 2) -> Denoising:
    return denoising_queries(LABELS, BOXES, VALID, noise, num_objects=2, groups=groups, num_classes=3)


def constant(num_queries: int, *, flip: float = 1.0, part: float = 0.5) -> Noise:
    shape = (2, num_queries, 4)
    return Noise(torch.full(shape[:2], flip), torch.full(shape[:2], 1), torch.ones(shape), torch.full(shape, part))


def test_positive_copies_move_by_half_their_extent_at_most_and_negative_ones_by_more() -> None:
    found = queries(constant(8))
    boxes = found.boxes.sigmoid()
    # Every side moves by 0.5 (positive) or 1.5 (negative) of half the extent, to the right and down.
    assert boxes[0, :4].flatten().tolist() == pytest.approx(
        [0.55, 0.6, 0.2, 0.4, 0.275, 0.525, 0.1, 0.1, 0.65, 0.8 - 0.0, 0.2, 0.4, 0.325, 0.575, 0.1, 0.1], abs=1e-5
    )
    assert torch.equal(boxes[0, 4:], boxes[0, :4])
    assert found.labels.tolist() == [[1, 2] * 4, [0, 3] * 4]
    assert found.positive().tolist() == [0, 1, 4, 5]
    assert found.share == 0.5


def test_a_quarter_of_the_labels_are_drawn_anew_and_empty_slots_never() -> None:
    assert queries(constant(8, flip=0.2)).labels.tolist() == [[1, 1] * 4, [1, 3] * 4]
    assert queries(constant(8, flip=0.25)).labels.tolist() == [[1, 2] * 4, [0, 3] * 4]


def test_draws_belong_to_the_picture_and_not_to_its_place_in_the_batch() -> None:
    pair, alone = draw(7, [(0, 4), (0, 5)], 6, 3), draw(7, [(0, 5)], 6, 3)
    for both, one in zip(pair, alone, strict=True):
        assert torch.equal(both[1:], one)
        assert not torch.equal(both[0], both[1])
    assert not torch.equal(draw(8, [(0, 5)], 6, 3).part, alone.part)
    assert not torch.equal(draw(7, [(1, 5)], 6, 3).part, alone.part)


def test_groups_see_themselves_and_the_matching_queries_which_see_no_group() -> None:
    found = queries(constant(8))
    hidden = attention_mask(found, 3)
    assert hidden is not None
    group = [0, 0, 0, 0, 1, 1, 1, 1, None, None, None]
    expected = [[of is not None and of != mine for of in group] for mine in group]
    assert hidden.tolist() == expected
    assert attention_mask(denoising.no_queries(LABELS, BOXES), 3) is None


def test_denoising_queries_do_not_change_what_the_matching_queries_say(net: network.RTDETR) -> None:
    batch = batch_of(TWO)
    with torch.no_grad():
        outputs = [net(*(c := RTDETRLoss(3, num_denoising=n)).inputs(batch, c.facts(batch))).matching for n in (0, 10)]
    assert torch.allclose(outputs[0].logits, outputs[1].logits, atol=1e-10)
    assert torch.allclose(outputs[0].boxes, outputs[1].boxes, atol=1e-10)
