"""report.html of a run."""

from __future__ import annotations

import base64
import io
import logging
import os
import shlex

import numpy as np
import pytest
from PIL import Image

from libreyolo.__main__ import main
from libreyolo.interfaces.events import TrainEnd, TrainFailed
from libreyolo.recipe import Recipe, recipe_fields
from libreyolo.record import shell
from libreyolo.record.numbers import number, setting, size
from libreyolo.record.report.facts import read_run
from libreyolo.record.report.html import element
from libreyolo.record.report.listener import ReportListener
from libreyolo.record.report.pictures import MAX_BYTES, MAX_PICTURES, MAX_WIDTH, gallery
from libreyolo.record.report.run_page import write_run_report
from libreyolo.record.report.table import Cell, table
from libreyolo.record.status import StatusFile
from libreyolo.record.tables import ResultsTable
from tests.unit.record.conftest import start_event
from tests.unit.record.report_pages import HOSTILE, Reader, make_run, read

KEYS = recipe_fields(Recipe)


def report_of(run_dir) -> Reader:
    return read(write_run_report(run_dir, KEYS).read_text(encoding="utf-8"))


def table_with(reader: Reader, *head: str) -> list[list[str]]:
    """The rows of the table with these titles."""
    (found,) = [rows for rows in reader.tables if tuple(rows[0][: len(head)]) == head]
    return found[1:]


def test_an_element_escapes_what_is_not_an_element():
    made = element("p", "<b>", element("b", "a & b"), None, ["x", 1], class_="c", data_value=0.5, hidden=True, id=None, title='"')
    assert made == '<p class="c" data-value="0.5" hidden title="&quot;">&lt;b&gt;<b>a &amp; b</b>x1</p>'
    assert element("br") == "<br>"
    assert element("p", "a\x00\x1b\ud800b") == "<p>a\ufffd\ufffd?b</p>"


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "–"), (float("nan"), "–"), (0.70137, "0.7014"), (12.3456, "12.35"), (300.0, "300"), (7, "7"), (1.2e-5, "1.2e-05"), (0.05, "0.0500")],
)
def test_numbers_are_written_short(value, written):
    assert number(value) == written


def test_sizes_and_settings_are_written_as_people_type_them():
    assert [size(700), size(1_500_000), size(3 * 10**9)] == ["700 B", "1.5 MB", "3.0 GB"]
    assert [setting(v) for v in (None, True, [0, 1], 0.1, "x")] == ["null", "true", "[0, 1]", "0.1", "x"]


def test_the_page_of_a_run_says_what_it_was(tmp_path):
    reader = report_of(make_run(tmp_path))
    tiles = dict(reversed(list(zip(reader.words, reader.words[1:], strict=False))))  # of several the first
    assert (tiles["model"], tiles["best mAP50-95"], tiles["best epoch"], tiles["epochs"]) == ("yolo9t", "0.5000", "5", "5 of 5")
    assert tiles["duration"] == "0:00:08"  # the clock of the last row, 7.5 s
    assert "completed" in reader.words
    assert table_with(reader, "file", "size") == [["weights/best.pt", "700 B"], ["weights/last.pt", "1.5 MB"]]


def test_no_name_of_the_users_is_taken_for_markup(tmp_path):
    reader = report_of(make_run(tmp_path, state="failed", error=f"RuntimeError: {HOSTILE}", overrides=[f"data={HOSTILE}"]))
    assert sum(HOSTILE in words for words in reader.words) >= 5  # title, error, class, setting, command
    assert reader.values("a", "href")[-1:] == ["plots/a%20%3Cnew%3E%20picture.png"]


def test_the_classes_are_those_of_the_best_epoch_and_absent_ones_are_dashes(tmp_path):
    rows = table_with(report_of(make_run(tmp_path)), "class")
    assert rows == [[HOSTILE, "0.2500"], ["dog", "0.7500"], ["unseen", "–"]]


