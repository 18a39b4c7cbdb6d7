"""yolox's construction: fresh heads, what depends on the classes, reading a state dict, and the two doors' defaults."""

from __future__ import annotations

import pytest
import torch

from libreyolo import LibreYOLO, schema
from libreyolo.errors import UserError
from libreyolo.models.yolox import FAMILY
from libreyolo.models.yolox.decode import detect
from libreyolo.models.yolox.network import CLASS_LAYERS, SCALES, YOLOX, Focus, build, infer
from libreyolo.models.yolox.recipe import YOLOXRecipe
from libreyolo.recipe import DetectionRecipe, recipe_fields
from libreyolo.weights import parse_published, transfer
from tests.family.parity.fill import pictures


def on_meta(size: str, nc: int) -> YOLOX:
    with torch.device("meta"):
        return build(size, nc)


def test_fresh_heads_give_every_object_and_class_one_percent() -> None:
    net = build("n", 3)
    for level in range(3):
        for name, count in (("obj_preds", 1), ("cls_preds", 3)):
            bias = net.get_parameter(f"head.{name}.{level}.bias")
            assert torch.allclose(bias.detach().sigmoid(), torch.full((count,), 0.01))


def test_class_layers_are_exactly_what_depends_on_the_class_count() -> None:
    few, many = on_meta("n", 2).state_dict(), on_meta("n", 80).state_dict()
    changed = {name for name in few if few[name].shape != many[name].shape}
    assert changed == {f"{layer}.{kind}" for layer in CLASS_LAYERS for kind in ("weight", "bias")}


def test_a_transfer_to_other_classes_takes_all_but_the_class_layers() -> None:
    torch.manual_seed(0)
    source, target = build("n", 80), build("n", 2)
    taken, wanted = transfer(target, source.state_dict())
    assert wanted - taken == 2 * len(CLASS_LAYERS)
    assert torch.equal(target.head.stems[0].conv.weight, source.head.stems[0].conv.weight)  # type: ignore[union-attr]
    assert target.head.cls_preds[0].weight.shape == (2, 64, 1, 1)


