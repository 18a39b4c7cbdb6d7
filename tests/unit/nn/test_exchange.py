"""Memory of the host in which ranks meet: who gets it, who does not, and whose turn it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from libreyolo.engine import collectives
from libreyolo.nn.fused import exchange as module
from libreyolo.nn.fused.exchange import LINES, WIDEST, Exchange

pytestmark = pytest.mark.skipif(not module.FOLDER.is_dir(), reason="memory that looks like files is Linux's")


def created(size: int = 2) -> Exchange:
    found = Exchange.create(size)
    assert found is not None
    return found


def test_what_one_process_stores_the_other_reads_when_the_name_is_gone_and_places_take_turns() -> None:
    first = created()
    second = Exchange.join(first.path, first.token, 2)
    assert second is not None
    first.leave_no_name()
    assert not first.path.exists()
    for turn in (1, 2, 3):
        (place, number), (theirs, their_number) = first.next_turn(), second.next_turn()
        assert number == their_number == turn
        assert place.shape == (2 * LINES * WIDEST,) and place.dtype == torch.int64
        assert int(place[-1]) == (1 if turn == 3 else 0)  # of the turn before the last one: there are two places
        place[-1] = turn
        assert int(theirs[-1]) == turn
        assert place.data_ptr() % 16 == 0


def test_after_the_last_number_that_a_word_can_hold_the_places_still_take_turns_and_none_is_0() -> None:
    found = created()
    found.leave_no_name()
    found._turn = module.LAST_TURN - 1
    turns = [found.next_turn() for _ in range(4)]
    assert [turn for _, turn in turns] == [module.LAST_TURN, 2, 3, 4]  # 0 is what a word holds that nobody stored
    assert len({place.data_ptr() for place, _ in turns[::2]}) == 1
    assert turns[0][0].data_ptr() != turns[1][0].data_ptr()


def test_a_file_of_that_name_on_another_host_is_not_taken_for_it(tmp_path: Path) -> None:
    found = created()
    found.leave_no_name()
    assert Exchange.join(found.path, found.token, 2) is None  # not there
    other = tmp_path / "other"
    other.write_bytes(bytes(10**6))
    assert Exchange.join(other, found.token, 2) is None
    other.write_bytes(found.token)  # too short
    assert Exchange.join(other, found.token, 2) is None


def test_where_no_memory_is_left_there_is_no_exchange_and_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert Exchange.create(2) is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(module, "FOLDER", tmp_path / "none")
    assert Exchange.create(2) is None


def test_alone_and_on_the_cpu_nobody_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collectives.exchange(torch.device("cuda", 0)) is None
    monkeypatch.setattr(collectives, "world_size", lambda: 2)
    monkeypatch.setattr(collectives, "broadcast_object", lambda value: value)
    assert collectives.exchange(torch.device("cpu")) is None


@pytest.mark.parametrize(("joined", "registered"), [([True, False], [True, True]), ([True, True], [True, False])])
def test_where_one_rank_has_none_all_have_none(joined: list[bool], registered: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([joined, registered])
    monkeypatch.setattr(collectives, "world_size", lambda: 2)
    monkeypatch.setattr(collectives, "broadcast_object", lambda value: value)
    monkeypatch.setattr(collectives, "all_objects", lambda value: next(answers) if all(joined) or value else [value, value])
    monkeypatch.setattr(Exchange, "register", lambda self, device: True)
    before = set(module.FOLDER.iterdir())
    assert collectives.exchange(torch.device("cuda", 0)) is None
    assert not {p for p in module.FOLDER.iterdir() if p.name.startswith("libreyolo-")} - before