def test_typed_keys_come_first_then_what_differs_from_the_defaults(tmp_path):
    run = make_run(tmp_path, overrides=["+batch=16", "experiment=demo"])
    reader = report_of(run)
    changed, everything = [rows[1:] for rows in reader.tables if rows[0] == ["key", "value", "default", "meaning"]]
    assert [row[0] for row in changed] == ["batch typed", "data", "epochs", "family", "lr0", "size"]
    assert changed[4] == ["lr0", "0.5", "0.01", KEYS["lr0"].metadata["help"]]
    assert [row[0].split()[0] for row in everything] == ["batch", "data", "epochs", "family", "lr0", "size"]
    assert "+batch=16 experiment=demo" in reader.words


def test_the_commands_are_those_of_this_run_and_survive_a_shell(tmp_path):
    run = make_run(tmp_path / "a run (1)")
    commands = [words for words in report_of(run).words if "train.py" in words or "-m libreyolo" in words]
    train_py = shlex.split(shell.train())[1]
    assert shlex.split(commands[0]) == ["python", "train.py", f"data={HOSTILE}"]
    assert [shlex.split(line) for line in commands[1:]] == [
        [shell.python(), train_py, f"cfg='{run}/train_config.yaml'"],
        [shell.python(), train_py, f"resume='{run}'", "epochs=10"],
        [shell.python(), "-m", "libreyolo", "val", f"{run}/weights/best.pt"],
    ]


def test_a_run_that_can_go_on_is_told_so_without_more_epochs(tmp_path):
    run = make_run(tmp_path, state="interrupted", epochs=3, error="KeyboardInterrupt")
    words = report_of(run).words
    assert shell.train(f"resume={run}") in words and "KeyboardInterrupt" in words and "interrupted" in words


def test_the_profile_becomes_a_table_and_one_that_reads_otherwise_stays_as_it_is(tmp_path):
    run = make_run(tmp_path)
    lines = "phase   host ms  device ms  share\nwaiting for data  1.50  0.25   25.0%\nforward  4.50  4.00   75.0%\nstep   6.00  4.25\n"
    (run / "profile.txt").write_text(f"Where the time went, mean of 4 steps:\n{lines}")
    rows = table_with(report_of(run), "phase")
    assert [row[:4] for row in rows] == [["waiting for data", "1.5", "0.2500", "25.0 %"], ["forward", "4.5", "4", "75.0 %"]]
    (run / "profile.txt").write_text("a sentence <b>\n")
    assert "a sentence <b>\n" in report_of(run).words


def test_speed_is_the_mean_over_the_epochs(tmp_path):
    run = make_run(tmp_path, epochs=2)
    (run / "metrics.jsonl").write_text(
        '{"epoch": 1, "time": 2.0, "system/waiting_share": 0.1}\n{"epoch": 2, "time": 4.0, "system/waiting_share": 0.3}\n'
    )
    rows = next(rows for rows in report_of(run).tables if rows[0] == ["", "mean over the epochs"])
    assert rows[1:] == [["all epochs", "0:00:04"], ["an epoch, on average", "2 s"], ["waiting share", "20.0%"]]


@pytest.mark.parametrize("broken", [None, "{half", "[1]", ""])
def test_a_directory_with_missing_or_broken_files_still_has_a_page(broken, tmp_path):
    names = ("status.json", "environment.json", "metrics.jsonl", "train_config.yaml", ".hydra/overrides.yaml")
    for name in names if broken is not None else ():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(broken)
    (tmp_path / "train.log").write_text("Traceback\nlibreyolo.errors.UserError: lr0=-1 is too small.\n")
    assert {"failed", "lr0=-1 is too small."} <= set(report_of(tmp_path).words)


@pytest.mark.parametrize("kind", ["UserError", "AgreedError"])
def test_an_error_whose_sentence_says_all_is_shown_without_its_kind(kind, tmp_path):
    run = make_run(tmp_path, state="failed", error=f"{kind}: the loss is not finite.")
    assert read_run(run).error == "the loss is not finite."