def test_infer_names_what_is_off() -> None:
    state = on_meta("n", 80).state_dict()
    stem = "backbone.backbone.stem.conv.conv.weight"
    for spoil, message in [
        (lambda s: s.pop(stem), rf"no convolution {stem}"),
        (lambda s: s.pop("backbone.C3_n4.conv3.bn.bias"), r"backbone\.C3_n4\.conv3\.bn\.bias is missing"),
        (lambda s: s.update({"head.extra": torch.empty(64)}), r"it has no head\.extra"),
        (lambda s: s.update({"head.reg_preds.0.bias": torch.empty(8)}), r"head\.reg_preds\.0\.bias has shape \(8,\), expected \(4,\)"),
        (lambda s: s.update({stem: torch.empty(20, 12, 3, 3)}), r"no size has 20 channels"),
    ]:
        spoiled = dict(state)
        spoil(spoiled)
        with pytest.raises(UserError, match=message):
            infer(spoiled)
        assert not FAMILY.accepts(spoiled)
    assert FAMILY.accepts({name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")})
    assert not FAMILY.accepts({})


def test_build_refuses_unknown_sizes_and_no_classes() -> None:
    with pytest.raises(UserError, match="no size 'c'; use one of n, t, s, m, l, x"):
        build("c", 80)
    with pytest.raises(UserError, match="at least 1 class, not nc=0"):
        build("n", 0)


def test_the_stem_sees_every_pixel_once() -> None:
    """Channels of the four pixels of a square: top left, bottom left, top right, bottom right, three colours each."""
    seen: list[torch.Tensor] = []
    stem = Focus(4)
    stem.conv.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    stem(torch.arange(48.0).reshape(1, 3, 4, 4))
    assert seen[0].shape == (1, 12, 2, 2)
    assert seen[0][0, :, 0, 0].tolist() == [0, 16, 32, 4, 20, 36, 1, 17, 33, 5, 21, 37]
    assert seen[0][0, :, 1, 1].tolist() == [10, 26, 42, 14, 30, 46, 11, 27, 43, 15, 31, 47]


def test_a_rectangle_and_channels_last_give_the_same_maps() -> None:
    torch.manual_seed(0)
    net = build("n", 5).eval()
    images = pictures(64, 96) * 255
    with torch.no_grad():
        plain = net(images)
        moved = net.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    assert [tuple(level.shape) for level in plain] == [(2, 10, 8, 12), (2, 10, 4, 6), (2, 10, 2, 3)]
    for one, other in zip(plain, moved, strict=True):
        assert torch.allclose(one, other, atol=1e-4, rtol=1e-4)


def test_half_precision_does_not_round_box_sizes() -> None:
    """The head alone, on features that bfloat16 holds: its box maps are those of full precision, while the classes' are rounded."""
    torch.manual_seed(0)
    head = build("n", 5).head.eval()
    for towers in (head.stems, head.reg_convs):
        for level in range(3):
            towers[level] = torch.nn.Identity()
    features = [torch.randn(2, 64, side, side).bfloat16() for side in (4, 2, 1)]
    for level in range(3):
        head.cls_convs[level] = torch.nn.Identity()
    with torch.no_grad():
        exact = head([feature.float() for feature in features])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = head(features)
    for one, other in zip(exact, half, strict=True):
        assert torch.allclose(one[:, :4], other[:, :4], atol=1e-6)
        assert float((one[:, 4:] - other[:, 4:]).abs().max()) > 1e-4


def maps_with(*rows: tuple[int, int, list[float]]) -> list[torch.Tensor]:
    """Maps of a 64-pixel picture and 2 classes, sure of nothing but the given cells of the finest level: (row, column, values)."""
    maps = [torch.zeros(1, 7, 64 // stride, 64 // stride) for stride in (8, 16, 32)]
    for level in maps:
        level[:, 4:] = -30
    for row, column, values in rows:
        maps[0][0, :, row, column] = torch.tensor(values)
    return maps


def test_a_detection_by_hand() -> None:
    """Cell (row 2, column 3): centre (3.25, 2.5) * 8, size e^0 * 8 by 2 * 8; score 0.5 * 0.5 of the better class."""
    half = 0.0
    [(boxes, scores, labels)] = detect(maps_with((2, 3, [0.25, 0.5, 0.0, 0.6931472, half, -2.0, half])), conf=0.1, iou=0.5, max_det=9)
    assert torch.allclose(boxes, torch.tensor([[22.0, 12.0, 30.0, 28.0]]), atol=1e-4)
    assert scores.tolist() == pytest.approx([0.25])
    assert labels.tolist() == [1]


def test_an_anchor_gives_one_class_and_nothing_outside_the_picture() -> None:
    sure = [0.5, 0.5, 0.0, 0.0, 9.0, 9.0, 8.0]
    maps = maps_with((0, 0, sure), (7, 7, sure))
    picture = torch.tensor([[0.0, 0.0, 64.0, 32.0]])
    settings = {"conf": 0.1, "iou": 0.5, "max_det": 9}
    assert [len(part) for part in detect(maps, **settings)[0]] == [2, 2, 2]  # type: ignore[arg-type]
    [(boxes, _, labels)] = detect(maps, **settings, content=picture)  # type: ignore[arg-type]
    assert boxes.tolist() == [[0.0, 0.0, 8.0, 8.0]]
    assert labels.tolist() == [0]
    assert len(detect(maps, **settings, multi_label=True)[0][0]) == 4  # type: ignore[arg-type]
    assert detect(maps, **settings, classes=[1])[0][2].tolist() == []  # type: ignore[arg-type]


def test_defaults_are_the_published_ones_and_the_base_s_elsewhere() -> None:
    own, base = recipe_fields(YOLOXRecipe), recipe_fields(DetectionRecipe)
    assert {name for name in own if own[name] is not base.get(name)} == {"sync_bn", "momentum"}
    made = YOLOXRecipe(family="yolox", size="s")
    assert (made.sync_bn, made.momentum) == (True, 0.9)
    assert made.loss_options() == {"epochs": 300, "no_aug_epochs": 15}
    assert {size: schema.default_imgsz(FAMILY, size) for size in SCALES} == {"n": 416, "t": 416, "s": 640, "m": 640, "l": 640, "x": 640}


def test_names_of_models_and_files_are_known() -> None:
    found = parse_published("libreyoloxN.pt")
    assert found is not None
    assert (found[0].name, found[1], found[2]) == ("yolox", "n", "LibreYOLOXn.pt")
    assert parse_published("LibreYOLOXc.pt") is None
    model = LibreYOLO("yoloxn")
    assert (model.nc, model.net.size, model.imgsz) == (80, "n", 416)
