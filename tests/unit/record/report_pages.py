"""Run directories without any training, and a reader of pages that refuses what a browser would forgive."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from libreyolo.record.report.html import VOID
from tests.unit.record.conftest import row_of

HOSTILE = "<script>alert('x')</script> & \"quotes\"/slash"  # a class, a folder, a setting that a browser must never take for markup


def make_run(folder: Path, *, state: str = "completed", metric: float | None = 0.5, epochs: int = 5, **files: Any) -> Path:
    """Write the records of a run of `epochs` epochs; `files`: overrides, error, config."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    (folder / "weights").mkdir(exist_ok=True)
    rows = [row_of(epoch, validated=epoch % 2 == 1) for epoch in range(1, epochs + 1)]
    for row in rows:
        if row["validated"]:
            row |= {f"class/{HOSTILE}/mAP50": 0.25 * row["epoch"] / epochs, "class/dog/mAP50": 0.75, "class/unseen/mAP50": -1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = "metrics/mAP50-95" if metric is not None else None
    status = {"state": state, "epoch": epochs, "epochs": 5, "best_metric": metric, "best_metric_name": name, "best_epoch": epochs}
    (folder / "status.json").write_text(json.dumps({**status, "error": files.get("error")}))
    config = {"family": "yolo9", "size": "t", "data": f"sets/{HOSTILE}", "epochs": 5, "lr0": 0.5, "batch": 16, **files.get("config", {})}
    (folder / "train_config.yaml").write_text(yaml.safe_dump(config))
    life = {"started": "2026-01-31T12:00:00+0000", "command": ["python", "train.py", f"data={HOSTILE}"], "packages": {"torch": "2.9"}, "cuda": None}
    (folder / "environment.json").write_text(json.dumps([{**life, "device": "an older one"}, life]))
    (folder / "weights" / "last.pt").write_bytes(b"x" * 1_500_000)
    (folder / "weights" / "best.pt").write_bytes(b"x" * 700)
    Image.new("RGB", (64, 48), "teal").save(folder / "plots" / "a <new> picture.png")
    if "overrides" in files:
        (folder / ".hydra").mkdir(exist_ok=True)
        (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(files["overrides"]))
    return folder


class Reader(HTMLParser):
    """Reads a page strictly: an element that is not closed in its place is an error, and so is one that loads anything from outside."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []  # texts that a reader sees
        self.attributes: list[tuple[str, str, str]] = []  # element, name, value
        self.tables: list[list[list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            assert not name.startswith("on"), f"{tag} runs a script: {name}={value}"
            loads = name in ("src", "data", "poster", "srcset") or (tag == "link" and name == "href")
            assert not loads or (value or "").startswith("data:"), f"{tag} {name}={value} is loaded from outside"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            assert "url(" not in data and "@import" not in data
        elif self.open and self.open[-1] != "script" and data.strip():
            self.words.append(data)
            if "td" in self.open or "th" in self.open:
                self.tables[-1][-1][-1] += data

    def values(self, tag: str, name: str) -> list[str]:
        return [value for t, n, value in self.attributes if (t, n) == (tag, name)]


def read(page: str) -> Reader:
    """Return a page as it is understood. Raises AssertionError for one that is not well formed or not self-contained."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert page.startswith("<!doctype html>")
    assert page.count("<script>") == 1, "a name of the user's became a script"
    assert "http://" not in page and "https://" not in page
    return reader
