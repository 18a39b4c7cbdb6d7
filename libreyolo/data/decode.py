"""Picture files -> uint8 RGB arrays. h height, w width, after EXIF rotation.

What is read, and how:

- JPEG (also MPO), PNG, BMP, WebP, TIFF and GIF (first frame), told by content: a PNG named .jpg is fine.
- EXIF orientation is applied (for PNG: where the chunk stands before the pixels, as it must be known without decoding).
- Transparent pixels show grey 114, the letterbox's padding: what lies hidden under alpha 0 is arbitrary and must not be learnt.
- 16-bit grey is scaled to 8 bit by its full range (65535 -> 255), of 16-bit colours the upper 8 bits are read; 1-bit, grey, palette, CMYK and
  YCbCr become RGB; float pictures and 32-bit integers beyond 16 bits are refused.
- Of an animation or a file of several pages the first picture counts.
- A header that promises more than 179 million pixels (Pillow's limit) is refused before anything is decoded.
- Shrinking is bilinear with antialiasing (`resize_for_training`). A JPEG may first be decoded at 1/2, 1/4 or 1/8, never below the target size.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from libreyolo.data.augment.resize import resize_for_training

T = TypeVar("T")
Box = tuple[int, int, int, int]
"""(top, left, bottom, right) in whole pixels of a picture, within it and not empty."""

PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
# Pictures too, but not read here; a set that holds such files is told so, or they would be lost without a word.
UNREAD_SUFFIXES = frozenset(
    {".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl", ".dng", ".nef", ".cr2", ".arw", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".exr", ".dcm"}
)
# Pillow knows more, among them formats that start other programs (EPS); what a data set needs is these.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
# (place, bytes there, what the file is) of what bears a picture's name and is of no format that is read. `ftyp` alone is a video's.
_UNREAD_MARKS = (
    *((4, b"ftyp" + brand, "HEIC") for brand in (b"heic", b"heix", b"heim", b"hevc", b"mif1", b"msf1")),
    *((4, b"ftyp" + brand, "AVIF") for brand in (b"avif", b"avis")),
    (4, b"jP  ", "JPEG 2000"),
    (4, b"JXL ", "JPEG XL"),
    (4, b"ftyp", "video"),
    (8, b"AVI ", "video"),
    (0, b"\x1aE\xdf\xa3", "video"),
)
_GREY = (114, 114, 114, 255)
_ORIENTATION_TAG = 0x0112
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PictureError(ValueError):
    """A file that is no usable picture; the text is the reason, without the file's name."""


def fit_size(hw: tuple[int, int], max_hw: tuple[int, int] | None) -> tuple[int, int]:
    """Return (h, w) shrunk with its aspect kept so that neither side exceeds `max_hw`; unchanged where it fits already."""
    h, w = hw
    if max_hw is None or (h <= max_hw[0] and w <= max_hw[1]):
        return h, w
    ratio = min(max_hw[0] / h, max_hw[1] / w)
    return max(1, min(max_hw[0], round(h * ratio))), max(1, min(max_hw[1], round(w * ratio)))


def probe_picture(path: str | Path) -> tuple[int, int]:
    """Return (h, w) after EXIF rotation. Raises PictureError for a file that is empty, no picture, or cut off.

    Whole JPEG, PNG and WebP files are told by header and tail; where the tail is not as it should be, and for the other formats, the
    picture is decoded to find out.
    """
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for without end
            raise PictureError("it is no regular file")
        if status.st_size == 0:
            raise PictureError("the file is empty")
        with open_picture(path) as image:
            if _has_whole_tail(path, image.format):
                w, h = image.size
                return (w, h) if orientation_of(image) >= 5 else (h, w)
    except PictureError:
        raise
    except Exception as error:  # on garbage, Pillow's readers raise anything from SyntaxError to struct.error
        raise PictureError(_reason(error, path)) from error
    h, w, _ = decode_picture(path).shape
    return h, w


def bits_of(path: str | Path) -> int:
    """Return how many bits a channel of a PNG or TIFF has, 16 or 8; 8 for every other file (and for one that can't be read)."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(26)
        if head.startswith(b"\x89PNG"):
            return 16 if len(head) > 24 and head[24] == 16 else 8
        if head[:4] in (b"II*\x00", b"MM\x00*"):
            with open_picture(path) as image:
                return 16 if image.mode.startswith("I") else 8
    except Exception:  # see probe_picture
        return 8
    return 8


def decode_picture(path: str | Path, target_hw: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return uint8 RGB [h, w, 3], upright; resized to `target_hw`, which `fit_size` gave for this picture, where it is given.

    Raises PictureError, with the reason, when the file can't be decoded to its end.
    """
    return _opened(path, lambda image: _decoded(image, target_hw))


