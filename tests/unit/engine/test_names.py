"""The engine knows no family and no task: a search for their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import libreyolo.engine
from libreyolo import schema
from libreyolo.interfaces.family import FILE_SUFFIX

FILES = sorted(Path(libreyolo.engine.__file__).parent.glob("*.py"))
# What tasks are called in prose, and what only some of them have.
OF_TASKS = ("detection", "detector", "classification", "classifier", "segmentation", "restoration", "boxes", "mask", "masks", "map50", "miou")


def forbidden() -> re.Pattern[str]:
    """Whole identifiers and words: every family with or without a size, its published files' prefix, every task."""
    families = [f"(?:{f.name}|{f.prefix})(?:{'|'.join(map(re.escape, f.sizes))})?" for f in schema.families().values()]
    tasks = [*FILE_SUFFIX, *OF_TASKS]
    words = "|".join([*families, *tasks])
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])|if\s+(?:not\s+)?(?:\w+\.)*task\b|\btask\s*(?:==|!=|in\b)", re.IGNORECASE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_of_the_engine_names_a_family_or_a_task(path: Path) -> None:
    found = [
        f"{number}: {line.strip()}" for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1) if forbidden().search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    ['if task == "detect":', "if self.family.task in ONES:", "# as YOLOX does", "yolo9t", "LibreFOMOs", "boxes = batch.boxes", "rtdetr.loss", "fomo"],
)
def test_the_search_finds_what_it_looks_for(line: str) -> None:
    assert forbidden().search(line)


@pytest.mark.parametrize(
    "line", ["is_floating_point()", "checkpoint.write(path)", "self.task.terms(net, batch)", 'kind == "yoloxwarmcos"', "from libreyolo import engine"]
)
def test_the_search_leaves_other_words_alone(line: str) -> None:
    assert not forbidden().search(line)
