"""Overlaps against hand values, against torchvision where it has the same formula, and at their edges."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision

from libreyolo.ops.iou import area, ciou, giou, iou, pairwise_ciou, pairwise_giou, pairwise_iou

A = torch.tensor([0.0, 0.0, 4.0, 4.0], dtype=torch.float64)
B = torch.tensor([2.0, 2.0, 6.0, 8.0], dtype=torch.float64)  # shares 2 x 2; union 16 + 24 - 4 = 36; hull 6 x 8


def random_boxes(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    corner = torch.rand(*shape, 2, generator=rng, dtype=torch.float64) * 50
    return torch.cat((corner, corner + 1 + torch.rand(*shape, 2, generator=rng, dtype=torch.float64) * 50), dim=-1)


def test_hand_values() -> None:
    v = 4 / math.pi**2 * (math.atan(4 / 6) - math.atan(1)) ** 2
    alpha = v / (1 - 4 / 36 + v)
    distance = (2**2 + 3**2) / (6**2 + 8**2)
    assert float(area(B)) == 24
    assert float(iou(A, B)) == pytest.approx(4 / 36, abs=1e-7)
    assert float(giou(A, B)) == pytest.approx(4 / 36 - (48 - 36) / 48, abs=1e-7)
    assert float(ciou(A, B)) == pytest.approx(4 / 36 - distance - alpha * v, abs=1e-7)


def test_a_box_overlaps_itself_wholly_by_every_measure() -> None:
    boxes = random_boxes(20)
    for measure in (iou, giou, ciou):
        assert torch.allclose(measure(boxes, boxes), torch.ones(20, dtype=torch.float64), atol=1e-6)


def test_pairwise_matches_torchvision_and_the_aligned_measures() -> None:
    a, b = random_boxes(7, seed=1), random_boxes(5, seed=2)
    assert torch.allclose(pairwise_iou(a, b), torchvision.ops.box_iou(a, b), atol=1e-6)
    assert torch.allclose(pairwise_giou(a, b), torchvision.ops.generalized_box_iou(a, b), atol=1e-6)
    assert torch.allclose(pairwise_ciou(a, b), torchvision.ops.complete_box_iou(a, b), atol=1e-6)
    assert torch.equal(pairwise_ciou(a, b)[3, 2], ciou(a[3], b[2]))
    assert pairwise_iou(a, b[:0]).shape == (7, 0)


def test_order_of_the_arguments_changes_no_value() -> None:
    a, b = random_boxes(50, seed=3), random_boxes(50, seed=4)
    for measure in (iou, giou, ciou):
        assert torch.allclose(measure(a, b), measure(b, a), atol=1e-12)


def test_scale_changes_no_value() -> None:
    a, b = random_boxes(50, seed=5), random_boxes(50, seed=6)
    for measure in (iou, giou, ciou):
        assert torch.allclose(measure(a, b), measure(a * 8, b * 8), atol=1e-6)


def test_gradient_of_ciou_holds_alpha_constant() -> None:
    a, b = random_boxes(1, seed=7).requires_grad_(), random_boxes(1, seed=8)
    [grad] = torch.autograd.grad(ciou(a, b).sum(), a)
    angle = torch.atan((a[:, 2] - a[:, 0]) / (a[:, 3] - a[:, 1])) - torch.atan((b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]))
    v = 4 / math.pi**2 * angle**2
    alpha = (v / (1 - iou(a, b) + v)).detach()
    hull = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    shift = (a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2
    [expected] = torch.autograd.grad((iou(a, b) - shift.square().sum() / hull.square().sum() - alpha * v).sum(), a)
    assert torch.allclose(grad, expected, atol=1e-7)


@pytest.mark.parametrize("measure", [iou, giou, ciou])
def test_boxes_without_area_give_finite_values_and_gradients(measure) -> None:
    flat = torch.tensor([[3.0, 3.0, 3.0, 3.0], [1.0, 2.0, 5.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 1.0, 1.0]])
    for other in (flat.clone(), torch.tensor([[0.0, 0.0, 4.0, 4.0]])):
        a = flat.clone().requires_grad_()
        value = measure(a, other)
        value.sum().backward()
        assert value.isfinite().all()
        assert a.grad is not None and a.grad.isfinite().all()
    assert (iou(flat, flat) == 0).all()
