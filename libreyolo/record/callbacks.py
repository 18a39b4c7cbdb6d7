"""The user's own listeners: what `callbacks=` and `loggers=` take, and how one is called by its name."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.events import EpochEnd, Event, Listener

METHODS = tuple(name for name in vars(Listener) if name.startswith("on_"))

E = TypeVar("E", bound=Event)


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

    A method whose name is almost one of those, and one that cannot be called with an event alone, are mistakes too: they would show when the
    training is over, or under way. key: the argument's name, for the sentence. names: whether texts are allowed too (checked elsewhere).
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
        _refuse_other_names(f"{key}[{i}]", value)
        for name in _methods(value) or [""]:
            _refuse_other_arguments(f"{key}[{i}]", value, name)


def _refuse_other_names(place: str, value: Any) -> None:
    for name in dir(value):
        near = nearest(name, METHODS) if name.startswith("on_") and name not in METHODS else ""
        if near and callable(getattr(value, name, None)):
            raise UserError(f"{place}: {type(value).__name__}.{name} would never be called.{near}")


def _refuse_other_arguments(place: str, value: Any, name: str) -> None:
    method = getattr(value, name) if name else value
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a function of C's, say
        return
    try:
        signature.bind(None)
    except TypeError:
        called = f"{type(value).__name__}.{name}" if name else str(getattr(value, "__qualname__", type(value).__name__))
        takes = ", ".join(signature.parameters)
        raise UserError(f"{place}: {called}({takes}) cannot be called as it will be, with one argument, the event.") from None


def own_copy(event: E) -> E:
    """Return the event with dicts and lists of its own: what a callback changes in them reaches neither records nor checkpoints.

    Arrays and samples in them are not copied. `stop` asks for the same end.
    """
    copied = copy.copy(event)
    for field in dataclasses.fields(event):
        object.__setattr__(copied, field.name, _copied(getattr(event, field.name)))  # frozen for everybody else
    return copied


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if type(value) is list else value


def split_loggers(given: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of built-in loggers and the user's own objects of a checked `loggers=`."""
    return [value for value in given if isinstance(value, str)], [value for value in given if not isinstance(value, str)]


def _methods(value: Any) -> list[str]:
    return [name for name in METHODS if callable(getattr(value, name, None))]
