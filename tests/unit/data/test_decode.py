"""Picture files -> arrays, against pixels that are known."""

from __future__ import annotations

import io
import os
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from libreyolo.data.decode import PictureError, decode_part, decode_picture, fit_size, probe_picture

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 10, 3), dtype=np.uint8)


def smooth(h: int, w: int) -> np.ndarray:
    y, x = np.mgrid[0:h, 0:w]
    return np.stack([255 * x / w, 255 * y / h, 128 + 0 * x], -1).astype(np.uint8)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".webp"])
def test_lossless_formats_give_the_stored_pixels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(PIXELS).save(path, **({"lossless": True} if suffix == ".webp" else {}))
    picture = decode_picture(path)
    assert picture.dtype == np.uint8
    assert picture.flags.writeable
    np.testing.assert_array_equal(picture, PIXELS)
    assert probe_picture(path) == (6, 10)


def test_a_png_called_jpg_is_read_by_its_content(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", format="PNG")
    np.testing.assert_array_equal(decode_picture(tmp_path / "a.jpg"), PIXELS)


def test_jpeg_channels_come_as_rgb(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), (250, 10, 60)).save(tmp_path / "a.jpg", quality=100)
    assert np.abs(decode_picture(tmp_path / "a.jpg").astype(int) - [250, 10, 60]).max() <= 2


def in_mode(mode: str) -> tuple[Image.Image, tuple[int, int, int]]:
    """A picture of one colour in a mode, and the RGB it must give."""
    if mode == "RGBA half":
        return Image.new("RGBA", (4, 4), (214, 14, 114, 128)), (164, 64, 114)  # 114 + (c - 114) * 128 / 255
    if mode == "RGBA clear":
        return Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (114, 114, 114)
    if mode == "LA":
        return Image.new("LA", (4, 4), (10, 255)), (10, 10, 10)
    if mode == "P clear":
        image = Image.new("P", (4, 4), 1)
        image.putpalette([0, 0, 0, 9, 99, 199])
        image.info["transparency"] = 1
        return image, (114, 114, 114)
    if mode == "P":
        image = Image.new("P", (4, 4), 1)
        image.putpalette([0, 0, 0, 9, 99, 199])
        return image, (9, 99, 199)
    if mode == "I;16":
        return Image.fromarray(np.full((4, 4), 257 * 200 + 100, np.uint16)), (200, 200, 200)
    if mode == "1":
        return Image.new("1", (4, 4), 1), (255, 255, 255)
    return Image.new("L", (4, 4), 77), (77, 77, 77)


@pytest.mark.parametrize("mode", ["L", "1", "P", "P clear", "LA", "RGBA half", "RGBA clear", "I;16"])
def test_every_mode_of_png_becomes_the_right_rgb(tmp_path: Path, mode: str) -> None:
    image, rgb = in_mode(mode)
    image.save(tmp_path / "a.png")
    picture = decode_picture(tmp_path / "a.png")
    assert picture.shape == (4, 4, 3)
    assert np.abs(picture.astype(int) - rgb).max() <= (1 if "half" in mode else 0)


