"""Deformable attention reads where it says it does."""

from __future__ import annotations

import pytest
import torch

from libreyolo.nn.deformable import DeformableAttention, sample
from libreyolo.nn.transformer import inverse_sigmoid, sine_position

SHAPES = [(2, 4), (1, 2)]


def test_a_point_at_a_cell_s_centre_reads_that_cell_of_its_level_and_head() -> None:
    values = torch.arange(10.0).reshape(1, 10, 1, 1) + torch.tensor([0.0, 100.0]).reshape(1, 1, 2, 1)  # [1, 10 cells, 2 heads, 1]
    places = torch.zeros(1, 1, 2, 2, 1, 2)
    places[..., 0, 0, :] = torch.tensor([0.625, 0.75])  # level 0: column 2 of 4, row 1 of 2
    places[..., 1, 0, :] = torch.tensor([0.75, 0.5])  # level 1: column 1 of 2
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]]).reshape(1, 1, 2, 2)
    assert sample(values, SHAPES, places, weights).flatten().tolist() == pytest.approx([0.25 * 6 + 0.75 * 9, 106.0])


def test_a_point_outside_reads_zero() -> None:
    places = torch.full((1, 1, 1, 2, 1, 2), 1.9)
    assert sample(torch.ones(1, 10, 1, 1), SHAPES, places, torch.full((1, 1, 1, 2), 0.5)).item() == 0


def test_fresh_heads_look_around_the_box_in_steps_of_its_half() -> None:
    module = DeformableAttention(16, num_levels=1, num_heads=4, num_points=2)
    offsets = module.sampling_offsets.bias.reshape(4, 2, 2)
    assert offsets[0].flatten().tolist() == pytest.approx([1, 0, 2, 0], abs=1e-6)
    assert offsets[1].flatten().tolist() == pytest.approx([0, 1, 0, 2], abs=1e-6)
    # Head 0 at a box of width 0.5 around (0.375, 0.5): points at 1/2 and 2/2 of half the width right of it, columns 2 and 3 of 4.
    with torch.no_grad():
        module.value_proj.weight.copy_(torch.eye(16))
        module.output_proj.weight.copy_(torch.eye(16))
    tokens = torch.arange(4.0).reshape(1, 4, 1).expand(1, 4, 16)
    read = module(torch.zeros(1, 1, 16), torch.tensor([[[0.375, 0.5, 0.5, 0.5]]]), tokens, [(1, 4)])
    assert read[0, 0, 0].item() == pytest.approx((1.5 + 2.0) / 2)


def test_rows_and_columns_have_their_own_half_of_the_position() -> None:
    position = sine_position(3, 5, 8, torch.device("cpu")).reshape(3, 5, 8)
    assert torch.equal(position[1, 0, :4], position[1, 4, :4])
    assert torch.equal(position[0, 2, 4:], position[2, 2, 4:])
    row, column = torch.tensor([1.0, 0.01]), torch.tensor([2.0, 0.02])
    expected = torch.cat((row.sin(), row.cos(), column.sin(), column.cos()))
    assert torch.allclose(position[1, 2], expected, atol=1e-6)


def test_the_logit_undoes_the_sigmoid_and_stays_finite_at_both_ends() -> None:
    assert inverse_sigmoid(torch.tensor([-3.0, 0.5, 0.75]).sigmoid()).tolist() == pytest.approx([-3.0, 0.5, 0.75], abs=1e-5)
    assert inverse_sigmoid(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([-11.5129, 11.5129], abs=1e-3)
