"""cfg=path: recipe < file < presets < typed keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from libreyolo import door
from libreyolo.errors import UserError
from tests.conf.conftest import Compose, told


def written(folder: Path, name: str = "train_config.yaml", **values: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(values))
    return folder / name


def through(composed: Compose, *arguments: str) -> dict[str, object]:
    return composed(*door.arguments_for_rank(arguments, {}))


@pytest.mark.parametrize("folder", ["run", "2026-11-30/00-42-27-5b0a", "my runs", "a=b,c"])
def test_a_files_numbers_replace_the_recipes_whatever_its_folder_is_called(composed: Compose, tmp_path: Path, folder: str) -> None:
    path = written(tmp_path / folder, epochs=7, data="x.yaml", mosaic_scale=[0.8, 1.2], nbs=None, device=[0, 1])
    found = through(composed, f"cfg={path}")
    assert (found["epochs"], found["data"], found["mosaic_scale"], found["device"]) == (7, "x.yaml", [0.8, 1.2], [0, 1])
    assert found["batch"] == 16


def test_presets_and_typed_keys_win_over_the_file(composed: Compose, tmp_path: Path) -> None:
    path = written(tmp_path, epochs=7, batch=3, device="cpu")
    found = through(composed, f"cfg={path}", "devices=two", "batch=5")
    assert (found["epochs"], found["batch"], found["device"]) == (7, 5, [0, 1])


def test_a_file_that_says_its_model_chooses_it_unless_another_was_typed(composed: Compose, tmp_path: Path) -> None:
    path = written(tmp_path, family="yolo9", size="m", epochs=7)
    assert through(composed, f"cfg={path}")["size"] == "m"
    found = through(composed, f"cfg={path}", "model=yolo9s")
    assert (found["size"], found["epochs"]) == ("s", 7)


def test_a_resumed_runs_file_starts_afresh(composed: Compose, tmp_path: Path) -> None:
    assert through(composed, f"cfg={written(tmp_path, resume='some/run')}")["resume"] is False


def test_an_unknown_key_in_the_file_is_told_like_any_other(composed: Compose, tmp_path: Path) -> None:
    path = written(tmp_path, epochz=7)
    arguments = door.arguments_for_rank([f"cfg={path}"], {})
    assert told(composed, *arguments) == "Unknown key 'epochz'. Did you mean 'epochs'? All keys: python train.py --help."


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "could not be read: No such file"), ("- 1\n", "must hold arguments as `key: value` lines"), ("a: [", "is not valid YAML")],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        door.arguments_for_rank([f"cfg={tmp_path / 'c.yaml'}"], {})
    assert "\n" not in str(caught.value)


def test_cfg_null_is_no_file(composed: Compose) -> None:
    assert through(composed, "cfg=null", "data=x.yaml")["data"] == "x.yaml"
