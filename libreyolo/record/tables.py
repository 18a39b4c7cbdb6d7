"""The numbers of a run, one row an epoch: results.csv for people, metrics.jsonl for programs, with the same columns."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from libreyolo.interfaces.events import EpochEnd, Listener, TrainStart
from libreyolo.record.atomic import write_text

log = logging.getLogger(__name__)

FIRST_COLUMNS = (
    "epoch",
    "time",
    "train/loss",
    "validated",
    "is_best",
    "current_metric",
    "current_metric_name",
    "best_metric",
    "best_metric_name",
    "best_epoch",
)

Value = int | float | str | None
Row = dict[str, Value]


class ResultsTable(Listener):
    """Writes results.csv and metrics.jsonl, a row after each epoch.

    The first ten columns are fixed, the others follow in the order in which they first came: parts of the loss, metrics, learning rates,
    "system/..." (speed, waiting, memory), and the metrics of every class ("class/cat/mAP50-95"), in both files, so that a name means the same
    number in every record. A new column is added at the end and both files are written anew. Missing values are empty (null), booleans 0 or 1;
    a number that is not finite is left empty and warned about, so the
    files always parse. A resumed run drops the rows from its start epoch on (they may be of a run that died before its checkpoint) and
    keeps the earlier ones; a run from the first epoch starts both files anew.
    """

    def __init__(self, run_dir: Path) -> None:
        self.csv_path = Path(run_dir) / "results.csv"
        self.jsonl_path = Path(run_dir) / "metrics.jsonl"
        self._columns = list(FIRST_COLUMNS)
        self._rows: list[Row] = []

    def on_train_start(self, event: TrainStart) -> None:
        self._columns, self._rows = list(FIRST_COLUMNS), []
        if event.start_epoch > 0:
            self._rows = [row for row in self._earlier() if _epoch_of(row) <= event.start_epoch]
            self._add_columns(self._rows)
        self._write_all()

    def _earlier(self) -> list[Row]:
        """Return the rows of the lives before this one, from whichever file can be read; one that cannot is kept under another name."""
        for path in (self.jsonl_path, self.csv_path):
            try:
                if path.exists():
                    return read_results(path)
            except (ValueError, csv.Error) as error:
                kept = path.with_name(f"{path.name}.damaged")
                path.replace(kept)
                log.warning("%s is damaged (%s) and begins anew; what it held is in %s.", path, error, kept.name)
        return []

    def on_epoch_end(self, event: EpochEnd) -> None:
        given = {"epoch": event.epoch, "is_best": event.is_best, **event.row}
        row = {name: _plain(name, value, event.epoch) for name, value in given.items()}
        kept = [earlier for earlier in self._rows if _epoch_of(earlier) < event.epoch]
        rewrite = len(kept) < len(self._rows)
        self._rows = [*kept, row]
        if self._add_columns([row]) or rewrite:
            self._write_all()
            return
        with self.csv_path.open("a", encoding="utf-8", newline="") as file:
            file.write(_csv_line(_cell(row.get(name)) for name in self._columns))
        with self.jsonl_path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._json_line(row))

    def _add_columns(self, rows: Iterable[Row]) -> bool:
        num_before = len(self._columns)
        self._columns = list(dict.fromkeys([*self._columns, *(name for row in rows for name in row)]))
        return len(self._columns) > num_before

    def _json_line(self, row: Row) -> str:
        return json.dumps({name: row.get(name) for name in self._columns}, allow_nan=False, ensure_ascii=False) + "\n"

    def _write_all(self) -> None:
        lines = [_csv_line(map(_cell, self._columns)), *(_csv_line(_cell(row.get(name)) for name in self._columns) for row in self._rows)]
        write_text(self.csv_path, "".join(lines))
        write_text(self.jsonl_path, "".join(self._json_line(row) for row in self._rows))


def read_results(path: Path) -> list[Row]:
    """Return the rows of a results.csv or metrics.jsonl, oldest first; numbers as numbers, empty cells as None; [] where there is no file.

    A last line that a killed run left half written is left out. Raises ValueError or csv.Error for a damaged file.
    """
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n") and line.strip()]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in whole]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line is no row")
        return rows
    return [{name: _parse(cell) for name, cell in row.items()} for row in csv.DictReader(whole)]


def _epoch_of(row: Row) -> int:
    epoch = row.get("epoch")
    return int(epoch) if isinstance(epoch, (int, float)) else 0


def _plain(name: str, value: Any, epoch: int) -> Value:
    """Return a value as JSON knows it; booleans as 0 or 1, numbers that are not finite as None (with a warning)."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Integral):  # bool too
        return int(value)
    if not isinstance(value, Real) and hasattr(value, "item"):
        value = value.item()  # NumPy booleans, 0-dim arrays and tensors
        if isinstance(value, Integral):
            return int(value)
    if not isinstance(value, Real):
        return str(value)
    number = float(value)
    if math.isfinite(number):
        return number
    log.warning("%s of epoch %d is %s; its cell in results.csv is left empty.", name, epoch, number)
    return None


def _cell(value: Value) -> str:
    """Return a value as its cell; a text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return "" if value is None else str(value)


def _csv_line(cells: Iterable[str]) -> str:
    buffer = io.StringIO()
    # A line break in a text would make the row two lines, which a killed run could leave half of.
    csv.writer(buffer, lineterminator="\n").writerow(" ".join(cell.splitlines()) for cell in cells)
    return buffer.getvalue()


def _parse(cell: str | None) -> Value:
    if not cell:
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
