"""The classifier's loss beside torch's own, and as sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from libreyolo.interfaces.batch import ClassifyBatch
from libreyolo.nn.classification import ClassificationLoss, cross_entropy

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([[0, 1], [2, 2], [3, 0], [1, 3], [2, 1]])
SHARES = torch.tensor([[0.7, 0.3], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0], [0.1, 0.9]], dtype=torch.float64)
SOFT = torch.zeros(5, 4, dtype=torch.float64).scatter_add_(1, LABELS, SHARES)


def batch_of(weight: list[float]) -> ClassifyBatch:
    none = torch.zeros(5, 2, dtype=torch.int64)
    return ClassifyBatch(torch.zeros(5, 3, 1, 1), torch.tensor(weight), torch.arange(5), 0, none, LABELS, SHARES)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)])
def test_mixed_smoothed_and_weighted_labels_give_torch_s_cross_entropy(smoothing: float, weights: torch.Tensor | None) -> None:
    expected = F.cross_entropy(LOGITS, SOFT, weight=weights, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(cross_entropy(LOGITS, LABELS, SHARES, smoothing, weights), expected)


def test_the_mean_is_over_real_pictures_whatever_their_classes_weigh() -> None:
    weights = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)
    term = ClassificationLoss(4, class_weights=weights).terms(LOGITS, batch_of([1, 1, 1, 0, 0]))["ce"]
    expected = F.cross_entropy(LOGITS[:3], SOFT[:3], weight=weights, reduction="none").mean()
    torch.testing.assert_close(term.total * term.scale(term.stats), expected)


def test_two_parts_of_a_batch_add_up_to_the_whole() -> None:
    loss = ClassificationLoss(4, label_smoothing=0.1)
    whole = loss.terms(LOGITS, batch_of([1.0] * 5))["ce"]
    first, second = (loss.terms(LOGITS, batch_of(w))["ce"] for w in ([1, 1, 0, 0, 0], [0, 0, 1, 1, 1]))
    stats = first.stats + second.stats
    parts = (first.total + second.total) * first.scale(stats)
    torch.testing.assert_close(parts, whole.total * whole.scale(whole.stats))
    assert loss.target_stats(batch_of([1, 1, 0, 0, 0]))["pictures"].tolist() == [2.0]


def test_a_batch_of_padding_alone_is_0_and_reaches_every_logit() -> None:
    logits = LOGITS.clone().requires_grad_()
    term = ClassificationLoss(4).terms(logits, batch_of([0.0] * 5))["ce"]
    value = term.total * term.scale(term.stats)
    value.backward()
    assert float(value.detach()) == 0.0
    assert logits.grad is not None and not logits.grad.any()


def test_half_precision_logits_are_judged_in_float32() -> None:
    huge = torch.tensor([[60000.0, 0.0, 0.0, 0.0]] * 5, dtype=torch.float16)
    term = ClassificationLoss(4).terms(huge, batch_of([1.0] * 5))["ce"]
    assert term.total.dtype == torch.float32
    assert torch.isfinite(term.total)
