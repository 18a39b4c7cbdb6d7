"""Sums over labelled pixels, by hand; class maps from logits."""

from __future__ import annotations

import math

import pytest
import torch

from libreyolo.models.unet.loss import UNetLoss
from libreyolo.ops import pixels
from libreyolo.ops.pixels import class_map, labelled_pixels, pixel_cross_entropy
from tests.family.batches import semantic_batch


def batch_of(masks: list[list[list[int]]], weight: list[float] | None = None):
    found = torch.tensor(masks)
    return semantic_batch(torch.zeros(len(found), 3, *found.shape[1:]), found, weight=weight)


def test_the_cross_entropy_is_summed_over_labelled_pixels_of_real_pictures() -> None:
    """Logits (ln 3, 0): probabilities 3/4 and 1/4."""
    logits = torch.tensor([math.log(3.0), 0.0]).reshape(1, 2, 1, 1).expand(3, 2, 2, 2).clone().requires_grad_()
    batch = batch_of([[[0, 1], [255, 0]], [[1, 1], [255, 255]], [[0, 0], [0, 0]]], [1.0, 1.0, 0.0])
    total = pixel_cross_entropy(logits, batch)
    assert float(total.detach()) == pytest.approx(2 * math.log(4 / 3) + 3 * math.log(4))
    assert float(labelled_pixels(batch)) == 5
    total.backward()
    assert logits.grad is not None
    assert not logits.grad[2].any()
    assert not logits.grad[0, :, 1, 0].any()


def test_pictures_without_a_labelled_pixel_give_zero_that_is_still_connected() -> None:
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    total = pixel_cross_entropy(logits, batch_of([[[255, 255], [255, 255]]]))
    total.backward()
    assert float(total.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_coarse_logits_are_enlarged_bilinearly_to_the_mask() -> None:
    logits = torch.randn(1, 3, 2, 2)
    batch = batch_of([[[0, 1, 2, 0]] * 4])
    large = torch.nn.functional.interpolate(logits, size=(4, 4), mode="bilinear")
    assert float(pixel_cross_entropy(logits, batch)) == pytest.approx(float(pixel_cross_entropy(large, batch)))


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.zeros(1, 2, 300, 300, dtype=torch.bfloat16)
    batch = semantic_batch(torch.zeros(1, 3, 300, 300), torch.zeros(1, 300, 300))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(pixel_cross_entropy(logits, batch)) == pytest.approx(90000 * math.log(2), rel=1e-5)


def test_both_terms_have_the_normaliser_that_is_known_before_the_forward() -> None:
    batch = batch_of([[[0, 1], [255, 0]]])
    loss = UNetLoss(2, aux_weight=0.4)
    terms = loss.terms((torch.zeros(1, 2, 2, 2), torch.zeros(1, 2, 1, 1)), batch)
    assert {name: (term.normaliser, term.stats.tolist()) for name, term in terms.items()} == {"main": ("pixels", [3.0]), "aux": ("pixels", [3.0])}
    assert {name: stats.tolist() for name, stats in loss.target_stats(batch).items()} == {"pixels": [3.0]}
    assert float(terms["aux"].total) == pytest.approx(0.4 * float(terms["main"].total))
    assert float(terms["main"].total * terms["main"].scale(terms["main"].stats)) == pytest.approx(math.log(2))
    assert float(terms["main"].scale(torch.zeros(1))) == 1.0  # no labelled pixel anywhere: 0 / 1
    assert set(loss.terms(torch.zeros(1, 2, 2, 2), batch)) == {"main"}


def test_the_class_map_is_the_largest_enlarged_logit_however_the_classes_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 5, 6)
    expected = torch.nn.functional.interpolate(logits[None], size=(11, 9), mode="bilinear")[0].argmax(0)
    assert torch.equal(class_map(logits, (11, 9)).long(), expected)
    monkeypatch.setattr(pixels, "MAX_ELEMENTS", 2 * 99)  # two classes at a time
    assert torch.equal(class_map(logits, (11, 9)).long(), expected)


def test_of_equal_logits_the_first_class_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (1, 10**6):
        monkeypatch.setattr(pixels, "MAX_ELEMENTS", most)
        assert not class_map(torch.zeros(4, 2, 2), (3, 3)).any()
