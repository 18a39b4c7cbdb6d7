"""results.csv and metrics.jsonl."""

from __future__ import annotations

import csv
import json
import logging
import math

import numpy as np
import pytest

from libreyolo.interfaces.events import EpochEnd
from libreyolo.record.tables import FIRST_COLUMNS, ResultsTable, read_results
from tests.unit.record.conftest import row_of, start_event


def table_after(run_dir, *rows, start_epoch=0):
    table = ResultsTable(run_dir)
    table.on_train_start(start_event(run_dir, start_epoch=start_epoch))
    for row in rows:
        table.on_epoch_end(EpochEnd(row["epoch"], row, bool(row.get("is_best"))))
    return table


def lines_of(run_dir):
    return (run_dir / "results.csv").read_text().splitlines()


def test_first_ten_columns_are_fixed_and_the_rest_follow_as_they_come(tmp_path):
    table_after(tmp_path, {"lr/group0": 0.1, "train/box_loss": 1.0, "epoch": 1, "train/loss": 2.0})
    assert lines_of(tmp_path) == [
        "epoch,time,train/loss,validated,is_best,current_metric,current_metric_name,best_metric,best_metric_name,best_epoch,lr/group0,train/box_loss",
        "1,,2.0,,0,,,,,,0.1,1.0",
    ]


def test_booleans_are_numbers_and_missing_values_are_empty(tmp_path):
    table_after(tmp_path, {"epoch": 1, "validated": True, "is_best": np.bool_(False), "best_metric": None, "time": np.float32(0.5)})
    assert lines_of(tmp_path)[1] == "1,0.5,,1,0,,,,,"
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert list(record) == list(FIRST_COLUMNS)
    assert (record["validated"], record["is_best"], record["best_metric"], record["time"]) == (1, 0, None, 0.5)


def test_a_new_column_is_added_at_the_end_and_earlier_rows_get_an_empty_cell(tmp_path):
    table_after(tmp_path, row_of(1, validated=False), row_of(2), row_of(3, validated=False))
    with (tmp_path / "results.csv").open(newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == [*FIRST_COLUMNS, "train/box_loss", "lr/group0", "metrics/mAP50-95", "metrics/precision(B)"]
    assert [len(row) for row in rows] == [14, 14, 14]
    assert [row[12] for row in rows] == ["", "0.2", ""]
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(list(record) == header for record in records)
    assert [record["metrics/mAP50-95"] for record in records] == [None, 0.2, None]


def test_numbers_that_are_not_finite_become_empty_with_a_warning_that_names_them(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        table_after(tmp_path, {"epoch": 1, "train/loss": math.nan, "time": math.inf, "best_metric": -1.0})
    assert lines_of(tmp_path)[1] == "1,,,,0,,,-1.0,,"
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["train/loss", "time"]
    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: 1 / 0)


def test_resuming_drops_rows_from_the_start_epoch_on_and_keeps_the_earlier_ones(tmp_path):
    table_after(tmp_path, row_of(1), row_of(2), row_of(3))
    before = lines_of(tmp_path)
    table_after(tmp_path, {**row_of(3), "train/loss": 77.0}, row_of(4), start_epoch=2)
    after = lines_of(tmp_path)
    assert after[:3] == before[:3]
    assert [row["epoch"] for row in read_results(tmp_path / "results.csv")] == [1, 2, 3, 4]
    assert read_results(tmp_path / "results.csv")[2]["train/loss"] == 77.0
    assert [row["epoch"] for row in read_results(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_resuming_after_a_kill_in_the_middle_of_a_row_repairs_both_files(tmp_path):
    table_after(tmp_path, row_of(1), row_of(2))
    for name in ("results.csv", "metrics.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('3,"hal' if name.endswith("csv") else '{"epoch": 3, "ti')
    assert [row["epoch"] for row in read_results(tmp_path / "results.csv")] == [1, 2]
    table_after(tmp_path, row_of(3), start_epoch=2)
    assert [row["epoch"] for row in read_results(tmp_path / "results.csv")] == [1, 2, 3]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("damage", [b"{bad\n", b"\xff\xfe\x00bad\n", b"[1]\n"])
def test_resuming_beside_a_damaged_file_takes_the_other_and_keeps_what_it_held(damage, tmp_path, caplog):
    table_after(tmp_path, row_of(1), row_of(2))
    (tmp_path / "metrics.jsonl").write_bytes(damage)
    table_after(tmp_path, row_of(3), start_epoch=2)
    assert [row["epoch"] for name in ("metrics.jsonl", "results.csv") for row in read_results(tmp_path / name)] == [1, 2, 3, 1, 2, 3]
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damage
    assert "metrics.jsonl is damaged (" in caplog.text


def test_resuming_without_a_file_that_can_be_read_begins_anew(tmp_path):
    table_after(tmp_path, row_of(1))
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\n")
    (tmp_path / "results.csv").write_bytes(b"\xff\n")
    table_after(tmp_path, row_of(2), start_epoch=1)
    assert [row["epoch"] for row in read_results(tmp_path / "results.csv")] == [2]
    assert sorted(path.name for path in tmp_path.glob("*.damaged")) == ["metrics.jsonl.damaged", "results.csv.damaged"]


def test_resuming_with_only_the_csv_keeps_its_rows(tmp_path):
    table_after(tmp_path, row_of(1), row_of(2))
    (tmp_path / "metrics.jsonl").unlink()
    before = lines_of(tmp_path)
    table_after(tmp_path, start_epoch=2)
    assert lines_of(tmp_path) == before


def test_a_run_from_the_first_epoch_starts_both_files_anew(tmp_path):
    table_after(tmp_path, row_of(1), row_of(2))
    table_after(tmp_path, row_of(1))
    assert [row["epoch"] for row in read_results(tmp_path / "results.csv")] == [1]


def test_an_epoch_told_again_replaces_its_row(tmp_path):
    table_after(tmp_path, row_of(1), row_of(2), {**row_of(2), "train/loss": 5.5})
    assert [(row["epoch"], row["train/loss"]) for row in read_results(tmp_path / "results.csv")] == [(1, 8.0), (2, 5.5)]


def test_texts_with_commas_and_line_breaks_stay_in_their_cell(tmp_path):
    table_after(tmp_path, {"epoch": 1, "current_metric_name": 'a,"b"\nc'})
    assert len(lines_of(tmp_path)) == 2
    assert read_results(tmp_path / "results.csv")[0]["current_metric_name"] == 'a,"b" c'


def test_values_survive_the_round_trip_to_the_last_bit(tmp_path):
    table_after(tmp_path, {"epoch": 1, "train/loss": 0.1 + 0.2, "time": 1e-17})
    row = read_results(tmp_path / "results.csv")[0]
    assert (row["train/loss"], row["time"]) == (0.1 + 0.2, 1e-17)
    assert read_results(tmp_path / "absent.csv") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "results.csv"]  # no temporary file is left


def test_a_text_that_a_spreadsheet_would_compute_stays_a_text(tmp_path):
    texts = {"a": "=1+1", "b": "@SUM(A1)", "c": '+cmd|" /C calc"!A0', "d": "-2+3", "e": "-1e-3x", "=f": "plain"}
    table_after(tmp_path, {"epoch": 1, "train/loss": -1.5, **texts})
    with (tmp_path / "results.csv").open(newline="") as file:
        header, row = list(csv.reader(file))
    assert not [cell for cell in header if cell.startswith(tuple("=+@-"))]
    assert row[header.index("train/loss")] == "-1.5", "numbers are numbers"
    assert [row[header.index(name)] for name in "abcde"] == [f"'{texts[name]}" for name in "abcde"]
