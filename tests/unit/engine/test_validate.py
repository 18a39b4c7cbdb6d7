"""Validation reads and never changes; its losses are those of all pictures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from libreyolo.engine.validate import validate
from libreyolo.interfaces.term import Term, per_count
from tests.unit.engine.toy import CPU, ToyLoader, ToyTask, toy_batches, toy_net


def test_no_tensor_changes_and_the_mode_is_put_back() -> None:
    net = toy_net().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    validate(net, ToyTask(), ToyLoader(toy_batches(3)), device=CPU, amp_dtype=None, with_loss=True)
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_the_mode_is_put_back_when_something_fails() -> None:
    class Failing(ToyTask):
        def decode(self, output, batch):  # type: ignore[no-untyped-def]
            raise RuntimeError("no")

    net = toy_net().train()
    with pytest.raises(RuntimeError, match="no"):
        validate(net, Failing(), ToyLoader(toy_batches(1)), device=CPU, amp_dtype=None)
    assert net.training


def test_every_picture_is_seen_once() -> None:
    found = validate(toy_net(), ToyTask(), ToyLoader(toy_batches(3)), device=CPU, amp_dtype=None)
    assert found.metrics["metrics/seen"] == found.metrics["speed/images_seen"] == 12.0


def test_the_validation_loss_is_that_of_all_pictures_not_a_mean_of_batch_means() -> None:
    net = toy_net().eval()
    batches = [*toy_batches(1, size=6), *toy_batches(1, size=2, seed=9)]
    with torch.no_grad():
        expected = sum((net(x) - y).square().sum() for x, y in batches) / 8
    found = validate(net, ToyTask(), ToyLoader(batches), device=CPU, amp_dtype=None, with_loss=True)
    assert found.metrics["val/fit_loss"] == pytest.approx(float(expected), rel=1e-6)


def test_terms_that_are_reported_as_one_are_added_up_under_that_name() -> None:
    class TwoTerms(ToyTask):
        def terms(self, net: nn.Module, batch, facts):  # type: ignore[no-untyped-def]
            x, y = batch
            count = torch.tensor(float(len(x)))
            return {
                "a": per_count((net(x) - y).square().sum(), count, normaliser="n", report="box"),
                "b": per_count(torch.tensor(3.0) * count, count, normaliser="n", report="box"),
                "c": Term(torch.tensor(5.0) * count, count.reshape(1), lambda s: 1 / s[0], "n"),
            }

    net, batches = toy_net().eval(), toy_batches(2)
    with torch.no_grad():
        fit = float(sum((net(x) - y).square().sum() for x, y in batches) / 8)
    metrics = validate(net, TwoTerms(), ToyLoader(batches), device=CPU, amp_dtype=None, with_loss=True).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("val/")} == pytest.approx(
        {"val/box_loss": fit + 3.0, "val/c_loss": 5.0}
    )


def test_a_share_without_pictures_gives_metrics_and_no_losses() -> None:
    found = validate(toy_net(), ToyTask(), ToyLoader([]), device=CPU, amp_dtype=None, with_loss=True)
    assert found.metrics["metrics/seen"] == 0.0
    assert not [name for name in found.metrics if name.startswith("val/")]
