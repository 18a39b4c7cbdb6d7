"""Throw broken label files, data.yaml files, COCO files and picture lists at the readers and count what happens.

    python -m benchmarks.fuzz labels --seconds 300
    python -m benchmarks.fuzz yaml --seconds 300 --seed 2
    python -m benchmarks.fuzz coco --atheris -max_total_time=300        # guided by coverage; needs the package atheris

For every input only two outcomes are allowed: an answer that keeps the reader's promises, or a UserError of one line. Anything else (another
exception, a broken promise, more than `SLOW` seconds) is a failure, told once for each place in the code, with the shortest input that showed it.
Figures: fuzz.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from libreyolo.data.coco_labels import CocoLabels
from libreyolo.data.dataset_yaml import candidates, read_yaml
from libreyolo.data.labels import LabelFile, parse_labels
from libreyolo.data.sources import list_pictures
from libreyolo.errors import UserError, printable

SLOW = 5.0  # seconds that no reader may take for inputs of a few kilobytes
MAX_BYTES = 4096
WORDS = (
    b"\n \t\r\n \x00 \xef\xbb\xbf \xff \xe2\x80\xa8 nan inf -0 1e999 1e-400 0x1p3 1_0 , ; # 0.5 1.0 -1 2 99999999999999999999 \xd9\xa3 - : ? | > & * "
    b"! % @ [ ] { } \" ' &a *a <<: !!int !!float !!binary !!timestamp !!bool !!set !!omap !!python/none ~ null path: train: "
    b"val: test: valid: names: nc: "
    b'annotations: kpt_shape: download: images images/** images/*.png [ab] list.txt other.json . .. / ~nobody/x \\ "\\0" "\\ud800" "\\e[31m" '
    b"=1+1 <script> $ `id` yes no on 007 1e3 "
    b'"images":[ "annotations":[ "categories":[ "id":1 "image_id":1 "category_id":1 "bbox":[ "iscrowd":1 "file_name":"a.png" NaN Infinity true null'
).split(b" ")


class _SlowError(Exception):
    pass


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _SlowError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def mutated(seed: bytes, other: bytes, draw: random.Random) -> bytes:
    """Return `seed` with a few random changes: bytes, tokens, lines, and pieces of `other`."""
    text = bytearray(seed)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 7))):
        place = draw.randint(0, len(text))
        end = min(len(text), place + draw.choice((1, 2, 5, 20, 100)))
        match draw.randrange(8):
            case 0:
                text[place:end] = b""
            case 1:
                text[place:place] = draw.choice(WORDS)
            case 2:
                text[place:end] = draw.choice(WORDS)
            case 3:
                text[place:place] = bytes([draw.randrange(256)])
            case 4:
                text[place:place] = text[place:end] * draw.choice((1, 2, 40))
            case 5:
                start = draw.randint(0, len(other))
                text[place:end] = other[start : start + draw.choice((1, 4, 30, 200))]
            case 6 if place < len(text):
                text[place] ^= 1 << draw.randrange(8)
            case _:
                lines = text.split(b"\n")
                draw.shuffle(lines)
                text = bytearray(b"\n".join(lines))
    return bytes(text[:MAX_BYTES])


class Target(ABC):
    """A reader under test in a folder of its own, which holds pictures, labels and a list to be found."""

    seeds: tuple[bytes, ...]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("a.png", "b.png", "sub/c.png"):
            path = folder / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 4)).save(path)
        (folder / "list.txt").write_text("images/a.png\n")

    @abstractmethod
    def read(self, raw: bytes) -> None:
        """Read the bytes as the reader under test does, and check what it made of them; a UserError is as good."""


class Labels(Target):
    seeds = (
        b"0 0.5 0.5 0.2 0.4\n1 0.98 0.5 0.08 0.2\n",
        b"1 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\r\n0.0\t.5 5e-1 0.50 5.0E-1\n",
        b"\xef\xbb\xbf2 0.5 0.5 0.2 0.2 0.9\n\n0 nan 0.5 0.1 0.1\n0 512 300 40 40",
        b"",
    )

    def read(self, raw: bytes) -> None:
        nc = 1 + raw[0] % 3 if raw else 1
        found = parse_labels(raw, nc, keypoint_numbers=6 if raw[-1:] == b"6" else 0)
        assert_boxes(found, nc)
        lines = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1
        assert all(1 <= line <= lines and "\n" not in text for line, text in (*found.warnings, *found.errors))


class Yaml(Target):
    seeds = (
        b"path: .\ntrain: images\nval: images/sub\nnames: [cat, dog]\n",
        b"train:\n- images\n- list.txt\nval: null\nnc: 2\nnames:\n  0: cat\n  1: dog\ndownload: https://x/y.zip\n",
        b"path: ..\ntrain: 'images/**/*.png'\nvalid: ../images\nnames: {1: a, 0: b}\nkpt_shape: [17, 3]\n",
        b"train: &t [images, images/a.png]\nval: *t\nnames: {<<: {0: x}, 1: y}\nannotations: {train: a.json, val: b.json}\n",
        b'train: "images\\u0041"\nnames: ["\\x41", !!str 7, ~]\n',
    )

    def read(self, raw: bytes) -> None:
        path = self.folder / "data.yaml"
        path.write_bytes(raw)
        found = read_yaml(path)
        assert list(found.names) == list(range(found.nc)) and found.nc > 0
        assert all(isinstance(name, str) and printable(name) == name for name in found.names.values())
        for split, sources in found.sources.items():
            inside = all(place.is_relative_to(self.folder) for source in sources for place in candidates(source, found))
            if inside:  # never search the machine that this runs on
                list_pictures(found, split)


class Lists(Target):
    seeds = (b"images/a.png\n./images/b.png\n", b"# x\r\n\r\nimages\\a.png\r\nimages/none.png\n", b"\xef\xbb\xbfimages/sub/c.png")

    def read(self, raw: bytes) -> None:
        (self.folder / "list.txt").write_bytes(raw)
        path = self.folder / "data.yaml"
        path.write_bytes(b"train: list.txt\nnames: [a]\n")
        found = list_pictures(read_yaml(path), "train")
        assert all(Path(picture).is_file() for picture in found.pictures)


def _coco(**changes: Any) -> bytes:
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "a.png", "width": 8, "height": 4}, {"id": 9, "file_name": "images\\\\b.png"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 1, 4.5, 2], "iscrowd": 0},
            {"id": 2, "image_id": 9, "category_id": 5, "segmentation": [[0, 0, 4, 0, 4, 2]], "iscrowd": 0},
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 5, "name": "Dog "}],
    }
    return json.dumps(content | changes).encode()


class Coco(Target):
    seeds = (
        _coco(),
        _coco(images=[{"id": "7", "file_name": "a.png"}], annotations=[]),
        b'\xef\xbb\xbf{"images": [], "annotations": [], "categories": []}',
    )

    def read(self, raw: bytes) -> None:
        path = self.folder / "a.json"
        path.write_bytes(raw)
        pictures = [str(self.folder / "images" / name) for name in ("a.png", "b.png", "sub/c.png")]
        labels = CocoLabels(path, pictures, {0: "cat", 1: "dog"})
        labels.prepare()
        for place in range(3):
            found = labels.read(place, (4, 8)) if labels.is_used(place) else None
            if isinstance(found, LabelFile):
                assert_boxes(found, 2)


def assert_boxes(found: LabelFile, nc: int) -> None:
    assert found.boxes.dtype == np.float32 and found.boxes.shape == (len(found.labels), 4)
    assert np.all(found.boxes[:, 2:] > found.boxes[:, :2]) and np.all((found.boxes >= 0) & (found.boxes <= 1))
    assert np.all((found.labels >= 0) & (found.labels < nc))


TARGETS: dict[str, type[Target]] = {"labels": Labels, "yaml": Yaml, "lists": Lists, "coco": Coco}


class Count:
    """What happened so far."""

    def __init__(self, target: Target) -> None:
        self.target, self.outcomes, self.failures = target, Counter[str](), dict[str, bytes]()

    def take(self, raw: bytes) -> None:
        try:
            with _limit(SLOW):
                self.target.read(raw)
            self.outcomes["read"] += 1
        except UserError as error:
            self.outcomes["refused"] += 1
            if len(str(error).splitlines()) != 1 or printable(str(error)) != str(error):
                self._fail("a sentence of several lines or with control characters", raw)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            ours = [f for f in traceback.extract_tb(error.__traceback__) if "libreyolo" in f.filename]
            place = ours[-1] if ours else frame
            self._fail(f"{type(error).__name__} in {Path(place.filename).name}:{place.name}", raw)

    def _fail(self, what: str, raw: bytes) -> None:
        self.outcomes["failed"] += 1
        if what not in self.failures or len(raw) < len(self.failures[what]):
            self.failures[what] = raw

    def report(self) -> str:
        lines = [json.dumps(dict(self.outcomes) | {"inputs": sum(self.outcomes.values())})]
        return "\n".join([*lines, *(f"FAILURE {what}: {raw[:300]!r}" for what, raw in sorted(self.failures.items()))])


def mutate(count: Count, seconds: float, seed: int) -> None:
    """Feed mutated seeds, and mutated survivors of mutation, until the time is over."""
    draw, pool, end = random.Random(seed), list(count.target.seeds), time.monotonic() + seconds
    while time.monotonic() < end:
        raw = mutated(draw.choice(pool), draw.choice(pool), draw)
        read_before = count.outcomes["read"]
        count.take(raw)
        if len(pool) < 500 and draw.random() < (0.3 if count.outcomes["read"] > read_before else 0.005):
            pool.append(raw)


def guided(count: Count, arguments: list[str]) -> None:
    """Let atheris choose the inputs; it leaves the process by itself, so the figures are told every 5,000 inputs and at every new failure."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    def take(raw: bytes) -> None:
        known = len(count.failures)
        count.take(raw)
        if sum(count.outcomes.values()) % 5_000 == 0 or len(count.failures) > known:
            print(count.report(), flush=True)

    corpus = count.target.folder / "corpus"
    corpus.mkdir()
    for place, seed in enumerate(count.target.seeds):
        (corpus / str(place)).write_bytes(seed)
    names = ("labels", "dataset_yaml", "sources", "coco_labels")
    for name in names:
        module = sys.modules.get(f"libreyolo.data.{name}")
        for function in vars(module).values() if module else ():
            if callable(function) and getattr(function, "__module__", "") == f"libreyolo.data.{name}" and hasattr(function, "__code__"):
                atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], *arguments, f"-max_len={MAX_BYTES}", str(corpus)], take)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=tuple(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; further arguments go to libFuzzer")
    chosen, others = parser.parse_known_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        count = Count(TARGETS[chosen.target](Path(folder)))
        act: Callable[[], None] = (lambda: guided(count, others)) if chosen.atheris else (lambda: mutate(count, chosen.seconds, chosen.seed))
        act()
    print(count.report())
    return 1 if count.failures else 0


if __name__ == "__main__":
    sys.exit(main())