def test_pictures_are_inside_the_page_small_ones_as_they_are_and_large_ones_smaller(tmp_path):
    small, large, broken = tmp_path / "small.png", tmp_path / "predictions.png", tmp_path / "broken.png"
    Image.new("RGBA", (30, 20), (0, 128, 128, 255)).save(small)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (500, 2000, 3), dtype=np.uint8)).save(large)
    broken.write_bytes(small.read_bytes()[:60])
    reader = read("<!doctype html><script></script>" + "".join(gallery([small, large, broken])))
    first, second = reader.values("img", "src")  # the one with a caption of its own comes first
    assert first.startswith("data:image/jpeg;base64,") and len(first) < large.stat().st_size
    with Image.open(io.BytesIO(base64.b64decode(first.partition(",")[2]))) as shown:
        assert shown.size == (MAX_WIDTH, round(500 * MAX_WIDTH / 2000))
    assert large.stat().st_size > MAX_BYTES
    assert base64.b64decode(second.removeprefix("data:image/png;base64,")) == small.read_bytes()
    assert any(words.startswith("broken.png could not be read") for words in reader.words)


def test_more_pictures_than_a_page_holds_are_counted(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "0.png")
    assert "3 more pictures are in plots/." in gallery([tmp_path / "0.png"] * (MAX_PICTURES + 3))[-1]


def test_a_table_tells_scripts_what_to_sort_by():
    reader = Reader()
    reader.feed(table(["name", "x"], [["b", 0.123456], ["a", None], ["c", Cell("1 MB", 1e6)]], marked=2))
    assert reader.tables == [[["name", "x"], ["b", "0.1235"], ["a", "–"], ["c", "1 MB"]]]
    assert reader.values("td", "data-value") == ["0.123456", "1000000.0"]
    assert list(reader.values("td", "class")) == ["num"] * 3
    assert reader.values("tr", "class") == ["marked"]
    assert table(["name"], []) == ""


@pytest.mark.parametrize("ends", ["well", "by an error", "well and then by a callback's error"])
def test_a_run_leaves_its_page_however_it_ends(ends, tmp_path, run_epochs):
    listeners = [ResultsTable(tmp_path), StatusFile(tmp_path), ReportListener(tmp_path, Recipe)]
    run_epochs(listeners, tmp_path, 3, finish="well" in ends)
    if "error" in ends:
        for listener in listeners:
            listener.on_exception(TrainFailed(tmp_path, RuntimeError("no <memory>")))
    words = read((tmp_path / "report.html").read_text()).words
    assert ("completed" in words) is (ends == "well")
    assert ("failed" in words and "RuntimeError: no <memory>" in words) is (ends != "well")


def test_a_resumed_run_refreshes_its_page(tmp_path, run_epochs):
    for start, last in ((0, 2), (2, 5)):
        run_epochs([ResultsTable(tmp_path), StatusFile(tmp_path), ReportListener(tmp_path, Recipe)], tmp_path, last, start_epoch=start)
        assert f"{last} of 5" in read((tmp_path / "report.html").read_text()).words


def test_the_shell_writes_the_page_of_a_killed_run_and_refuses_other_folders(tmp_path, capsys):
    run = make_run(tmp_path / "run", state="running", config={"imgsz": 320})
    assert main(["report", str(run)]) == 0
    page = run / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    rows = next(rows for rows in read(page.read_text()).tables if rows[0][0] == "key")
    assert ["imgsz", "320", "640"] in [row[:3] for row in rows]  # the family's own default
    (tmp_path / "other").mkdir()
    assert main(["report", str(tmp_path / "other")]) == 1
    assert "holds neither a run nor the jobs of a sweep; name the directory" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_warned_about_once_and_ends_nothing(tmp_path, caplog, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("libreyolo.record.report.run_page.write_text", refuse)
    listener = ReportListener(tmp_path, Recipe)
    listener.on_train_start(start_event(tmp_path))
    with caplog.at_level(logging.WARNING):
        listener.on_train_end(TrainEnd(tmp_path, {}))
        listener.on_exception(TrainFailed(tmp_path, RuntimeError()))
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
