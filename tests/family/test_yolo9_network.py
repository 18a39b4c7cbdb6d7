"""yolo9's construction: fresh heads, tower widths, reading a state dict, and when the PGI branch runs."""

from __future__ import annotations

import math

import pytest
import torch

from libreyolo.errors import UserError
from libreyolo.models.yolo9 import FAMILY
from libreyolo.models.yolo9.network import CLASS_LAYERS, YOLO9, build, infer
from tests.family.parity.fill import pictures


def on_meta(size: str, nc: int, *, tower_classes: int | None = None, aux: bool = False) -> YOLO9:
    with torch.device("meta"):
        return build(size, nc, tower_classes=tower_classes, aux=aux)


def test_fresh_heads_start_from_the_class_prior_and_box_bias_of_one() -> None:
    net = build("t", 3, aux=True)
    for head in ("head", "aux_head"):
        for level, stride in enumerate((8, 16, 32)):
            box = net.get_parameter(f"{head}.cv2.{level}.2.bias")
            cls = net.get_parameter(f"{head}.cv3.{level}.2.bias")
            assert torch.equal(box, torch.ones(64))
            assert torch.allclose(cls, torch.full((3,), math.log(5 / 3 / (640 / stride) ** 2)))


@pytest.mark.parametrize(
    ("size", "nc", "tower_classes", "width"),
    [("t", 2, None, 64), ("t", 80, None, 80), ("t", 365, None, 100), ("t", 2, 80, 80), ("s", 80, None, 128), ("c", 365, None, 256)],
)
def test_tower_width_follows_the_classes_it_was_made_for_and_infer_reads_it_back(size: str, nc: int, tower_classes: int | None, width: int) -> None:
    net = on_meta(size, nc, tower_classes=tower_classes)
    assert net.get_parameter("head.cv3.0.0.conv.weight").shape[0] == width
    assert infer(net.state_dict()) == {"size": size, "nc": nc, "tower_classes": width, "aux": False}


def test_class_layers_are_exactly_what_depends_on_the_class_count() -> None:
    few = on_meta("s", 2, tower_classes=80, aux=True).state_dict()
    many = on_meta("s", 80, aux=True).state_dict()
    changed = {name for name in few if few[name].shape != many[name].shape}
    assert changed == {name for name in few if name.startswith(tuple(f"{layer}." for layer in CLASS_LAYERS))}
    assert len(changed) == 2 * len(CLASS_LAYERS)


def test_infer_names_what_is_off() -> None:
    state = on_meta("t", 80).state_dict()
    for spoil, message in [
        (lambda s: s.pop("backbone.conv0.conv.weight"), r"no convolution backbone\.conv0\.conv\.weight"),
        (lambda s: s.pop("neck.down1.cv.bn.bias"), r"neck\.down1\.cv\.bn\.bias is missing"),
        (lambda s: s.update({"head.one2one_cv2.0.0.conv.weight": torch.empty(64)}), r"it has no head\.one2one_cv2"),
        (lambda s: s.update({"head.cv2.0.2.bias": torch.empty(32)}), r"head\.cv2\.0\.2\.bias has shape \(32,\), expected \(64,\)"),
        (lambda s: s.update({"backbone.conv0.conv.weight": torch.empty(48, 3, 3, 3)}), r"no size has 48 channels"),
    ]:
        spoiled = dict(state)
        spoil(spoiled)
        with pytest.raises(UserError, match=message):
            infer(spoiled)
        assert not FAMILY.accepts(spoiled)
    assert FAMILY.accepts(state)
    assert FAMILY.accepts({name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")})
    assert not FAMILY.accepts({})


def test_build_refuses_unknown_sizes_and_no_classes() -> None:
    with pytest.raises(UserError, match="no size 'x'; use one of t, s, m, c"):
        build("x", 80)
    with pytest.raises(UserError, match="at least 1 class, not nc=0"):
        build("t", 0)


def test_the_pgi_branch_runs_only_while_training_and_leaves_the_main_maps_alone() -> None:
    torch.manual_seed(0)
    net = build("t", 5, aux=True).eval()
    images = pictures(64, 96)
    with torch.no_grad():
        evaluated = net(images)
        for module in net.modules():
            module.training = not isinstance(module, torch.nn.BatchNorm2d)
        trained = net(images)
    assert evaluated.aux is None
    assert [tuple(level.shape) for level in trained.main] == [(2, 69, 8, 12), (2, 69, 4, 6), (2, 69, 2, 3)]
    assert trained.aux is not None
    assert [level.shape for level in trained.aux] == [level.shape for level in trained.main]
    for one, other in zip(evaluated.main, trained.main, strict=True):
        assert torch.equal(one, other)


def test_channels_last_gives_the_same_maps() -> None:
    torch.manual_seed(0)
    net = build("t", 5).eval()
    images = pictures(64, 64)
    with torch.no_grad():
        plain = net(images).main
        moved = net.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last)).main
    assert moved[0].is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(plain, moved, strict=True):
        assert torch.allclose(one, other, atol=1e-4, rtol=1e-4)
