"""What is frozen stays as it is, its BatchNorm included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from libreyolo.engine.freeze import freeze, keep_frozen_norms_still, parts
from libreyolo.errors import UserError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def frozen(net: nn.Module) -> list[str]:
    return [name for name, p in net.named_parameters() if not p.requires_grad]


def test_parts_are_counted_through_the_children_of_the_children() -> None:
    assert parts(Net()) == ["backbone.0", "backbone.1", "backbone.2", "head"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (None, []),
        (0, []),
        ([], []),
        (False, []),
        (2, ["backbone.0.weight", "backbone.0.bias", "backbone.1.weight", "backbone.1.bias"]),
        ("head", ["head.weight", "head.bias"]),
        ("backbone.0.bias", ["backbone.0.bias"]),
        (["backbone.1", "head.bias"], ["backbone.1.weight", "backbone.1.bias", "head.bias"]),
        ([3, 0], ["backbone.0.weight", "backbone.0.bias", "head.weight", "head.bias"]),
    ],
)
def test_a_number_a_name_or_a_list_freezes_exactly_those_parts(selection: object, expected: list[str]) -> None:
    net = Net()
    freeze(net, selection)  # type: ignore[arg-type]
    assert frozen(net) == expected


def test_a_name_does_not_freeze_another_that_begins_like_it() -> None:
    net = nn.ModuleDict({"head": nn.Linear(1, 1), "head2": nn.Linear(1, 1)})
    freeze(net, "head")
    assert frozen(net) == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("backbon", "freeze=backbon is no part of the network. Did you mean 'backbone'? Parts: backbone.0, backbone.1, backbone.2, head."),
        (["head", "neck"], "freeze=neck is no part"),
        (9, "freeze=9 asks for more parts than the network has: 0 to 4."),
        ([4], "freeze=4 is no part"),
        (4, "freeze=4 leaves no parameter to train"),
        (["backbone", "head"], "leaves no parameter to train"),
    ],
)
def test_what_cannot_be_frozen_is_told_in_a_sentence(selection: object, words: str) -> None:
    with pytest.raises(UserError) as error:
        freeze(Net(), selection)  # type: ignore[arg-type]
    assert words in str(error.value)


def test_a_frozen_batchnorm_keeps_its_statistics_while_the_rest_trains() -> None:
    net = Net()
    freeze(net, 2)
    net.train()
    keep_frozen_norms_still(net)
    before = {name: tensor.clone() for name, tensor in net.backbone[1].state_dict().items()}
    net(torch.randn(8, 2)).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.backbone[1].state_dict().items())
    assert net.head.training
    assert net.head.weight.grad is not None


def test_a_batchnorm_that_is_not_frozen_goes_on_tracking() -> None:
    net = Net()
    freeze(net, "backbone.0")
    net.train()
    keep_frozen_norms_still(net)
    net(torch.randn(8, 2))
    assert net.backbone[1].num_batches_tracked == 1
