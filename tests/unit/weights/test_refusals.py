"""A file that can't be used is refused in one sentence that says which file, why, and what to do; nothing in it is ever executed."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from libreyolo import LibreYOLO
from libreyolo.engine import checkpoint
from libreyolo.errors import UserError
from tests.unit.weights.conftest import state_of


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def refusal(path: Path | str) -> str:
    """Return the sentence with which a file is refused, on one line and naming the file."""
    with pytest.raises(UserError) as caught:
        LibreYOLO(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_a_missing_file_names_the_places_that_were_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"looked at {tmp_path / 'sub' / 'best.pt'}." in refusal(str(tmp_path / "sub" / "best.pt"))
    monkeypatch.chdir(tmp_path)
    assert refusal("best.pt").startswith(f"best.pt was not found; looked at {tmp_path / 'best.pt'} and {tmp_path / 'weights' / 'best.pt'}.")


def test_a_folder_is_no_weights_file(tmp_path: Path) -> None:
    assert "is a folder, not a weights file" in refusal(tmp_path)


def test_an_empty_file_was_never_finished(tmp_path: Path) -> None:
    (tmp_path / "w.pt").touch()
    assert "is empty" in refusal(tmp_path / "w.pt")


def test_a_cut_off_file_is_told(saved: Callable[..., Path]) -> None:
    path = saved()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "is no complete weights file: it is cut off, damaged" in refusal(path)


@pytest.mark.parametrize("start", [b"\xcd\x07,\xd8", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1"])
def test_bytes_that_are_no_torch_file_are_shown(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(start + random.Random(0).randbytes(300))
    assert f"is no weights file: it begins with {start[:4]!r}"[:-1] in refusal(tmp_path / "w.pt")


def test_a_zip_of_something_else_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("letter.txt", "hello")
    assert "is no complete weights file" in refusal(tmp_path / "w.pt")


@pytest.mark.parametrize("save", [lambda value, path: torch.save({"model": value}, path), lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_file_that_would_run_code_is_refused_and_runs_none(save: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    save(Evil(tmp_path / "mark"), tmp_path / "evil.pt")
    refusal(tmp_path / "evil.pt")
    assert not (tmp_path / "mark").exists()
    pickle.loads(pickle.dumps(Evil(tmp_path / "mark")))  # the trap itself works
    assert (tmp_path / "mark").exists()


def test_a_whole_pickled_module_is_refused_by_the_name_of_what_it_holds(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 2)}, tmp_path / "w.pt")
    text = refusal(tmp_path / "w.pt")
    assert "it holds torch.nn.modules.linear.Linear, and loading that could run code; save the state_dict() alone" in text


def test_no_damage_escapes_as_another_error(tmp_path: Path) -> None:
    """Files with a few bytes changed either load or are refused; torch's readers raise anything from IndexError to AssertionError."""
    draws = random.Random(1)
    forms = []
    for zipped in (True, False):
        stream = io.BytesIO()
        torch.save({"a": torch.zeros(3), "b": [1, (2, {"x": 3})]}, stream, _use_new_zipfile_serialization=zipped)
        forms.append(stream.getvalue())
    refused = 0
    for i in range(300):
        damaged = bytearray(forms[i % 2])
        for _ in range(draws.randint(1, 4)):
            damaged[draws.randrange(len(damaged))] = draws.randrange(256)
        (tmp_path / "w.pt").write_bytes(damaged)
        try:
            checkpoint.read(tmp_path / "w.pt")
        except UserError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema_version": "2.0"}, "has schema version 2.0; this program reads 1.0"),
        ({"names": ..., "imgsz": ...}, "lacks names, imgsz"),
        ({"model_family": "yolo99"}, "is a yolo99 file, a family that this program does not train. Did you mean 'yolo9'?"),
        ({"size": "x"}, "says size x, which yolo9 does not have: t, s, m, c"),
        ({"size": "s"}, "says size s, but its tensors are those of yolo9t"),
        ({"nc": 4}, "names 4 classes, but its class layers have 3"),
        ({"nc": 2}, "names class 2, but has only classes 0 to 1"),
        ({"names": {-1: "ant"}}, "names class -1"),
        ({"names": "ant"}, "class names that are neither a list nor a dict"),
        ({"names": {"ant": 0}}, "class names that are neither a list nor a dict"),
        ({"nc": 0}, "says nc=0, which must be a whole number above 0"),
        ({"nc": "three"}, "says nc='three'"),
        ({"imgsz": -64}, "says imgsz=-64"),
        ({"model": {"weight": torch.zeros(2)}}, "says yolo9, but its tensors are not those of that family"),
        ({"model": {}}, "holds no state dict"),
        ({"model": "none"}, "holds no state dict"),
        ({"model": {"weight": 3}}, "holds no state dict"),
    ],
)
def test_contradictions_in_the_metadata_are_told(changes: dict[str, Any], sentence: str, saved: Callable[..., Path]) -> None:
    assert sentence in refusal(saved(**changes))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([torch.zeros(2)], "holds a list, not the dict of a weights file"),
        ({"epoch": 3}, "holds no state dict"),
        ({"weight": torch.zeros(2)}, "its tensors belong to no family that this program knows"),
    ],
)
def test_a_file_without_metadata_must_hold_tensors_of_a_known_family(value: Any, sentence: str, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "w.pt")
    assert sentence in refusal(tmp_path / "w.pt")


def test_a_tensor_of_another_shape_makes_it_another_network(saved: Callable[..., Path], state: dict[str, Tensor]) -> None:
    assert "not those of that family" in refusal(saved(model={**state, "neck.down1.cv.bn.bias": torch.zeros(7)}))
    assert "not those of that family" in refusal(saved(model={k: v for k, v in state.items() if k != "head.cv2.0.2.bias"}))


def test_more_classes_in_the_tensors_than_in_the_metadata_are_told(saved: Callable[..., Path]) -> None:
    assert "names 3 classes, but its class layers have 5" in refusal(saved(model=state_of(5)))


def test_names_in_a_file_of_somebody_else_are_shown_and_never_obeyed(saved: Callable[..., Path]) -> None:
    hostile = {0: "\x1b]0;owned\x07", 1: "line\nbreak", 2: "‮cat"}
    assert LibreYOLO(saved(names=hostile)).names == {0: "\\x1b]0;owned\\x07", 1: "line\\nbreak", 2: "\\u202ecat"}


def test_a_class_count_that_would_fill_the_memory_is_refused(saved: Callable[..., Path]) -> None:
    assert "more than the 100000 classes" in refusal(saved(nc=10**12))


@pytest.mark.parametrize("key", ["²", "--1", "1" * 5000])
def test_ids_that_only_look_like_numbers_are_refused(saved: Callable[..., Path], key: str) -> None:
    assert "neither a list nor a dict of ids to names" in refusal(saved(names={key: "a"}))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_by_the_name_of_the_tensor(
    value: float, saved: Callable[..., Path], state: dict[str, Tensor]
) -> None:
    name = "head.cv2.0.2.bias"
    path = saved(model={**state, name: state[name].clone().fill_(value)})
    assert f"{path} holds numbers that are not finite (tensor {name})" in refusal(path)


def test_a_safetensors_file_is_read_as_bare_tensors_and_a_cut_off_one_is_told(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch_files = pytest.importorskip("safetensors.torch", reason="only the development extra installs it")
    path = tmp_path / "LibreYOLO9t.safetensors"
    torch_files.save_file(state, path)
    assert LibreYOLO(path).nc == 3
    path.write_bytes(path.read_bytes()[:-8])
    assert "is no complete weights file" in refusal(path)
