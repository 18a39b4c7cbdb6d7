"""One window of one process against losses written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from libreyolo.engine.step import TrainStep
from libreyolo.interfaces.term import Term, balanced_means, of_sums, per_count
from tests.dist.equality import toys
from tests.graphs import Watched


def objects(rows: toys.Rows) -> dict[str, torch.Tensor]:
    return {"objects": rows.y.sum()}


@pytest.mark.parametrize("kind", list(toys.KINDS))
def test_every_kind_of_term_gives_the_gradient_and_the_value_of_the_loss_as_it_is_written(kind: str) -> None:
    terms, loss = toys.KINDS[kind]
    rows = toys.data()
    expected, value = toys.by_hand(loss if kind != "two normalisers" else lambda p, r: toys.mean_loss(p, r) / 2 + toys.soft_loss(p, r), rows)
    found, shown = toys.gradients(toys.Toy(terms), [rows])
    assert toys.largest_gap(found, expected) < 1e-12
    assert sum(shown.values()) == pytest.approx(value, rel=1e-12)


def test_the_floor_of_a_count_clamps_the_sum() -> None:
    assert float(per_count(torch.ones(()), torch.tensor(0.25), normaliser="n").scale(torch.tensor([0.25]))) == 1.0
    assert float(per_count(torch.ones(()), torch.tensor(4.0), normaliser="n").scale(torch.tensor([4.0]))) == 0.25


def test_a_count_in_half_precision_is_kept_in_float32() -> None:
    term = per_count(torch.ones(()), torch.tensor(2048.0, dtype=torch.float16), normaliser="n")
    assert term.stats.dtype == torch.float32


def test_balanced_means_of_one_empty_group_is_the_mean_of_the_other() -> None:
    term = balanced_means([torch.tensor(6.0), torch.tensor(0.0)], [3, 0], normaliser="g")
    assert float((term.total * term.scale(term.stats)).sum()) == pytest.approx(2.0)
    empty = balanced_means([torch.tensor(0.0), torch.tensor(0.0)], [0, 0], normaliser="g")
    assert float((empty.total * empty.scale(empty.stats)).sum()) == 0.0


def test_a_term_of_sums_reports_its_value_and_not_its_surrogate() -> None:
    sums = torch.tensor([2.0, 3.0, 4.0], requires_grad=True)
    term = of_sums(sums, toys.dice, normaliser="dice")
    assert term.value is not None
    assert float(term.value(term.stats)) == pytest.approx(1 - 5 / 8)
    (term.total * term.scale(term.stats)).sum().backward()
    assert sums.grad is not None
    assert sums.grad.tolist() == pytest.approx([-2 / 8, 5 / 64, 5 / 64])


def test_a_window_of_one_shared_normaliser_is_one_true_batch() -> None:
    rows = toys.data(10)
    expected, value = toys.by_hand(toys.mean_loss, rows)
    found, shown = toys.gradients(toys.Toy(toys.mean_terms), toys.cut(rows, [2, 3, 4, 1]))
    assert toys.largest_gap(found, expected) < 1e-12
    assert shown["mean"] == pytest.approx(value, rel=1e-12)


def test_a_window_whose_normalisers_are_known_from_targets_is_one_true_batch() -> None:
    def terms(p: torch.Tensor, rows: toys.Rows) -> dict[str, Term]:
        return {
            "mean": toys.mean_terms(p, rows)["mean"],
            "other": per_count((rows.weight * p.cos()).sum(), rows.weight.sum(), normaliser="pictures"),
        }

    def stats(rows: toys.Rows) -> dict[str, torch.Tensor]:
        return {"objects": rows.y.sum(), "pictures": rows.weight.sum()}

    rows = toys.data(10)
    expected, value = toys.by_hand(lambda p, r: toys.mean_loss(p, r) + p.cos().mean(), rows)
    found, shown = toys.gradients(toys.Toy(terms, stats), toys.cut(rows, [2, 3, 4, 1]))
    assert toys.largest_gap(found, expected) < 1e-12
    assert sum(shown.values()) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("kind", list(toys.KINDS))
@pytest.mark.parametrize("stats", [lambda rows: {}, objects], ids=["unknown", "known"])
def test_no_graph_of_a_micro_batch_is_alive_when_the_network_is_called_again(kind: str, stats: Any) -> None:
    net = toys.model()
    watched = Watched(net)
    step = TrainStep(net, toys.Toy(toys.KINDS[kind][0], stats), torch.optim.SGD(net.parameters(), lr=0.1), device=torch.device("cpu"), amp_dtype=None)
    for _ in range(2):
        kept = step.backward(toys.cut(toys.data(10), [2, 5, 3]), [2, 5, 3]), step.own
        assert kept and watched.look() == 0
        step.move()
    assert (watched.calls, watched.kept) == (6, 0)


def test_what_terms_of_one_normaliser_share_is_summed_and_scaled_once() -> None:
    scaled: list[torch.Tensor] = []

    def scale(summed: torch.Tensor) -> torch.Tensor:
        scaled.append(summed)
        return summed[0].reciprocal()

    def terms(p: torch.Tensor, rows: toys.Rows) -> dict[str, Term]:
        count = rows.y.sum().reshape(1)
        total = (rows.y * (p - 1).square()).sum()
        return {name: Term(factor * total, count, scale, "objects", report="box") for name, factor in (("a", 0.5), ("b", 1.0), ("c", 0.5))}

    rows = toys.data(10)
    expected, value = toys.by_hand(toys.mean_loss, rows)
    found, shown = toys.gradients(toys.Toy(terms), [rows])
    assert [summed.tolist() for summed in scaled] == [[float(rows.y.sum())]]
    assert toys.largest_gap(found, expected) < 1e-12
    assert shown["box"] == pytest.approx(value, rel=1e-12)


def test_elsewhere_each_micro_batch_is_normalised_by_itself_and_weighted_by_its_pictures() -> None:
    rows = toys.data(10)
    pieces = toys.cut(rows, [2, 5, 3])
    singles = [toys.gradients(toys.Toy(toys.two_terms), [piece]) for piece in pieces]
    expected = [sum(0.1 * n * g[i] for n, (g, _) in zip((2, 5, 3), singles, strict=True)) for i in range(4)]
    found, shown = toys.gradients(toys.Toy(toys.two_terms), pieces)
    assert toys.largest_gap(found, expected) < 1e-12
    assert shown["soft"] == pytest.approx(sum(0.1 * n * s["soft"] for n, (_, s) in zip((2, 5, 3), singles, strict=True)))
    whole, _ = toys.gradients(toys.Toy(toys.two_terms), [rows])
    assert toys.largest_gap(found, whole) > 1e-3  # the rule is not that of a true batch


def test_the_rule_holds_term_by_term_where_targets_decide_some_normalisers_only() -> None:
    rows = toys.data(10)
    pieces = toys.cut(rows, [2, 5, 3])
    from_targets, _ = toys.by_hand(lambda p, r: toys.mean_loss(p, r) / 2, rows)
    softs = [toys.by_hand(toys.soft_loss, piece)[0] for piece in pieces]
    expected = [from_targets[i] + sum(0.1 * n * g[i] for n, g in zip((2, 5, 3), softs, strict=True)) for i in range(4)]
    found, _ = toys.gradients(toys.Toy(toys.two_terms, objects), pieces)
    assert toys.largest_gap(found, expected) < 1e-12


def test_clipping_sees_the_gradient_of_the_whole_window() -> None:
    rows = toys.data(10)
    expected, _ = toys.by_hand(toys.mean_loss, rows)
    norm = torch.cat([g.reshape(-1) for g in expected]).norm()
    found, _ = toys.gradients(toys.Toy(toys.mean_terms), toys.cut(rows, [5, 5]), clip_max_norm=0.1)
    assert toys.largest_gap(found, [g * 0.1 / norm for g in expected]) < 1e-6


def _half_step(net: nn.Module, task: Any = None) -> TrainStep:
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    step = TrainStep(net, task or toys.Toy(toys.mean_terms), optimizer, device=torch.device("cpu"), amp_dtype=torch.float16)
    step.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)  # torch's own first scale overflows these gradients and skips steps until it fits
    return step


def _single(rows: toys.Rows) -> toys.Rows:
    return toys.Rows(rows.x.float(), rows.y.float(), rows.weight.float())


@pytest.mark.parametrize("terms", [toys.mean_terms, toys.two_terms])
def test_a_float16_window_scales_and_unscales_to_the_gradient_of_float32(terms: Any) -> None:
    pieces = [_single(piece) for piece in toys.cut(toys.data(10), [4, 4, 2])]
    expected, shown = toys.gradients(toys.Toy(terms), toys.cut(toys.data(10), [4, 4, 2]))
    net = toys.model().float()
    before = [p.detach().clone() for p in net.parameters()]
    parts, moved = _half_step(net, toys.Toy(terms))(pieces, [4, 4, 2])
    assert moved
    found = [b - p.detach() for b, p in zip(before, net.parameters(), strict=True)]
    assert toys.largest_gap([f.double() for f in found], expected) < 0.02
    assert {n: float(v) for n, v in parts.items()} == pytest.approx(shown, rel=0.02)


def test_a_float16_step_with_infinity_moves_nothing_and_the_next_one_moves() -> None:
    net = toys.model().float()
    step = _half_step(net)
    rows = _single(toys.data())
    before = [p.detach().clone() for p in net.parameters()]
    broken = toys.Rows(torch.full_like(rows.x, float("inf")), rows.y, rows.weight)
    _, moved = step([rows, broken], [8, 8])
    assert not moved
    assert toys.largest_gap(before, [p.detach() for p in net.parameters()]) == 0
    _, moved = step([rows], [8])
    assert moved
    assert toys.largest_gap(before, [p.detach() for p in net.parameters()]) > 0
