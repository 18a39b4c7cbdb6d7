"""Candidate selection and class-wise suppression, against hand cases and a slow loop."""

from __future__ import annotations

import torch

from libreyolo.ops.iou import iou
from libreyolo.ops.nms import Candidates, class_wise_nms, detections_of, select_candidates

BOXES = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0], [0.0, 0.0, 10.0, 9.0]])
SCORES = torch.tensor([[0.9, 0.3], [0.5, 0.5], [0.8, 0.2]])


def rows(candidates: Candidates) -> list[tuple[float, int]]:
    return [(round(score, 4), label) for score, label in zip(candidates.scores.tolist(), candidates.labels.tolist(), strict=True)]


def test_every_class_above_conf_is_a_candidate_best_first_and_conf_itself_is_not() -> None:
    found = select_candidates(BOXES, SCORES, conf=0.3)
    assert rows(found) == [(0.9, 0), (0.8, 0), (0.5, 0), (0.5, 1)]
    assert found.boxes.tolist() == BOXES[[0, 2, 1, 1]].tolist()


def test_single_label_takes_the_best_class_of_an_anchor() -> None:
    assert rows(select_candidates(BOXES, SCORES, conf=0.1, multi_label=False)) == [(0.9, 0), (0.8, 0), (0.5, 0)]


def test_asked_classes_are_kept_before_the_cut() -> None:
    assert rows(select_candidates(BOXES, SCORES, conf=0.1, classes=[1], max_candidates=2)) == [(0.5, 1), (0.3, 1)]
    assert rows(select_candidates(BOXES, SCORES, conf=0.1, max_candidates=2)) == [(0.9, 0), (0.8, 0)]


def test_no_candidate_gives_empty_tensors() -> None:
    kept = class_wise_nms(select_candidates(BOXES, SCORES, conf=0.95), iou=0.5, max_det=5)
    assert kept.boxes.shape == (0, 4)
    assert kept.labels.dtype == torch.int64


def test_overlap_suppresses_within_a_class_only_and_max_det_cuts_the_end() -> None:
    candidates = Candidates(BOXES[[0, 2, 2, 1]], torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([0, 0, 1, 0]))
    assert rows(class_wise_nms(candidates, iou=0.5, max_det=9)) == [(0.9, 0), (0.7, 1), (0.6, 0)]
    assert rows(class_wise_nms(candidates, iou=0.95, max_det=9)) == [(0.9, 0), (0.8, 0), (0.7, 1), (0.6, 0)]
    assert rows(class_wise_nms(candidates, iou=0.5, max_det=2)) == [(0.9, 0), (0.7, 1)]


def slow_nms(candidates: Candidates, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in range(len(candidates.scores)):
        rivals = [j for j in kept if candidates.labels[j] == candidates.labels[i]]
        if all(float(iou(candidates.boxes[j].double(), candidates.boxes[i].double())) <= threshold for j in rivals):
            kept.append(i)
    return kept


def test_random_boxes_far_from_the_origin_match_a_slow_loop() -> None:
    rng = torch.Generator().manual_seed(0)
    corner = torch.rand(300, 2, generator=rng) * 40 + 1000
    boxes = torch.cat((corner, corner + 5 + torch.rand(300, 2, generator=rng) * 20), dim=1)
    scores = torch.rand(300, generator=rng).sort(descending=True).values
    candidates = Candidates(boxes, scores, torch.randint(0, 3, (300,), generator=rng))
    expected = slow_nms(candidates, 0.3)
    kept = class_wise_nms(candidates, iou=0.3, max_det=300)
    assert 3 < len(expected) < 250
    assert torch.equal(kept.boxes, boxes[expected])
    assert torch.equal(kept.scores, scores[expected])


def test_every_picture_of_a_batch_gets_its_own_detections() -> None:
    boxes, scores = torch.stack([BOXES, BOXES]), torch.stack([SCORES, torch.zeros_like(SCORES)])
    first, second = detections_of(boxes, scores, conf=0.1, iou=0.5, max_det=2, multi_label=False)
    alone = class_wise_nms(select_candidates(BOXES, SCORES, conf=0.1, multi_label=False), iou=0.5, max_det=2)
    assert all(torch.equal(found, expected) for found, expected in zip(first, alone, strict=True))
    assert [len(part) for part in second] == [0, 0, 0]
