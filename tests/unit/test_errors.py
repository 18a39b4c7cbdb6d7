"""A user's mistake is one line, whatever the names in it hold."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from libreyolo.errors import UserError, counted, printable


@given(st.text())
def test_any_text_becomes_one_line_without_controls_and_is_then_left_alone(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in shown)
    shown.encode("utf-8")
    assert printable(shown) == shown


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])))
def test_letters_of_any_script_stay_as_they_are(text: str) -> None:
    assert printable(text) == text


def test_one_is_counted_as_one_and_none_and_two_as_many() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_an_error_about_a_hostile_name_is_one_line_and_survives_the_way_to_another_process() -> None:
    error = UserError("a\n\x1b[31mb.jpg is broken.")
    error.on_every_rank = False
    assert str(error) == "a\\n\\x1b[31mb.jpg is broken."
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.on_every_rank) == (str(error), False)
