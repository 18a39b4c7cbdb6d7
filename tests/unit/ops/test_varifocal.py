"""The varifocal loss of few targets among many predictions is the dense formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from libreyolo.ops.varifocal import varifocal_sums


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_gradients_are_those_of_the_dense_formula(weighted: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 3, generator=draw, dtype=torch.float64).requires_grad_()
    queries, labels = torch.tensor([[4, 1], [2, 0]]), torch.tensor([[2, 0], [1, 0]])
    scores, found = torch.tensor([[0.8, 0.0], [0.3, 0.9]], dtype=torch.float64), torch.tensor([[True, True], [True, False]])
    class_weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64) if weighted else None

    target, chosen = torch.zeros(2, 5, 3, dtype=torch.float64), torch.zeros(2, 5, 3, dtype=torch.bool)
    for b, n in ((0, 0), (0, 1), (1, 0)):
        target[b, queries[b, n], labels[b, n]] = scores[b, n]
        chosen[b, queries[b, n], labels[b, n]] = True
    weight = torch.where(chosen, target, 0.75 * logits.detach().sigmoid() ** 2)
    dense = F.binary_cross_entropy_with_logits(logits, target, weight=weight, reduction="none")
    if class_weights is not None:
        dense = dense * class_weights
    sparse = varifocal_sums(logits, queries, labels, scores, found, class_weights=class_weights)

    assert torch.allclose(sparse, dense.sum(dim=(1, 2)), rtol=1e-12)
    gradients = [torch.autograd.grad(s.sum(), logits, retain_graph=True)[0] for s in (sparse, dense)]
    assert torch.allclose(*gradients, rtol=1e-10)
