"""Published names: found on the disk in any case, else fetched; without a network, one sentence that says what to do."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

from libreyolo import LibreYOLO, weights
from libreyolo.errors import UserError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved: Callable[..., Path]) -> list[tuple[str, str]]:
    """A hub that has every file; the list says what it was asked for. The working directory is an empty one."""
    source = saved("source.pt")
    questions: list[tuple[str, str]] = []

    def download(repo_id: str, filename: str) -> str:
        questions.append((repo_id, filename))
        cached = tmp_path / "hub" / filename
        cached.parent.mkdir(exist_ok=True)
        shutil.copy(source, cached)
        return str(cached)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return questions


@pytest.mark.parametrize(
    ("name", "size", "usual"),
    [
        ("LibreYOLO9t.pt", "t", "LibreYOLO9t.pt"),
        ("libreyolo9T.PT", "t", "LibreYOLO9t.pt"),
        ("LibreYOLO9s-Coco.pt", "s", "LibreYOLO9s-coco.pt"),
    ],
)
def test_a_published_name_says_its_size_in_any_case(name: str, size: str, usual: str) -> None:
    found = weights.parse_published(name)
    assert found is not None
    assert (found[0].name, found[1], found[2]) == ("yolo9", size, usual)


@pytest.mark.parametrize("name", ["LibreYOLO9z.pt", "yolo9s.pt", "LibreYOLO9s-cls-x.pt", "my-LibreYOLO9s.pt", "LibreYOLO9s.pth"])
def test_other_names_are_not_published_ones(name: str) -> None:
    assert weights.parse_published(name) is None


@pytest.mark.parametrize("name", ["LibreYOLO9t.pt", "libreyolo9t.pt", "LibreYOLO9t"])
@pytest.mark.parametrize("folder", [".", "weights"])
def test_a_file_on_the_disk_is_used_whatever_the_capitals(name: str, folder: str, asked: list[tuple[str, str]], saved: Callable[..., Path]) -> None:
    Path(folder).mkdir(exist_ok=True)
    shutil.copy(saved(), Path(folder) / "LibreYOLO9t.pt")
    assert LibreYOLO(name).names[0] == "ant"
    assert asked == []


def test_a_published_file_that_is_nowhere_is_fetched_once_into_weights(asked: list[tuple[str, str]]) -> None:
    assert LibreYOLO("libreyolo9t.pt").nc == 3
    assert asked == [("LibreYOLO/LibreYOLO9t", "LibreYOLO9t.pt")]
    assert [str(p) for p in Path().rglob("*.pt")] == ["weights/LibreYOLO9t.pt"]
    LibreYOLO("LibreYOLO9t.pt")
    assert len(asked) == 1


def test_a_variant_is_never_taken_for_the_plain_file(asked: list[tuple[str, str]], saved: Callable[..., Path]) -> None:
    shutil.copy(saved(), "LibreYOLO9t.pt")
    LibreYOLO("LibreYOLO9t-mine.pt")
    assert asked == [("LibreYOLO/LibreYOLO9t-mine", "LibreYOLO9t-mine.pt")]


def test_a_path_in_a_folder_is_never_fetched(asked: list[tuple[str, str]]) -> None:
    with pytest.raises(UserError, match=r"models/LibreYOLO9t\.pt was not found"):
        LibreYOLO("models/LibreYOLO9t.pt")
    assert asked == []


def sentence_without_network() -> str:
    with pytest.raises(UserError) as caught:
        LibreYOLO("libreyolo9s.pt")
    text = str(caught.value)
    assert text.startswith("LibreYOLO9s.pt is not on disk and could not be fetched (")
    assert "download it from https://huggingface.co/LibreYOLO/LibreYOLO9s," in text
    assert text.endswith(f"put it at {Path.cwd() / 'weights' / 'LibreYOLO9s.pt'}.")
    assert "\n" not in text
    assert list(Path().iterdir()) == []
    return text


def test_without_a_network_one_sentence_says_where_to_get_it_and_where_to_put_it(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def download(**where: str) -> str:
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError("Name or service not known. Try again.\nTrace: 0x1")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    assert "(ConnectionError: Name or service not known)" in sentence_without_network()
    assert [record.name for record in caplog.records] == ["libreyolo.weights"]  # that it is fetched; the client's tries are not told one by one
    assert hub.level == level


def test_the_hub_client_in_offline_mode_gives_the_same_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client, with its network switched off."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sentence_without_network()


def test_an_unknown_model_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Unknown model 'yolo9z'\. Did you mean 'yolo9[tsmc]'\? Known: .*yolo9s"):
        LibreYOLO("yolo9z")
