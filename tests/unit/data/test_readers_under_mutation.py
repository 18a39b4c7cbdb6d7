"""A few thousand inputs of the fuzzing run, so that what it found stays found (benchmarks/fuzz.py and fuzz_sets.py; figures in fuzz.md)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.fuzz import TARGETS, Count, mutated
from benchmarks.fuzz_sets import Sets

NUM = {"labels": 3000, "yaml": 300, "lists": 300, "coco": 1000}
# Every input that once ended in something else than an answer or a refusal.
FOUND = {
    "yaml": [
        b"!!timestamp",
        b"!!int",
        b"!!bool",
        b"train: !!float",
        b"!!float\nesimi:ge_i{-0",
        b'train: "a\\0b"\nnames: [x]',
        b'train: i\nnames: ["\\x1b"]',
    ],
    "lists": [b"x" * 300, b"~e", b"~\x00e1", b"a/" * 3000],
    "labels": [b"\x00" * 40],
    "coco": [b"[" * 4000, b'{"images":[],"annotations":[],"categories":[{"id":1e999}]}'],
}


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_give_an_answer_by_the_rules_or_one_sentence(name: str, tmp_path: Path) -> None:
    count = Count(TARGETS[name](tmp_path))
    draw = random.Random(7)
    for raw in FOUND[name]:
        count.take(raw)
    for _ in range(NUM[name]):
        count.take(mutated(draw.choice(count.target.seeds), draw.choice(count.target.seeds), draw))
    assert count.failures == {}
    assert count.outcomes["read"] > NUM[name] / 20, "the inputs must not all be broken beyond reading"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of spoilt pictures
def test_any_set_of_any_task_is_read_or_refused_in_one_sentence_and_the_check_agrees_with_the_training(tmp_path: Path) -> None:
    count = Count(Sets(tmp_path))
    for number in range(40):
        count.take(f"test/{number}".encode())
    assert count.failures == {}
    assert min(count.outcomes["read"], count.outcomes["refused"]) > 8
