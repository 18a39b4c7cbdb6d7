"""train.log and the handlers that write it."""

from __future__ import annotations

import logging
import re
import sys
import warnings

import pytest

from libreyolo.record.run_log import PACKAGES, PYTHON_WARNINGS, run_log


@pytest.fixture(autouse=True)
def no_root_handlers(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def state_of_logging() -> list[object]:
    loggers = [logging.getLogger(name) for name in (*PACKAGES, PYTHON_WARNINGS)]
    return [*((list(logger.handlers), logger.level, logger.propagate) for logger in loggers), warnings.showwarning]


def test_messages_of_the_packages_go_to_the_file_with_their_time(tmp_path):
    with run_log(tmp_path, append=False) as path:
        logging.getLogger("libreyolo.engine").info("epoch %d ✓", 1)
        logging.getLogger("launch.spawn").warning("careful")
        logging.getLogger("libreyolo").debug("not shown")
        logging.getLogger("other").error("not ours")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert path == tmp_path / "train.log"
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", "", line) for line in lines] == [
        "INFO libreyolo.engine: epoch 1 ✓",
        "WARNING launch.spawn: careful",
    ]


def test_the_terminal_shows_messages_plainly_and_names_what_is_worse_than_information(tmp_path, capsys):
    with run_log(tmp_path, append=False):
        logging.getLogger("libreyolo").info("hello")
        logging.getLogger("libreyolo").warning("careful")
    assert capsys.readouterr().err == "hello\nWARNING: careful\n"


def test_everything_is_as_before_afterwards_even_after_an_error(tmp_path):
    before = state_of_logging()
    with pytest.raises(RuntimeError), run_log(tmp_path, append=False):
        assert state_of_logging() != before
        raise RuntimeError
    assert state_of_logging() == before
    with (tmp_path / "train.log").open("a"):
        pass
    logging.getLogger("libreyolo").warning("after")
    assert "after" not in (tmp_path / "train.log").read_text()


def test_handlers_and_levels_of_the_user_stay(tmp_path):
    own, logger = logging.NullHandler(), logging.getLogger("libreyolo")
    logger.addHandler(own)
    logger.setLevel(logging.DEBUG)
    try:
        with run_log(tmp_path, append=False):
            logger.debug("kept")
        assert (own in logger.handlers, logger.level) == (True, logging.DEBUG)
    finally:
        logger.removeHandler(own)
        logger.setLevel(logging.NOTSET)
    assert "kept" in (tmp_path / "train.log").read_text()


def test_a_resumed_run_appends_and_a_new_one_begins_anew(tmp_path):
    for append, text in ((False, "one"), (True, "two")):
        with run_log(tmp_path, append=append):
            logging.getLogger("libreyolo").info(text)
    assert [line[-3:] for line in (tmp_path / "train.log").read_text().splitlines()] == ["one", "two"]
    with run_log(tmp_path, append=False):
        pass
    assert (tmp_path / "train.log").read_text() == ""


def test_warnings_of_python_are_in_the_file(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with run_log(tmp_path, append=False):
            warnings.warn("old call", stacklevel=1)
    assert "UserWarning: old call" in (tmp_path / "train.log").read_text()


def test_a_capture_of_warnings_that_was_on_before_stays_on(tmp_path):
    logging.captureWarnings(True)
    try:
        capturing = warnings.showwarning
        with run_log(tmp_path, append=False):
            pass
        assert warnings.showwarning is capturing
    finally:
        logging.captureWarnings(False)


def test_nothing_is_said_twice_where_the_root_logger_has_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stderr)])
    with run_log(tmp_path, append=False):
        logging.getLogger("libreyolo").warning("once")
    assert capsys.readouterr().err.count("once") == 1


def test_what_a_terminal_would_obey_in_a_name_is_written_as_its_escape_in_both_places(tmp_path, capsys):
    with run_log(tmp_path, append=False) as path:
        logging.getLogger("libreyolo").warning("%s cannot be used", "\x1b[2J\x1b]0;owned\x07\u202egnp.jpg")
        logging.getLogger("libreyolo").info("a table\n  of two lines")
    shown = "\\x1b[2J\\x1b]0;owned\\x07\\u202egnp.jpg cannot be used"
    for text in (path.read_text(encoding="utf-8"), capsys.readouterr().err):
        assert shown in text
        assert "\x1b" not in text
        assert "a table\n  of two lines" in text
