"""The pictures in docs/images and the command that makes them."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

from benchmarks.docs_images import DEMOS, IMAGES, MAX_BYTES, ROOT, shrunk


def test_a_picture_that_fits_stays_and_one_that_does_not_gets_smaller_in_its_shape():
    plain = Image.new("RGB", (400, 300), "teal")
    with Image.open(io.BytesIO(shrunk(plain))) as kept:
        assert kept.convert("RGB").tobytes() == plain.tobytes()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 180, 3), dtype=np.uint8))
    content = shrunk(noise, 8_000)
    with Image.open(io.BytesIO(content)) as small:
        assert small.width < 180 and small.height == round(small.width / 3)
    assert 4_000 < len(content) <= 8_000
    with pytest.raises(ValueError, match="does not fit"):
        shrunk(noise, 100)


def test_every_picture_in_docs_is_small_and_one_that_the_command_makes():
    made = {f"{demo.task}_{picture}.png" for demo in DEMOS for picture in demo.pictures} | {"report.png"}
    found = {path.name: path.stat().st_size for path in IMAGES.glob("*")}
    assert set(found) <= made
    assert {name: size for name, size in found.items() if size > MAX_BYTES} == {}


def test_the_readme_shows_pictures_that_are_there():
    shown = re.findall(r"docs/images/([\w.]+)", (ROOT / "README.md").read_text())
    assert shown and all((IMAGES / name).exists() for name in shown)
