"""The loss of fomo: weighted cross-entropy, as torch takes it, from sums; and what decode makes of logits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from libreyolo.errors import UserError
from libreyolo.models.fomo import FAMILY
from libreyolo.models.fomo.decode import locate
from libreyolo.models.fomo.loss import FOMOLoss
from libreyolo.models.fomo.network import SamePad, build, infer
from libreyolo.ops.cells import target_grid
from tests.family.batches import detection_batch

TARGETS = [[(1, 0.1, 0.1, 0.2, 0.2), (0, 0.5, 0.5, 0.8, 0.9)], [], [(2, 0.9, 0.0, 1.0, 0.1)]]
PICTURES = torch.rand(3, 3, 32, 40, generator=torch.Generator().manual_seed(1)).double()


def logits(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 4, 4, 5, generator=torch.Generator().manual_seed(2)).double().requires_grad_()


def value(output: torch.Tensor, **given: object) -> torch.Tensor:
    (term,) = FOMOLoss(3, fg_weight=100.0).terms(output, detection_batch(PICTURES, TARGETS, **given)).values()  # type: ignore[arg-type]
    return term.total * term.scale(term.stats)


def test_it_is_the_weighted_mean_of_all_cells() -> None:
    output = logits()
    batch = detection_batch(PICTURES, TARGETS)
    grid = target_grid(batch.boxes, batch.labels, batch.valid, (4, 5), 8)
    assert int((grid > 0).sum()) == 3
    expected = F.cross_entropy(output, grid, weight=torch.tensor([1.0, 100.0, 100.0, 100.0]).double())
    assert float(value(output).detach()) == pytest.approx(float(expected.detach()), rel=1e-9)


def test_a_hand_value() -> None:
    """Uniform logits of 4 channels: every cell costs log 4, whatever its weight."""
    assert float(value(torch.zeros(3, 4, 4, 5))) == pytest.approx(math.log(4))


def test_a_picture_of_weight_0_counts_nowhere() -> None:
    both = logits()
    whole, alone = value(both, weight=[1, 0, 1]), value(both, weight=[1, 1, 1])
    changed = both.detach().clone()
    changed[1] += 3.0 * torch.arange(4)[:, None, None]
    assert float(value(changed, weight=[1, 0, 1])) == float(whole.detach())
    assert float(whole.detach()) != float(alone.detach())
    (gradient,) = torch.autograd.grad(whole, both)
    assert not gradient[1].any()
    assert gradient[0].any()


def test_sums_of_parts_are_those_of_the_whole_and_the_targets_alone_know_the_normaliser() -> None:
    output, criterion = logits(), FOMOLoss(3, fg_weight=7.0)
    whole = criterion.terms(output, detection_batch(PICTURES, TARGETS))["ce"]
    parts = [criterion.terms(output[i : i + 1], detection_batch(PICTURES[i : i + 1], TARGETS[i : i + 1]))["ce"] for i in range(3)]
    assert float(sum(p.total.detach() for p in parts)) == pytest.approx(float(whole.total.detach()), rel=1e-12)
    assert sum(p.stats for p in parts).tolist() == whole.stats.tolist() == [57 + 3 * 7.0]
    assert criterion.target_stats(detection_batch(PICTURES, TARGETS))["cells"].tolist() == 78.0


def one_picture(cells: dict[tuple[int, int], list[float]], classes: int = 2) -> torch.Tensor:
    """Return logits whose softmax at (row, column) is the given probabilities, and background elsewhere."""
    output = torch.zeros(1, 1 + classes, 6, 6)
    output[:, 0] = 20.0
    for (row, column), probabilities in cells.items():
        output[0, :, row, column] = torch.tensor(probabilities).log()
    return output


def test_decode_takes_the_best_class_that_is_not_background_and_suppresses_across_classes() -> None:
    output = one_picture({(1, 2): [0.1, 0.6, 0.3], (1, 3): [0.1, 0.2, 0.7], (4, 0): [0.5, 0.3, 0.2], (5, 5): [0.8, 0.1, 0.1]})
    [(cells, scores, labels, kept)] = locate(output, conf=0.25, radii=[1])
    assert cells.tolist() == [[3, 1], [0, 4]]
    assert scores.tolist() == pytest.approx([0.7, 0.3])
    assert labels.tolist() == [1, 0]
    assert kept.all()


def test_every_radius_says_what_it_keeps_and_a_score_at_the_threshold_is_none() -> None:
    output = one_picture({(0, 0): [0.1, 0.9, 0.0], (0, 2): [0.2, 0.8, 0.0], (0, 4): [0.3, 0.7, 0.0], (5, 5): [0.5, 0.5, 0.0]})
    [(cells, _, _, kept)] = locate(output, conf=0.5, radii=[1, 2])
    assert cells.tolist() == [[0, 0], [2, 0], [4, 0]]
    assert kept.tolist() == [[True, True], [True, False], [True, True]]


def test_only_asked_classes_are_candidates_so_none_of_the_others_hides_them() -> None:
    output = one_picture({(1, 2): [0.1, 0.6, 0.3], (1, 3): [0.1, 0.2, 0.7]})
    [(cells, _, labels, _)] = locate(output, conf=0.25, radii=[1], classes=[0])
    assert (cells.tolist(), labels.tolist()) == ([[2, 1]], [0])


def test_nothing_found_is_empty() -> None:
    [(cells, scores, labels, kept)] = locate(one_picture({}), conf=0.25, radii=[1, 2])
    assert (cells.shape, scores.shape, labels.shape, kept.shape) == ((0, 2), (0,), (0,), (0, 2))


@pytest.mark.parametrize(("size", "nc"), [("s", 1), ("m", 3), ("l", 6)])
def test_tensors_alone_say_size_and_classes(size: str, nc: int) -> None:
    state = build(size, nc).state_dict()
    assert infer(state) == {"size": size, "nc": nc}
    assert not FAMILY.accepts({**state, "more": torch.zeros(1)})
    assert not FAMILY.accepts({name: tensor for name, tensor in state.items() if name != "head.bias"})


def test_padding_puts_the_odd_pixel_below_and_right() -> None:
    layer = SamePad(1, 1, 3, 2)
    torch.nn.init.ones_(layer.conv.weight)
    picture = torch.zeros(1, 1, 4, 4)
    picture[0, 0, 0, 0] = 1.0
    assert layer(picture)[0, 0].tolist() == [[1.0, 0.0], [0.0, 0.0]]  # a symmetric padding of 1 would see it in one window as well, of (-1, -1)
    picture[0, 0, 0, 0], picture[0, 0, 2, 2] = 0.0, 1.0
    assert layer(picture)[0, 0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(("size", "nc", "words"), [("x", 1, "fomo has no size 'x'"), ("s", 0, "fomo needs at least 1 class")])
def test_a_size_or_class_count_that_is_not_there_is_told(size: str, nc: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(size, nc)
