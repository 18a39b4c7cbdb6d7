"""The generated sets that are trained on: noisy JPEGs of 640x480 pixels (about 110 kB) with 3 to 11 filled outlines of 80 classes.

The picture of an index is the same everywhere. Beside the detection set stand three views of it: class folders, masks, and noisy and clean pairs.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from libreyolo.data.generated import make_set

VERSION = 1  # raise it when what is drawn or where it lies changes: a folder of an earlier version is not used
WIDTH, HEIGHT, BLOCK = 640, 480, 16
NUM_CLASSES = 80
NUM_FOLDERS = 8  # classes of the classification view
NUM_VAL = 64  # pictures of the plain validation split, which a throughput run reads and never judges
SIGMA = 12.0
VAL_SEED = 10**6


@dataclass(frozen=True)
class Scene:
    """A picture before its noise, with it, its class of every pixel (0 where nothing was drawn) and its label rows."""

    clean: NDArray[np.uint8]
    noisy: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    rows: list[str]


def scene(seed: int) -> Scene:
    """Draw one picture."""
    draws = np.random.default_rng(seed)
    blocks = draws.integers(0, 255, (HEIGHT // BLOCK, WIDTH // BLOCK, 3), dtype=np.uint8)
    picture = Image.fromarray(blocks).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    mask = Image.new("L", picture.size)
    pens, rows = (ImageDraw.Draw(picture), ImageDraw.Draw(mask)), []
    for _ in range(int(draws.integers(3, 12))):
        w, h = int(draws.integers(30, 200)), int(draws.integers(30, 200))
        x, y, label = int(draws.integers(0, WIDTH - w)), int(draws.integers(0, HEIGHT - h)), int(draws.integers(0, NUM_CLASSES))
        colour = tuple(int(v) for v in np.random.default_rng(label).integers(0, 255, 3))
        fills: tuple[Any, Any] = (colour, label % NUM_FOLDERS + 1)
        for pen, fill in zip(pens, fills, strict=True):
            (pen.rectangle if label % 2 else pen.ellipse)([x, y, x + w, y + h], fill=fill)
        rows.append(f"{label} {(x + w / 2) / WIDTH:.6f} {(y + h / 2) / HEIGHT:.6f} {w / WIDTH:.6f} {h / HEIGHT:.6f}")
    clean = np.asarray(picture)
    noisy = np.clip(clean + draws.normal(0, SIGMA, clean.shape), 0, 255).astype(np.uint8)
    return Scene(clean, noisy, np.asarray(mask), rows)


def _write_boxes(job: tuple[Path, str, int]) -> None:
    folder, split, index = job
    drawn = scene(index + (VAL_SEED if split == "val" else 0))
    Image.fromarray(drawn.noisy).save(folder / "images" / split / f"{index:06d}.jpg", quality=90)
    (folder / "labels" / split / f"{index:06d}.txt").write_text("\n".join(drawn.rows) + "\n")


def _write_mask(job: tuple[Path, str, int]) -> None:
    folder, split, index = job
    Image.fromarray(scene(index).mask).save(folder / "masks" / split / f"{index:06d}.png")


def _write_target(job: tuple[Path, str, int]) -> None:
    folder, split, index = job
    Image.fromarray(scene(index).clean).save(folder / "targets" / split / f"{index:06d}.jpg", quality=90)


def _all_cores(work: Callable[[tuple[Path, str, int]], None], jobs: list[tuple[Path, str, int]]) -> None:
    if len(jobs) <= NUM_VAL:  # a pool would take longer to start
        for job in jobs:
            work(job)
        return
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        pool.map(work, jobs, chunksize=16)


def below(scratch: Path) -> Path:
    """Return the folder of all sets of a scratch folder."""
    return scratch.resolve() / f"sets-v{VERSION}"


def detection(folder: Path, pictures: int) -> Path:
    """Return the data.yaml of `pictures` pictures below `folder`, drawn when it is first asked for; 64 others are for validation."""
    root = folder / f"boxes-{pictures}"
    names = "\n".join(f"  {i}: class{i}" for i in range(NUM_CLASSES))

    def write(unfinished: Path) -> None:
        for kind in ("images", "labels"):
            for split in ("train", "val"):
                (unfinished / kind / split).mkdir(parents=True)
        splits = {"train": pictures, "val": min(NUM_VAL, pictures)}
        _all_cores(_write_boxes, [(unfinished, split, i) for split, number in splits.items() for i in range(number)])

    return make_set(root, f"path: {root}\ntrain: images/train\nval: images/val\nnc: {NUM_CLASSES}\nnames:\n{names}\n", write)


def judged_detection(folder: Path, pictures: int) -> Path:
    """Return the data.yaml of the pictures of `detection` whose validation is over the training pictures, all of them."""
    view = folder / f"boxes-{pictures}-judged.yaml"
    view.write_text(detection(folder, pictures).read_text().replace("val: images/val", "val: images/train"))
    return view


def class_folders(folder: Path, pictures: int) -> Path:
    """Return a folder of class folders with the pictures of `detection`, the same ones in both splits."""
    source, root = detection(folder, pictures).parent / "images" / "train", folder / f"classes-{pictures}"

    def write(unfinished: Path) -> None:
        for index in range(pictures):
            for split in ("train", "val"):
                place = unfinished / "pictures" / split / f"class{index % NUM_FOLDERS}"
                place.mkdir(parents=True, exist_ok=True)
                os.link(source / f"{index:06d}.jpg", place / f"{index:06d}.jpg")

    return make_set(root, f"# {pictures} pictures of generated outlines in class folders\n", write).parent / "pictures"


def masks(folder: Path, pictures: int) -> Path:
    """Return the data.yaml of the pictures of `detection` with their masks; validation is over the training pictures."""
    names = ", ".join(["background", *(f"class{i}" for i in range(NUM_FOLDERS))])
    return _paired(folder, pictures, "masks", _write_mask, f"names: [{names}]\n", "images")


def pairs(folder: Path, pictures: int) -> Path:
    """Return the data.yaml of the pictures of `detection` beside the same ones without noise; validation is over the training pictures."""
    return _paired(folder, pictures, "targets", _write_target, "input_dir: inputs\ntarget_dir: targets\n", "inputs")


def _paired(folder: Path, pictures: int, kind: str, work: Callable[[tuple[Path, str, int]], None], keys: str, shown: str) -> Path:
    source, root = detection(folder, pictures).parent / "images" / "train", folder / f"{kind}-{pictures}"

    def write(unfinished: Path) -> None:
        for name in (shown, kind):
            (unfinished / name / "train").mkdir(parents=True)
        for index in range(pictures):
            os.link(source / f"{index:06d}.jpg", unfinished / shown / "train" / f"{index:06d}.jpg")
        _all_cores(work, [(unfinished, "train", i) for i in range(pictures)])

    return make_set(root, f"path: {root}\ntrain: {shown}/train\nval: {shown}/train\n{keys}", write)
