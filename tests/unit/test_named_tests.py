"""Documents name tests; a name that no longer exists is an empty promise."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
# The numbers that were given; the gaps are theirs.
CASES = [f"B{number:02d}" for number in range(1, 71) if number not in (19, 21, 25, 42, 45, 47, 48, 51, 54, 56, 57, 58, 59, 61, 68, 69)]


@lru_cache
def defined_in(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("document", ["docs/cases.md", "SECURITY.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    named = NAMED.findall((ROOT / document).read_text(encoding="utf-8"))
    assert len(named) > 10
    missing = [f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in defined_in(path)]
    assert missing == []


def test_every_case_stands_there_once_with_a_test() -> None:
    lines = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if re.match(r"\| B\d\d \|", line)]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == CASES
    assert [row for row in rows if not NAMED.search(row)] == []


def test_every_claim_of_the_security_document_names_its_test() -> None:
    claims = re.split(r"\n- ", (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("## What is not trusted")[1].split("\n## ")[0])[1:]
    assert len(claims) > 10
    assert [claim for claim in claims if not NAMED.search(claim)] == []
