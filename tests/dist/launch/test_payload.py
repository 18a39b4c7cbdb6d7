"""What can't go to the workers is named before any of them starts."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
import types
from dataclasses import dataclass, field
from typing import Any

import pytest

from launch import payload
from launch.errors import PayloadError
from launch.guard import is_under_the_guard
from launch.payload import dumps


@dataclass
class Settings:
    callbacks: list[Any] = field(default_factory=list)


class Callback:
    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def on_epoch_end(self) -> None: ...


def work(config: Any) -> Any:
    return config


def local_class() -> Any:
    class Inner: ...

    return Inner()


def closure() -> Any:
    seen: list[int] = []

    def on_epoch_end() -> None:
        seen.append(1)

    return on_epoch_end


def test_what_pickles_goes_through_whole():
    function, args = pickle.loads(dumps(work, ({"epochs": 3, "callbacks": [Callback]},)))
    assert function is work and args == ({"epochs": 3, "callbacks": [Callback]},)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: {"callbacks": [Callback(), lambda: 1]}, ["callbacks[1] is a lambda", "test_payload.py"]),
        (lambda: {"callbacks": [closure()]}, ["callbacks[0] is the function 'on_epoch_end' defined inside 'closure'"]),
        (lambda: {"callbacks": (local_class(),)}, ["callbacks[0] is an instance of the class 'Inner' defined inside 'local_class'"]),
        (lambda: Settings([Callback(lambda: 1)]), ["callbacks[0].stream is a lambda"]),
        (lambda: {"a b": {"lock": threading.Lock()}}, ["['a b'].lock is a _thread.lock"]),
        (lambda: [functools.partial(work, lambda: 1)], ["[0].args[0] is a lambda"]),
        (lambda: [Callback(lambda: 1).on_epoch_end], ["[0].__self__.stream is a lambda"]),
        (lambda: lambda: 1, ["args[0] is a lambda"]),
        (lambda: pickle, ["args[0] is the module 'pickle'"]),
    ],
)
def test_the_offending_value_is_named_with_the_way_out(make, words):
    with pytest.raises(PayloadError) as caught:
        dumps(work, (make(),))
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "module level" in text and "built-in loggers" in text and "\n" not in text


def test_an_open_file_is_named(tmp_path):
    with (
        (tmp_path / "log.txt").open("w") as stream,
        pytest.raises(PayloadError, match=r"callbacks\[0\]\.stream is an open file \('.*log.txt'\)"),
    ):
        dumps(work, ({"callbacks": [Callback(stream)]},))


def test_a_function_that_can_t_be_sent_is_named():
    with pytest.raises(PayloadError, match="the function is the function 'on_epoch_end' defined inside 'closure'"):
        dumps(closure(), ())


def test_a_value_that_holds_itself_ends_the_search():
    ring: list[Any] = [threading.Lock()]
    ring.insert(0, ring)
    with pytest.raises(PayloadError, match=r"lock"):
        dumps(work, (ring,))


def test_what_a_notebook_defines_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(payload, "main_is_importable", lambda: False)
    monkeypatch.setattr(work, "__module__", "__main__")
    monkeypatch.setattr("__main__.work", work, raising=False)
    with pytest.raises(PayloadError, match=r"'work' is defined in a notebook.*\.py file"):
        dumps(work, ({},))


SCRIPT = """
from os import path
def above(): ...
if __name__ == "__main__":
    class Under: ...
    import json as under_too
    def above(): ...
    for item in (): ...
else:
    def in_workers(): ...
"""


@pytest.mark.parametrize(
    ("name", "under"),
    [("Under", True), ("under_too", True), ("item", True), ("above", False), ("path", False), ("in_workers", False), ("nowhere", False)],
)
def test_a_name_under_the_main_guard_only_is_told_from_those_that_workers_find(name, under, monkeypatch, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert is_under_the_guard(name) is under


@pytest.mark.parametrize("content", [None, b"PK\x03\x04\x00\xff"])
def test_a_script_that_cannot_be_read_says_nothing_of_its_guard(content, monkeypatch, tmp_path):
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    if content is not None:
        (tmp_path / "script.py").write_bytes(content)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert not is_under_the_guard("Under")


def test_what_stands_under_the_main_guard_is_refused_by_name(monkeypatch, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    main.Under = type("Under", (), {"__module__": "__main__"})
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(PayloadError, match=r"^'Under' is defined under 'if __name__ == \"__main__\":', which workers do not run.*define it above"):
        dumps(work, ([main.Under()],))
