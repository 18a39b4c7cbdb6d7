"""The user's own listeners: what `callbacks=` and `loggers=` take, and how one is called by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from libreyolo.errors import UserError
from libreyolo.interfaces.events import EpochEnd, Listener

METHODS = tuple(name for name in vars(Listener) if name.startswith("on_"))


class EpochFunction(Listener):
    """A plain function as a listener: it is called after every epoch with its `EpochEnd`."""

    def __init__(self, function: Callable[[EpochEnd], Any]) -> None:
        self.function = function

    def on_epoch_end(self, event: EpochEnd) -> None:
        self.function(event)


def name_of(listener: Any) -> str:
    """Return how a listener is called in the log: its class, or the function's own name."""
    if isinstance(listener, EpochFunction):
        return str(getattr(listener.function, "__qualname__", type(listener.function).__name__))
    return type(listener).__name__


def as_listener(given: Any) -> Any:
    """Return what is told of the run: the object itself, or a function wrapped."""
    return EpochFunction(given) if not _methods(given) else given


def check_callbacks(key: str, given: Any, *, names: bool = False) -> None:
    """Raise UserError unless `given` is a list of objects with at least one of the methods of `Listener`, or of functions.

    key: the argument's name, for the sentence. names: whether texts are allowed too (checked elsewhere).
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise UserError(f"{key}={given!r} must be a list: {key}=[{given!r}].")
    for i, value in enumerate(given):
        if names and isinstance(value, str):
            continue
        if isinstance(value, type):
            raise UserError(f"{key}[{i}] is the class {value.__name__}: pass an instance, {value.__name__}().")
        if not _methods(value) and not callable(value):
            raise UserError(f"{key}[{i}]={value!r} has none of the methods {', '.join(METHODS)} and is no function: nothing would ever be called.")


def split_loggers(given: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of built-in loggers and the user's own objects of a checked `loggers=`."""
    return [value for value in given if isinstance(value, str)], [value for value in given if not isinstance(value, str)]


def _methods(value: Any) -> list[str]:
    return [name for name in METHODS if callable(getattr(value, name, None))]
