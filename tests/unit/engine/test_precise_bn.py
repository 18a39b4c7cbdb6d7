"""BatchNorm statistics computed anew, against means by hand."""

from __future__ import annotations

import torch

from libreyolo.engine.precise_bn import recompute_statistics
from tests.unit.engine.toy import ToyLoader, ToyTask, toy_batches, toy_net


def test_statistics_become_the_mean_over_batches_of_those_that_each_batch_has() -> None:
    net, batches = toy_net(), toy_batches(3)
    with torch.no_grad():
        net[1].running_mean.fill_(50.0)
    recompute_statistics(net, ToyTask(), ToyLoader(batches), 12)
    with torch.no_grad():
        inputs = [net[0](x) for x, _ in batches]
    torch.testing.assert_close(net[1].running_mean, torch.stack([x.mean(0) for x in inputs]).mean(0))
    torch.testing.assert_close(net[1].running_var, torch.stack([x.var(0, unbiased=True) for x in inputs]).mean(0))


def test_it_stops_after_the_pictures_that_were_asked_for() -> None:
    net, batches = toy_net(), toy_batches(3)
    recompute_statistics(net, ToyTask(), ToyLoader(batches), 5)  # two batches of four
    with torch.no_grad():
        inputs = [net[0](x) for x, _ in batches[:2]]
    torch.testing.assert_close(net[1].running_mean, torch.stack([x.mean(0) for x in inputs]).mean(0))


def test_weights_and_momentum_stay_and_the_network_is_left_for_evaluation() -> None:
    net = toy_net().train()
    before = {name: p.clone() for name, p in net.named_parameters()}
    recompute_statistics(net, ToyTask(), ToyLoader(toy_batches(2)), 8)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert net[1].momentum == 0.1
    assert not any(module.training for module in net.modules())


def test_it_reads_the_pictures_of_the_epoch_that_it_is_told() -> None:
    loader = ToyLoader(toy_batches(2))
    recompute_statistics(toy_net(), ToyTask(), loader, 8, epoch=7)
    assert loader.epochs_read == [7]


def test_a_network_without_batchnorm_reads_nothing() -> None:
    loader = ToyLoader(toy_batches(2))
    recompute_statistics(torch.nn.Sequential(torch.nn.Linear(2, 1)), ToyTask(), loader, 8)
    assert loader.epochs_read == []
