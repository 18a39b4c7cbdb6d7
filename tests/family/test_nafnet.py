"""nafnet in parts: what counts in its loss, pictures of any size, and networks laid out otherwise."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from libreyolo import LibreYOLO, build, schema, weights
from libreyolo.data.restore_loader import whole_batch
from libreyolo.engine import checkpoint
from libreyolo.engine.checkpoint import WeightsMeta
from libreyolo.errors import UserError
from libreyolo.interfaces.batch import RestoreBatch
from libreyolo.models.nafnet import FAMILY, decode, loss
from libreyolo.models.nafnet.network import STANDARD, Layout, NAFNet, infer
from libreyolo.models.nafnet.network import build as build_network
from libreyolo.tasks import passes
from libreyolo.tasks.restore import RestoreTask
from tests.family.parity.fill import fill, pictures

SMALL = Layout((1, 1), 1, (1, 1))
# Of the published networks for denoising: "LibreNAFNets-restore-sidd.pt".
DENOISING = Layout((2, 2, 4, 8), 12, (2, 2, 2, 2))


@pytest.fixture(scope="module")
def net() -> NAFNet:
    made = build_network("s", layout=SMALL)
    fill(made)
    return made.double()


@pytest.fixture
def task() -> RestoreTask:
    return RestoreTask(criterion=loss.build(), restore=decode.restore, spec=FAMILY.input)


def pairs(*sizes: tuple[int, int], weight: float = 1.0, stride: int = 16) -> RestoreBatch:
    """Whole pictures of these sizes with targets, in float64."""
    given = [(pictures(h, w, count=1, seed=i)[0].permute(1, 2, 0) * 255).byte().numpy() for i, (h, w) in enumerate(sizes)]
    batch = whole_batch(given, stride)
    count, _, height, width = batch.images.shape
    targets = pictures(height, width, count=count, seed=77).double()
    return replace(batch, images=batch.images.double(), targets=targets, weight=torch.full((count,), weight))


def values(task: RestoreTask, net: NAFNet, batch: RestoreBatch) -> dict[str, float]:
    terms = task.terms(net, batch, {})
    return {n: float(t.value(t.stats) if t.value else t.total.detach() * t.scale(t.stats)) for n, t in terms.items()}


def test_the_loss_is_the_mean_over_the_values_of_the_pictures_alone(net: NAFNet, task: RestoreTask) -> None:
    """In evaluation: pictures of two sizes, filled up to the stride and stacked, one of them twice."""
    net.eval()
    batch = pairs((20, 30), (40, 16), (20, 30))
    total, squared, count = 0.0, 0.0, 0
    with torch.no_grad():
        for row, (h, w) in enumerate([(20, 30), (40, 16), (20, 30)]):
            hh, ww = batch.input_hw[row].tolist()
            difference = (net(batch.images[row : row + 1, :, :hh, :ww]) - batch.targets[row, :, :hh, :ww])[..., :h, :w]
            total += float((difference**2 + 1e-6).sqrt().sum())
            squared, count = squared + float((difference**2).sum()), count + 3 * h * w
        found = values(task, net, batch)
        assert found["restore"] == pytest.approx(total / count, rel=1e-12)
        assert found["psnr"] == pytest.approx(-10 * math.log10(squared / count), rel=1e-9)
        stats = task.target_stats(batch)["values"]
        assert float(stats) == count == float(task.terms(net, batch, {})["restore"].stats)


def test_a_picture_of_weight_0_adds_nothing(net: NAFNet, task: RestoreTask) -> None:
    net.train()
    batch = pairs((16, 16), (16, 16))
    half = replace(batch, weight=torch.tensor([1.0, 0.0]))
    alone = RestoreBatch(**{k: v[:1] if isinstance(v, torch.Tensor) else v for k, v in vars(batch).items()})
    assert values(task, net, half) == pytest.approx(values(task, net, alone), rel=1e-9)
    nothing = replace(batch, weight=torch.zeros(2))
    terms = task.terms(net, nothing, {})
    assert values(task, net, nothing)["restore"] == 0.0
    terms["restore"].total.backward()
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
    net.zero_grad()


def test_a_picture_is_restored_the_same_whoever_is_in_its_batch(net: NAFNet, task: RestoreTask, monkeypatch: pytest.MonkeyPatch) -> None:
    net.eval()
    sizes = [(20, 30), (40, 16), (17, 25), (20, 30)]
    with torch.no_grad():
        together = task.decode(task.forward(net, batch := pairs(*sizes)), batch)
        monkeypatch.setattr(passes, "PIXELS_PER_PASS", 1)
        one_by_one = task.decode(task.forward(net, batch), batch)
        assert [tuple(r.pixels.shape[1:]) for r in together] == sizes
        for row, size in enumerate(sizes):
            h, w = batch.input_hw[row].tolist()
            alone = net(batch.images[row : row + 1, :, :h, :w])[0, :, : size[0], : size[1]].clamp(0, 1).float()
            assert (together[row].pixels - alone).abs().max() < 1e-6
            assert (one_by_one[row].pixels - alone).abs().max() < 1e-6


def test_a_fresh_network_starts_near_the_picture_itself() -> None:
    torch.manual_seed(0)
    images = pictures(32, 48)
    with torch.no_grad():
        assert (build_network("s", layout=SMALL).eval()(images) - images).abs().mean() < 0.3


def test_sides_off_the_stride_are_filled_with_zeros_and_cut_again(net: NAFNet) -> None:
    net.eval()
    images = pictures(13, 18).double()
    with torch.no_grad():
        padded = torch.zeros(2, 3, 16, 20, dtype=torch.float64)
        padded[..., :13, :18] = images
        assert torch.allclose(net(images), net(padded)[..., :13, :18])


@pytest.mark.parametrize("layout", [STANDARD, DENOISING, SMALL])
def test_the_layout_is_read_from_the_tensors(layout: Layout) -> None:
    with torch.device("meta"):
        state = build_network("l", layout=layout).state_dict()
    expected = {"size": "l", "nc": 0} | ({} if layout == STANDARD else {"layout": layout})
    assert infer(state) == expected
    assert FAMILY.accepts(state)
    assert not FAMILY.accepts({k: v for k, v in state.items() if k != "decoders.0.0.beta"})


def test_a_denoising_file_loads_predicts_and_is_trained_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    state = build_network("s", layout=SMALL).state_dict()
    meta = WeightsMeta("nafnet", "s", "restore", {}, 256, {"degradation": "denoise", "dataset": "SIDD"})
    checkpoint.write(checkpoint.weights_dict(state, meta), tmp_path / "LibreNAFNets-restore-sidd.pt")
    model = LibreYOLO(tmp_path / "LibreNAFNets-restore-sidd.pt")
    assert (model.names, model.nc, model.size) == ({}, 0, "s")
    assert model._options == {"layout": SMALL}
    recipe = schema.resolve(FAMILY, "s", {"data": "x"})
    with caplog.at_level(logging.INFO):
        trained = build.training_network(FAMILY, recipe, 0, model._start(recipe, tmp_path, None))
    assert f"{len(state)} of {len(state)} tensors taken from" in caplog.text
    assert list(trained.state_dict()) == list(state)
    model.save(tmp_path / "again.pt")
    content = checkpoint.read(tmp_path / "again.pt")
    told = {k: content[k] for k in ("nc", "names", "task", "degradation", "dataset")}
    assert told == {"nc": 1, "names": {0: "image"}, "task": "restore", "degradation": "denoise", "dataset": "SIDD"}


def test_a_bare_state_dict_is_recognised_and_another_size_gives_nothing(tmp_path: Path) -> None:
    state = build_network("s", layout=SMALL).state_dict()
    torch.save(state, tmp_path / "foreign.pt")
    file = weights.load(tmp_path / "foreign.pt")
    assert (file.family.name, file.size, file.names) == ("nafnet", "s", {})
    with torch.device("meta"):
        wider = build_network("l", layout=SMALL)
    assert [n for n, t in wider.state_dict().items() if n in state and state[n].shape == t.shape] == ["ending.bias"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"imgsz": [128, 256]}, "rot90=0.5 turns crops by a quarter, so imgsz=[128, 256] must be square: use imgsz=128, or rot90=0."),
        ({"flipud": 1.5}, "flipud=1.5 is out of range"),
        ({"num_classes": 1}, "Unknown key 'num_classes'."),
        ({"mosaic_prob": 1.0}, "Unknown key 'mosaic_prob'."),
        ({"hsv_prob": 1.0}, "Unknown key 'hsv_prob'."),
    ],
)
def test_keys_that_mean_nothing_for_restoration_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        schema.resolve(FAMILY, "s", values)
    assert words in str(caught.value)


def test_a_crop_that_is_not_square_needs_no_quarter_turns() -> None:
    assert schema.resolve(FAMILY, "s", {"imgsz": [128, 256], "rot90": 0.0}).imgsz == [128, 256]