def decode_part(path: str | Path, hw: tuple[int, int], box: Box) -> NDArray[np.uint8] | None:
    """Return a part of the picture as `decode_picture` gives it, uint8 RGB [bottom - top, right - left, 3]; None where its size is not `hw`.

    Cheaper than a cut from the whole, of which most is then not copied. Raises PictureError as `decode_picture` does.
    """
    top, left, bottom, right = box

    def part(image: Image.Image) -> NDArray[np.uint8] | None:
        upright = _upright(image, None)
        return np.array(upright.crop((left, top, right, bottom))) if upright.size == (hw[1], hw[0]) else None

    return _opened(path, part)


def picture_to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return a picture that is already open as uint8 RGB [h, w, 3], upright, by the rules above. Raises PictureError."""
    try:
        return np.array(_to_rgb(ImageOps.exif_transpose(image)))
    except PictureError:
        raise
    except Exception as error:  # see probe_picture
        raise PictureError(_reason(error)) from error


def open_picture(path: str | Path) -> Image.Image:
    """Return the picture with only its header read, whatever its name says its format is. Raises what Pillow raises."""
    Image.init()
    return Image.open(path, formats=[name for name in _FORMATS if name in Image.OPEN])


def _opened(path: str | Path, work: Callable[[Image.Image], T]) -> T:
    try:
        with open_picture(path) as image:
            return work(image)
    except PictureError:
        raise
    except Exception as error:  # see probe_picture
        raise PictureError(_reason(error, path)) from error


def _decoded(image: Image.Image, target_hw: tuple[int, int] | None) -> NDArray[np.uint8]:
    pixels = np.array(_upright(image, target_hw))
    return pixels if target_hw is None else resize_for_training(pixels, target_hw)


def _upright(image: Image.Image, enough_hw: tuple[int, int] | None) -> Image.Image:
    """Return the picture as RGB, perhaps shrunk already, never below `enough_hw`."""
    if image.format == "TIFF":  # some Pillow versions rotate a TIFF while loading it; this covers both kinds
        image.load()
        image, orientation = ImageOps.exif_transpose(image), 1
    else:
        orientation = orientation_of(image)
    if enough_hw is not None:
        h, w = enough_hw
        image.draft(None, (h, w) if orientation >= 5 else (w, h))  # acts on JPEG only, and never goes below the size asked for
    rgb = _to_rgb(image)
    return rgb.transpose(_TRANSPOSE[orientation]) if orientation in _TRANSPOSE else rgb


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise PictureError("it holds floating-point pixels, which have no fixed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # "I;16" and its byte orders; "I" is how older Pillow reads a 16-bit grey PNG
        wide = np.asarray(image).astype(np.int64)
        if wide.size and not 0 <= wide.min() <= wide.max() <= 65535:
            raise PictureError("it holds 32-bit numbers, which have no fixed range; save it with 8 or 16 bits")
        return Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, _GREY), rgba).convert("RGB")
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")  # convert() copies what is RGB already


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation, 2..8; 1 (upright) where there is none or it is damaged."""
    # getexif() of a PNG without the chunk in its head would decode all pixels to look behind them.
    if image.format == "PNG" and not ({"exif", "Raw profile type exif"} & image.info.keys()):
        return 1
    try:
        value: Any = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken EXIF block raises anything, and is no reason to lose the picture
        return 1
    return value if value in _TRANSPOSE else 1


def _has_whole_tail(path: str | Path, format_name: str | None) -> bool:
    """Whether the file ends as its format says. False means "look closer", not "broken": bytes after the end are legal."""
    with Path(path).open("rb") as file:
        if format_name == "WEBP":  # RIFF: bytes 4..8 are the length of all that follows
            head = file.read(8)
            return Path(path).stat().st_size >= int.from_bytes(head[4:8], "little") + 8
        file.seek(max(0, Path(path).stat().st_size - 64))
        tail = file.read()
    if format_name in ("JPEG", "MPO"):
        return tail.rstrip(b"\x00").endswith(b"\xff\xd9")
    return format_name == "PNG" and b"IEND\xaeB`\x82" in tail


def _reason(error: Exception, path: str | Path | None = None) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "it is not a picture" if path is None else _what_else(path)
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"it cannot be read ({error.strerror})"
    return f"it cannot be decoded ({str(error) or type(error).__name__})"


def _what_else(path: str | Path) -> str:
    """Return what a file is that can't be read as a picture, and what to do, by its first bytes."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(64)
    except OSError:
        head = b""
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: fetch the picture with git lfs pull"
    kind = next((kind for at, mark, kind in _UNREAD_MARKS if head[at : at + len(mark)] == mark), None)
    if kind == "video":
        return "it is a video: take pictures out of it first"
    return "it is not a picture" if kind is None else f"it is a picture of the format {kind}, which is not read: convert it to JPEG or PNG"