def test_sixteen_bit_grey_spans_the_whole_range(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 128, 129, 32768, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert decode_picture(tmp_path / "a.png")[0, :, 0].tolist() == [0, 0, 1, 128, 255]


def test_cmyk_is_converted(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    assert np.abs(decode_picture(tmp_path / "a.jpg").astype(int) - [255, 0, 0]).max() <= 4


def test_float_pictures_are_refused_with_a_reason(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(PictureError, match="floating-point"):
        probe_picture(tmp_path / "a.tif")


def stored_for(orientation: int, upright: np.ndarray) -> np.ndarray:
    """What a camera stores so that the EXIF orientation turns it upright (the tag's definition, row by row)."""
    inverse = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, 1),  # shown after turning 90 degrees clockwise
        7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }
    return np.ascontiguousarray(inverse[orientation](upright))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_to_pixels_and_size(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a{suffix}"
    Image.fromarray(stored_for(orientation, PIXELS)).save(path, exif=exif)
    np.testing.assert_array_equal(decode_picture(path), PIXELS)
    assert probe_picture(path) == (6, 10)
    Image.fromarray(PIXELS).save(tmp_path / "upright.png")
    np.testing.assert_array_equal(decode_picture(path, (3, 5)), decode_picture(tmp_path / "upright.png", (3, 5)))
    part = decode_part(path, (6, 10), (1, 2, 5, 9))
    np.testing.assert_array_equal(part, PIXELS[1:5, 2:9])
    assert part.flags.writeable
    assert decode_part(path, (10, 6), (1, 2, 5, 6)) is None


def test_a_turned_jpeg_shrinks_to_the_upright_target(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = smooth(600, 800)
    Image.fromarray(stored_for(6, upright)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert probe_picture(tmp_path / "a.jpg") == (600, 800)
    picture = decode_picture(tmp_path / "a.jpg", (75, 100))
    assert picture.shape == (75, 100, 3)
    assert np.abs(picture.astype(int) - smooth(75, 100)).mean() < 3


@pytest.mark.parametrize(
    ("hw", "max_hw", "expected"),
    [
        ((480, 640), None, (480, 640)),
        ((480, 640), (640, 640), (480, 640)),
        ((1080, 1920), (640, 640), (360, 640)),
        ((1920, 1080), (640, 640), (640, 360)),
        ((100, 3000), (640, 640), (21, 640)),
        ((1, 3000), (32, 32), (1, 32)),
        ((700, 500), (640, 320), (448, 320)),
    ],
)
def test_fit_size_keeps_the_aspect_and_never_enlarges(hw: tuple[int, int], max_hw: tuple[int, int] | None, expected: tuple[int, int]) -> None:
    assert fit_size(hw, max_hw) == expected


def test_shrinking_averages_instead_of_picking_pixels(tmp_path: Path) -> None:
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    Image.fromarray(np.repeat(checks[..., None], 3, 2).astype(np.uint8)).save(tmp_path / "a.png")
    picture = decode_picture(tmp_path / "a.png", (16, 16)).astype(int)
    assert np.abs(picture[2:-2, 2:-2] - 127).max() <= 8


def test_hidden_colours_do_not_bleed_when_shrunk(tmp_path: Path) -> None:
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[..., :3] = 255  # white that nobody can see
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.all(decode_picture(tmp_path / "a.png", (8, 8)) == 114)


def jpeg_bytes(h: int = 120, w: int = 160) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (h, w, 3), dtype=np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def png_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def webp_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(buffer, "WEBP")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"<html><body>404</body></html>", "not a picture"),
        (b"\xff\xd8\xff", "not a picture"),
        (lambda: (lambda b: b[: len(b) * 6 // 10])(jpeg_bytes()), "truncated"),
        (lambda: jpeg_bytes()[:-200], "truncated"),
        (lambda: (lambda b: b[: len(b) * 6 // 10])(png_bytes()), "truncated"),
        (lambda: (lambda b: b[: len(b) * 6 // 10])(webp_bytes()), "it "),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not a picture"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "^it is a picture of the format HEIC, which is not read: convert it to JPEG or PNG$"),
        (b"\0\0\0\x20ftypavif\0\0\0\0avifmif1", "^it is a picture of the format AVIF"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "^it is a picture of the format JPEG 2000"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "^it is a video: take pictures out of it first$"),
        (b"RIFF\xff\xff\0\0AVI LIST", "^it is a video"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "^it is a Git LFS pointer: fetch the picture with git lfs pull$"),
    ],
    ids=[
        "zero bytes",
        "html",
        "three bytes",
        "jpeg at 60 %",
        "jpeg without its end",
        "png at 60 %",
        "webp at 60 %",
        "eps",
        "heic",
        "avif",
        "jpeg 2000",
        "mp4",
        "avi",
        "lfs",
    ],
)
def test_a_broken_file_is_found_by_the_probe(tmp_path: Path, content: object, reason: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content() if callable(content) else content)  # type: ignore[arg-type]
    with pytest.raises(PictureError, match=reason):
        probe_picture(path)
    with pytest.raises(PictureError):
        decode_picture(path)
    with pytest.raises(PictureError):
        decode_part(path, (120, 160), (0, 0, 4, 4))


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="no such file"):
        probe_picture(tmp_path / "a.jpg")


@pytest.mark.parametrize("tail", [b"\x00" * 500, b"trailer of a phone" * 20])
def test_bytes_after_the_end_of_a_jpeg_are_legal(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg_bytes(24, 32) + tail)
    assert probe_picture(tmp_path / "a.jpg") == (24, 32)


def test_a_broken_exif_block_costs_no_picture(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "JPEG", exif=b"Exif\x00\x00XX*\x00garbage")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    assert probe_picture(tmp_path / "a.jpg") == (6, 10)
    assert decode_picture(tmp_path / "a.jpg").shape == (6, 10, 3)


# --- every mode that Pillow has, with the arrays it must give -------------------------------------------------------------------------------

some_hw = st.tuples(st.integers(1, 7), st.integers(1, 7))


def grey_page(hw: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, hw, dtype=np.uint8)


def page(mode: str, hw: tuple[int, int], seed: int) -> tuple[Image.Image, np.ndarray]:
    """A random picture in a mode, and its RGB worked out here."""
    values = grey_page(hw, seed)
    colours = np.random.default_rng(seed + 1).integers(0, 256, (256, 3), dtype=np.uint8)
    if mode == "1":
        return Image.fromarray(values > 127), np.where(values > 127, 255, 0)[..., None].repeat(3, 2)
    if mode == "I;16":
        wide = values.astype(np.uint16) * 256 + 17
        return Image.fromarray(wide), np.round(wide / 257)[..., None].repeat(3, 2)
    if mode == "P":
        image = Image.fromarray(values, "L").convert("P")
        image.putpalette(colours.tobytes())
        return image, colours[values]
    if mode == "L":
        return Image.fromarray(values), values[..., None].repeat(3, 2)
    solid = colours[values].astype(np.float64)
    alpha = grey_page(hw, seed + 2)
    if mode == "LA":
        mixed = 114 + (values - 114.0) * alpha / 255
        return Image.merge("LA", [Image.fromarray(values), Image.fromarray(alpha)]), mixed[..., None].repeat(3, 2)
    if mode == "RGBA":
        return Image.fromarray(np.dstack([colours[values], alpha])), 114 + (solid - 114) * alpha[..., None] / 255
    return Image.fromarray(colours[values]), solid


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]), some_hw, st.integers(0, 999), st.sampled_from([".png", ".tif"]))
def test_any_picture_of_any_mode_gives_the_rgb_that_is_worked_out(mode: str, hw: tuple[int, int], seed: int, suffix: str) -> None:
    image, expected = page(mode, hw, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix.upper()}"
        image.save(path)
        found = decode_picture(path)
        assert probe_picture(path) == hw
    assert found.shape == (*hw, 3)
    assert np.abs(found.astype(float) - expected).max() <= (1 if "A" in mode or mode == "I;16" else 0)


@pytest.mark.parametrize("frames", [("GIF", ".gif"), ("TIFF", ".tif"), ("PNG", ".png"), ("WEBP", ".webp")])
def test_the_first_frame_or_page_counts(tmp_path: Path, frames: tuple[str, str]) -> None:
    first, second = (Image.new("RGB", (6, 4), colour) for colour in ((255, 0, 0), (0, 0, 255)))
    options = {"lossless": True} if frames[0] == "WEBP" else {}
    first.save(tmp_path / f"a{frames[1]}", format=frames[0], save_all=True, append_images=[second], **options)
    assert decode_picture(tmp_path / f"a{frames[1]}").reshape(-1, 3).tolist() == [[255, 0, 0]] * 24
    assert probe_picture(tmp_path / f"a{frames[1]}") == (4, 6)


@pytest.mark.parametrize("value", [70000, -1])
def test_integers_beyond_sixteen_bits_are_refused_and_never_cut(tmp_path: Path, value: int) -> None:
    Image.fromarray(np.full((4, 4), value, np.int32)).save(tmp_path / "a.tif")
    with pytest.raises(PictureError, match="32-bit"):
        probe_picture(tmp_path / "a.tif")


def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    raw = bytearray((tmp_path / "a.png").read_bytes())
    raw[16:24] = (30_000).to_bytes(4, "big") * 2  # IHDR: 900 million pixels
    raw[29:33] = zlib.crc32(raw[12:29]).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(raw)
    with pytest.raises(PictureError, match="exceeds limit"):
        probe_picture(tmp_path / "a.png")


def test_a_pipe_is_no_picture_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(PictureError, match="no regular file"):
        probe_picture(tmp_path / "a.jpg")


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").symlink_to(tmp_path / "a.jpg")
    with pytest.raises(PictureError, match="symbolic links"):
        probe_picture(tmp_path / "a.jpg")


@pytest.mark.parametrize("hw", [(1, 1), (1, 900), (900, 1)])
def test_thin_pictures_are_read_and_shrunk_to_at_least_a_pixel(tmp_path: Path, hw: tuple[int, int]) -> None:
    Image.new("RGB", hw[::-1], (9, 8, 7)).save(tmp_path / "a.png")
    target = fit_size(hw, (64, 64))
    assert decode_picture(tmp_path / "a.png", target).shape == (*target, 3)
    assert min(target) == 1
    assert max(target) <= 64
