"""rtdetr's network: what a number of classes, a pretrained backbone and small inputs change, and which files it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from libreyolo import LibreYOLO, schema
from libreyolo.errors import UserError
from libreyolo.models.rtdetr import network
from libreyolo.models.rtdetr.decode import detect
from libreyolo.models.rtdetr.decoder import Layers
from libreyolo.models.rtdetr.network import CLASS_LAYERS, RTDETROutput
from libreyolo.weights import pretrained, transfer
from tests.run.conftest import QUICK, draw_set

FAMILY = schema.family("rtdetr")


@pytest.fixture(scope="module")
def small() -> network.RTDETR:
    torch.manual_seed(0)
    return network.build("r18", 3)


def test_only_the_class_layers_depend_on_the_number_of_classes(small: network.RTDETR) -> None:
    with torch.device("meta"):
        other = network.build("r18", 5).state_dict()
    changed = {name for name, tensor in small.state_dict().items() if tensor.shape != other[name].shape}
    assert changed == {name for name in other if name.startswith(tuple(f"{layer}." for layer in CLASS_LAYERS))}


def test_a_transfer_to_another_class_count_takes_everything_else(small: network.RTDETR) -> None:
    other = network.build("r18", 5)
    taken, wanted = transfer(other, small.state_dict())
    assert wanted - taken == 1 + 2 * (1 + 3)  # the denoising embedding; weight and bias of the encoder's and three layers' scores
    name = "decoder.dec_bbox_head.2.layers.0.weight"
    assert torch.equal(other.get_parameter(name), small.get_parameter(name))


def test_a_side_of_64_has_fewer_cells_than_queries_and_keeps_them_all(small: network.RTDETR) -> None:
    with torch.no_grad():
        output = small.eval()(torch.rand(1, 3, 64, 96))
    cells = 8 * 12 + 4 * 6 + 2 * 3
    assert output.matching.logits.shape == (1, 1, cells, 3)
    assert output.hw == (64, 96)


def test_r50m_answers_with_its_third_layer_of_six() -> None:
    with torch.device("meta"):
        decoder = network.build("r50m", 3).decoder
    assert (len(decoder.dec_score_head), decoder.eval_layer) == (6, 2)


def test_a_pretrained_backbone_keeps_its_stem_and_norms(small: network.RTDETR) -> None:
    frozen = network.build("r18", 3, frozen_backbone_norm=True)
    still = {name for name, p in frozen.named_parameters() if not p.requires_grad}
    stem_convolutions = {f"backbone.conv1.conv1_{i}.conv.weight" for i in (1, 2, 3)}
    norms = {name for name in dict(small.named_parameters()) if name.startswith("backbone.") and ".norm." in name}
    assert still == stem_convolutions | norms


@pytest.mark.parametrize(
    ("keys", "frozen"), [({}, False), ({"pretrained": True}, True), ({"pretrained": "b.pth", "freeze_backbone_norm": False}, False)]
)
def test_the_recipe_freezes_norms_where_the_backbone_is_pretrained(keys: dict[str, object], frozen: bool) -> None:
    assert schema.resolve(FAMILY, "r18", keys).network_options() == {"frozen_backbone_norm": frozen}


def test_the_recipe_is_the_published_one() -> None:
    recipe = schema.resolve(FAMILY, "r18", {})
    published = {
        "epochs": 72, "batch": 4, "optimizer": "adamw", "lr0": 1e-4, "weight_decay": 1e-4, "scheduler": "constant", "warmup_epochs": 0,
        "no_aug_epochs": 0, "mosaic_prob": 0, "mixup_prob": 0, "hsv_prob": 0.5, "degrees": 0, "shear": 0, "ema_decay": 0.9999, "eval_interval": 1,
        "lr_backbone": 5e-6, "betas": [0.9, 0.999], "clip_max_norm": 0.1, "sync_bn": False, "imgsz": 640,
    }  # fmt: skip
    assert {name: getattr(recipe, name) for name in published} == published
    assert recipe.lr_scales() == {"backbone.": pytest.approx(0.05)}


@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_a_backbone_file_gives_the_backbone_and_nothing_else(prefix: str, small: network.RTDETR, tmp_path: Path) -> None:
    state = {prefix + name: tensor for name, tensor in small.backbone.state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(state | {"fc.weight": torch.zeros(1000, 512)}, tmp_path / "backbone.pth")
    found, options, origin = pretrained(FAMILY, "r18", str(tmp_path / "backbone.pth"), tmp_path)
    assert options == {}
    assert "backbone.pth" in origin
    assert len(found) == len(state)
    assert all(torch.equal(tensor, small.state_dict()[name]) for name, tensor in found.items())
    assert network.from_backbone(state, "r34") is None


def test_a_whole_file_is_taken_whole_and_a_missing_one_says_where_it_is_to_be_had(
    small: network.RTDETR, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(small.state_dict(), tmp_path / "mine.pt")
    found, _, _ = pretrained(FAMILY, "r18", str(tmp_path / "mine.pt"), tmp_path)
    assert found.keys() == small.state_dict().keys()

    def no_network(*arguments: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("libreyolo.weights.download_url_to_file", no_network)
    with pytest.raises(UserError, match=r"no route to host.*download https://github\.com/\S+ResNet18_vd\S+\.pth and put it at"):
        pretrained(FAMILY, "r18", True, tmp_path)
    with pytest.raises(UserError, match="does not hold the backbone of rtdetrr34"):
        (tmp_path / "weights").mkdir(exist_ok=True)
        torch.save(small.backbone.state_dict(), tmp_path / "weights" / "ResNet34_vd_pretrained_from_paddle.pth")
        pretrained(FAMILY, "r34", True, tmp_path)


def test_files_that_are_not_whole_are_refused_by_the_name_of_a_tensor(small: network.RTDETR) -> None:
    state = dict(small.state_dict())
    assert FAMILY.accepts(state)
    with pytest.raises(UserError, match=r"it has no decoder\.anchors"):
        network.infer(state | {"decoder.anchors": torch.zeros(1)})  # RT-DETRv2
    missing = "encoder.lateral_convs.0.conv.weight"
    with pytest.raises(UserError, match=f"{missing} is missing"):
        network.infer({name: tensor for name, tensor in state.items() if name != missing})
    without_counters = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    assert network.infer(without_counters) == {"size": "r18", "nc": 3}
    assert not FAMILY.accepts({"head.cv3.0.0.conv.weight": torch.zeros(1, 1, 1, 1)})


def hand_output() -> RTDETROutput:
    """Return an answer of two queries and two classes: scores 0.9 and 0.6 on the first, 0.7 and 0.2 on the second."""
    scores = torch.tensor([[[[0.9, 0.6], [0.7, 0.2]]]])
    boxes = torch.tensor([[[[0.5, 0.5, 0.5, 1.0], [0.25, 0.5, 0.5, 0.5]]]])
    return RTDETROutput(Layers(scores.logit(), boxes), None, None, (40, 80))


def test_detections_are_the_best_pairs_of_query_and_class_above_conf() -> None:
    [(boxes, scores, labels)] = detect(hand_output(), conf=0.5, max_det=300)
    assert scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    assert labels.tolist() == [0, 0, 1]
    assert boxes.tolist() == [[20, 0, 60, 40], [0, 10, 40, 30], [20, 0, 60, 40]]


def test_asked_classes_are_chosen_before_the_best_are_counted() -> None:
    [(_, scores, labels)] = detect(hand_output(), conf=0.0, max_det=2, classes=[1])
    assert scores.tolist() == pytest.approx([0.6, 0.2])
    assert labels.tolist() == [1, 1]


@pytest.mark.slow
def test_a_run_from_a_backbone_file_leaves_its_norms_and_stem_and_moves_the_rest(small: network.RTDETR, tmp_path: Path) -> None:
    torch.save(small.backbone.state_dict(), tmp_path / "backbone.pth")
    keys = {k: v for k, v in QUICK.items() if k != "aux_weight"} | {
        "epochs": 1,
        "max_steps": 1,
        "val": False,
        "warmup_epochs": 0,
        "project": str(tmp_path),
    }
    result = LibreYOLO("rtdetrr18").train(draw_set(tmp_path / "set"), pretrained=str(tmp_path / "backbone.pth"), **keys)
    trained = torch.load(result["last_checkpoint"], weights_only=True)["train_model"]
    stem, statistic, weight = (
        "conv1.conv1_1.conv.weight",
        "res_layers.3.blocks.1.branch2b.norm.running_var",
        "res_layers.3.blocks.1.branch2b.conv.weight",
    )
    before = small.backbone.state_dict()
    assert torch.equal(trained[f"backbone.{stem}"], before[stem])
    assert torch.equal(trained[f"backbone.{statistic}"], before[statistic])
    moved = (trained[f"backbone.{weight}"] - before[weight]).abs().max()
    assert 0 < float(moved) < 6e-6  # AdamW's first step is the learning rate: lr_backbone
