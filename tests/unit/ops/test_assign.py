"""The task-aligned assigner against a slow loop over pictures, targets and anchors, and its edge cases by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from libreyolo.ops.assign import Assignment, task_aligned
from libreyolo.ops.boxes import grid_centres
from libreyolo.ops.iou import ciou

NUM_CLASSES = 4


class Scene(NamedTuple):
    boxes: Tensor
    probabilities: Tensor
    centres: Tensor
    target_boxes: Tensor
    target_labels: Tensor
    target_valid: Tensor
    reach: Tensor


def scene(seed: int, *, smallest: float, largest: float, num_targets: int = 6) -> Scene:
    """Two pictures of 64 px with six and three targets; predictions near the targets' size so that most metrics are positive."""
    rng = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    centres, strides = grid_centres([(8, 8), (4, 4)], [8, 16])
    centres, strides = centres.double(), strides.double()
    before, after = (rand(2, len(centres), 4) * largest).split(2, dim=-1)
    boxes = torch.cat((centres - before, centres + after), dim=-1)
    corner = (rand(2, num_targets, 2) * 48).round()  # whole pixels: some sides run through centres
    target_boxes = torch.cat((corner, corner + (smallest + rand(2, num_targets, 2) * (largest - smallest)).round()), dim=-1)
    valid = torch.arange(num_targets) < torch.tensor([[num_targets], [num_targets // 2]])
    labels = torch.randint(0, NUM_CLASSES, (2, num_targets), generator=rng) * valid
    return Scene(boxes, rand(2, len(centres), NUM_CLASSES), centres, target_boxes * valid.unsqueeze(-1), labels, valid, strides.squeeze(1) * 3)


def slow_assignment(s: Scene, topk: int) -> list[dict[int, tuple[int, float]]]:
    """Return per picture {anchor: (target, soft target)} by the rules as they are told, one at a time."""
    result = []
    for b in range(len(s.boxes)):
        wishes: dict[int, list[int]] = {}
        overlap, metric = {}, {}
        targets = [n for n in range(s.target_valid.shape[1]) if s.target_valid[b, n]]
        for n in targets:
            x1, y1, x2, y2 = s.target_boxes[b, n].tolist()
            fitting = []
            for a, (x, y) in enumerate(s.centres.tolist()):
                overlap[n, a] = max(0.0, float(ciou(s.boxes[b, a], s.target_boxes[b, n])))
                metric[n, a] = overlap[n, a] ** 6 * float(s.probabilities[b, a, s.target_labels[b, n]]) ** 0.5
                sides = (x - x1, y - y1, x2 - x, y2 - y)
                if min(sides) >= 0 and max(sides) <= float(s.reach[a]) and metric[n, a] > 0:
                    fitting.append(a)
            best_anywhere = max(range(len(s.centres)), key=lambda a, n=n: metric[n, a])
            chosen = sorted(fitting, key=lambda a, n=n: -metric[n, a])[:topk] or [best_anywhere]
            for a in chosen:
                if metric[n, a] > 0:
                    wishes.setdefault(a, []).append(n)
        owner = {a: max(rivals, key=lambda n, a=a: (overlap[n, a], -n)) for a, rivals in wishes.items()}
        picture = {}
        for a, n in owner.items():
            own = [i for i, m in owner.items() if m == n]
            best_metric, best_overlap = max(metric[n, i] for i in own), max(overlap[n, i] for i in own)
            picture[a] = (n, metric[n, a] / (best_metric + 1e-9) * best_overlap)
        result.append(picture)
    return result


def as_dicts(found: Assignment) -> list[dict[int, tuple[int, float]]]:
    pictures: list[dict[int, tuple[int, float]]] = [{} for _ in found.anchors]
    for b, n, k in found.used.nonzero().tolist():
        anchor = int(found.anchors[b, n, k])
        assert anchor not in pictures[b], "an anchor was given twice"
        pictures[b][anchor] = (n, float(found.weight[b, n, k]))
    return pictures


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("smallest", "largest"), [(8, 40), (1, 6)], ids=["large", "tiny"])
def test_matches_a_slow_loop(seed: int, smallest: float, largest: float) -> None:
    s = scene(seed, smallest=smallest, largest=largest)
    found = as_dicts(task_aligned(*s[:6], reach=s.reach, topk=5))
    expected = slow_assignment(s, topk=5)
    for picture, reference in zip(found, expected, strict=True):
        assert {a: n for a, (n, _) in picture.items()} == {a: n for a, (n, _) in reference.items()}
        for a, (_, weight) in reference.items():
            assert picture[a][1] == pytest.approx(weight, rel=1e-6, abs=1e-9)


def test_the_scenes_hold_conflicts_fallbacks_and_limits() -> None:
    """Guards the test above: dropping any of the rules would change what it sees."""
    large, tiny = scene(0, smallest=8, largest=40), scene(0, smallest=1, largest=6)
    without_reach = as_dicts(task_aligned(*large[:6], topk=5))
    assert without_reach != as_dicts(task_aligned(*large[:6], reach=large.reach, topk=5))
    free = sum(len(p) for s in (large,) for p in as_dicts(task_aligned(*s[:6], reach=s.reach, topk=5)))
    wanted = sum(
        int(task_aligned(*(t[:, n : n + 1] if i > 2 else t for i, t in enumerate(large[:6])), reach=large.reach, topk=5).used.sum()) for n in range(6)
    )
    assert free < wanted, "no conflict"
    x, y = tiny.centres.unbind(-1)
    x1, y1, x2, y2 = tiny.target_boxes.unsqueeze(-2).unbind(-1)
    holds_centre = ((x >= x1) & (y >= y1) & (x <= x2) & (y <= y2)).any(-1)
    used = task_aligned(*tiny[:6], topk=5).used.any(-1)
    assert (used & ~holds_centre & tiny.target_valid).any(), "no fallback"


def test_result_is_free_of_padding_and_of_the_other_pictures() -> None:
    s = scene(1, smallest=8, largest=40)
    together = task_aligned(*s[:6], topk=5)
    alone = task_aligned(s.boxes[1:], s.probabilities[1:], s.centres, s.target_boxes[1:, :3], s.target_labels[1:, :3], s.target_valid[1:, :3], topk=5)
    assert not together.used[1, 3:].any()
    assert torch.equal(together.weight[1, :3], alone.weight[0])
    assert (together.weight[1, 3:] == 0).all()


def test_no_target_assigns_nothing() -> None:
    s = scene(2, smallest=8, largest=40)
    found = task_aligned(*s[:5], torch.zeros_like(s.target_valid))
    assert not found.used.any()
    assert float(found.weight.sum()) == 0


def test_fewer_anchors_than_topk_and_predictions_without_overlap_stay_finite() -> None:
    centres = torch.tensor([[4.0, 4.0], [12.0, 4.0]])
    far = torch.full((1, 2, 4), 500.0)
    target = torch.tensor([[[0.0, 0.0, 16.0, 16.0]]])
    found = task_aligned(far, torch.full((1, 2, 1), 0.5), centres, target, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    assert found.weight.shape == (1, 1, 2)
    assert (found.weight == 0).all()


def test_equal_targets_share_no_anchor_and_the_first_wins() -> None:
    s = scene(3, smallest=20, largest=40, num_targets=2)
    twice = s.target_boxes[:1, [0, 0]]
    valid = torch.ones(1, 2, dtype=torch.bool)
    found = task_aligned(s.boxes[:1], s.probabilities[:1], s.centres, twice, torch.zeros(1, 2, dtype=torch.int64), valid, topk=5)
    assert found.used[0, 0].any()
    assert not found.used[0, 1].any()
