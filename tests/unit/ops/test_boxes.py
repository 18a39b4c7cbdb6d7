"""Box formats, clipping and the anchor grid."""

from __future__ import annotations

import torch

from libreyolo.ops.boxes import (
    clip_boxes,
    clip_boxes_to,
    cxcywh_to_xyxy,
    grid_centres,
    xyxy_to_cxcywh,
)


def test_corner_and_centre_boxes_convert_by_hand_and_round_trip() -> None:
    corners = torch.tensor([[1.0, 2.0, 5.0, 10.0], [0.0, 0.0, 0.0, 0.0]])
    centres = torch.tensor([[3.0, 6.0, 4.0, 8.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(xyxy_to_cxcywh(corners), centres)
    assert torch.equal(cxcywh_to_xyxy(centres), corners)
    assert xyxy_to_cxcywh(torch.empty(2, 0, 4)).shape == (2, 0, 4)


def test_clipping_keeps_each_coordinate_in_its_side() -> None:
    boxes = torch.tensor([[-5.0, 3.0, 50.0, 200.0], [70.0, -9.0, 90.0, -1.0]])
    assert clip_boxes(boxes, height=100, width=60).tolist() == [[0, 3, 50, 100], [60, 0, 60, 0]]


def test_clipping_to_regions_uses_the_region_of_the_picture() -> None:
    boxes = torch.tensor([[[-5.0, 3.0, 50.0, 200.0]], [[-5.0, 3.0, 50.0, 200.0]]])
    regions = torch.tensor([[0.0, 0.0, 40.0, 100.0], [10.0, 5.0, 60.0, 80.0]])
    assert clip_boxes_to(boxes, regions).tolist() == [[[0, 3, 40, 100]], [[10, 5, 50, 80]]]


def test_grid_is_row_major_per_level_with_centres_in_the_middle_of_cells() -> None:
    centres, strides = grid_centres([(2, 3), (0, 2), (1, 1)], [8, 4, 16])
    assert centres.tolist() == [[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12], [8, 8]]
    assert strides.tolist() == [[8]] * 6 + [[16]]
