"""Mask files: what is read as which class, and what is refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo.data.masks import MaskError, classes_of, count_values, histogram, read_raw, read_rules, shrink_mask, wrong_values
from libreyolo.errors import UserError

IDS = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
NAMES = {0: "road", 1: "car", 2: "sky"}
YAML = Path("/sets/data.yaml")


def grey_png(path: Path, values: np.ndarray, bits: int) -> Path:
    """Write a grey PNG of 1, 2, 4 or 8 bits by hand: Pillow writes none of 2 or 4."""
    height, width = values.shape
    lines = b""
    for row in values:
        packed = "".join(f"{value:0{bits}b}" for value in row)
        packed += "0" * (-len(packed) % 8)
        lines += b"\0" + bytes(int(packed[i : i + 8], 2) for i in range(0, len(packed), 8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "I", "TIFF", "BMP"])
def test_a_mask_of_any_single_channel_kind_is_read_as_stored(mode: str, tmp_path: Path) -> None:
    path = tmp_path / {"TIFF": "m.tif", "I": "m.tif", "BMP": "m.bmp"}.get(mode, "m.png")
    if mode == "P":
        image = Image.fromarray(IDS, "P")
        image.putpalette([value for k in range(256) for value in (255 - k, k, 7)])
    elif mode in ("I;16", "I"):
        image = Image.fromarray(IDS.astype(np.uint16 if mode == "I;16" else np.int32))
    else:
        image = Image.fromarray(IDS)
    image.save(path)
    assert read_raw(path).tolist() == IDS.tolist()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_levels_of_few_bits_are_ids_and_not_shades(bits: int, tmp_path: Path) -> None:
    """Pillow gives 0, 85, 170, 255 for 2 bits: class 3 would be the ignored value."""
    values = np.minimum(np.array([[0, 1, 2, 3, 2, 1, 0, 1, 3]]), 2**bits - 1)
    assert read_raw(grey_png(tmp_path / "m.png", values, bits)).tolist() == values.tolist()


def test_sixteen_bits_keep_large_values(tmp_path: Path) -> None:
    Image.fromarray(np.array([[7, 300, 65535]], np.uint16)).save(tmp_path / "m.png")
    values, counts = count_values(read_raw(tmp_path / "m.png"))
    assert (values.tolist(), counts.tolist()) == ([7, 300, 65535], [1, 1, 1])


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        ("m.png", "RGB", "mode RGB, but a mask has one channel of class ids: replace each colour by its id and save a grey PNG"),
        ("m.png", "RGBA", "mode RGBA"),
        ("m.png", "LA", "mode LA"),
        ("m.jpg", "L", "it is a JPEG, whose values are not exact: save it as PNG"),
        ("m.tif", "F", "mode F"),
    ],
)
def test_what_holds_no_ids_is_refused_with_what_to_do(name: str, mode: str, words: str, tmp_path: Path) -> None:
    Image.new(mode, (3, 2)).save(tmp_path / name)
    with pytest.raises(MaskError, match=words):
        read_raw(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89PNG\r\n\x1a\n cut off"])
def test_a_file_that_is_no_picture_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.png").write_bytes(content)
    with pytest.raises(MaskError, match="cannot be decoded"):
        read_raw(tmp_path / "m.png")


def test_bytes_are_counted_in_any_part_of_a_mask() -> None:
    mask = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    for part in (mask, mask[3:9, 1:2], mask[::3, 5:40:2], mask[:, 7:]):
        assert histogram(part).tolist() == np.bincount(part.ravel(), minlength=256).tolist()
    values, counts = count_values(mask[:2, :3])
    assert counts.sum() == 6
    assert set(values.tolist()) == set(mask[:2, :3].ravel().tolist())


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_classes_are_what_the_rules_say_of_each_value(kind: type) -> None:
    raw = np.array([[0, 2, 255], [1, 2, 9]], kind)
    plain, mapped = read_rules(YAML, {}, NAMES), read_rules(YAML, {"label_mapping": {0: 1, 2: 0, 9: 2}}, NAMES)
    assert classes_of(raw, np.unique(raw), mapped).tolist() == [[1, 0, 255], [255, 0, 2]]
    as_stored = classes_of(raw[:1], np.unique(raw[:1]), plain)
    assert as_stored.dtype == np.uint8
    assert as_stored.tolist() == [[0, 2, 255]]


def test_without_a_mapping_values_are_ids_and_255_is_ignored() -> None:
    rules = read_rules(YAML, {}, NAMES)
    assert rules.ids[[0, 1, 2, 255]].tolist() == [0, 1, 2, 255]
    assert wrong_values(np.array([0, 2, 3, 254, 255, 40000]), rules).tolist() == [3, 254, 40000]
    assert (rules.folder, rules.is_named) == ("masks", False)


def test_a_mapping_says_what_values_mean_and_what_it_leaves_out_is_ignored() -> None:
    """YAML hands every scalar over as text."""
    rules = read_rules(YAML, {"masks_dir": "gt/ids/", "label_mapping": {"7": "0", "300": "2", "8": "255"}}, NAMES)
    assert rules.ids[[7, 300, 8, 0, 255]].tolist() == [0, 2, 255, 255, 255]
    assert wrong_values(np.arange(65536), rules).tolist() == []
    assert (rules.folder, rules.is_named) == ("gt/ids", True)


def test_another_ignored_value_may_be_named() -> None:
    rules = read_rules(YAML, {"ignore_index": "250"}, NAMES)
    assert rules.ids[[250, 255]].tolist() == [255, 255]
    assert wrong_values(np.array([249, 250, 255]), rules).tolist() == [249]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"label_mapping": {"7": "3"}}, r"gives 7 the class id 3, outside 0..2 \(255: ignored\)"),
        ({"label_mapping": {"road": "0"}}, "a key of label_mapping must be a whole number from 0 to 65535, not 'road'"),
        ({"label_mapping": {"-1": "0"}}, "not '-1'"),
        ({"label_mapping": ["0", "1"]}, "label_mapping must map raw pixel values to class ids"),
        ({"masks_dir": ["a"]}, "masks_dir must be the name of a folder"),
        ({"masks_dir": "/"}, "masks_dir must be the name of a folder"),
        ({"ignore_index": "1"}, "ignore_index=1 is also the id of the class 'car'"),
        ({"ignore_index": "none"}, "ignore_index must be a whole number"),
    ],
)
def test_contradictions_in_the_yaml_are_told(content: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read_rules(YAML, content, NAMES)
    assert str(caught.value).startswith(f"{YAML}: ")


def test_more_classes_than_a_mask_can_tell_apart_are_refused() -> None:
    with pytest.raises(UserError, match="256 classes are more than a mask can tell apart: at most 255"):
        read_rules(YAML, {}, {k: str(k) for k in range(256)})


def test_a_shrunk_mask_takes_the_value_at_each_centre() -> None:
    mask = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert shrink_mask(mask, (2, 2)).tolist() == [[5, 7], [13, 15]]
    assert shrink_mask(mask, (4, 4)) is mask
    assert shrink_mask(mask, (8, 8))[::2, ::2].tolist() == mask.tolist()
