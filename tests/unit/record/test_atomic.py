"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from libreyolo.record.atomic import write_bytes, write_new


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_is_written_whole_and_an_earlier_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:

        def refuse(source: object, target: object) -> None:
            raise PermissionError("Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "new" / "mlflow.db"
    for content in (b"first", b"second"):
        write_new(path, content)
        assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]  # nothing is left beside it
    write_bytes(path, b"third")
    assert path.read_bytes() == b"third"
