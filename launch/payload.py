"""What goes to the workers: pickled once into a file, after naming whatever can't go.

One pickle serves all ranks and keeps big values out of the start-up pipe, which would hold up the parent until each child has read it.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launch.errors import PayloadError
from launch.guard import is_under_the_guard, main_is_importable

WAY_OUT = (
    "What goes to the workers of a training on several devices must be picklable: use a class or function defined at module "
    "level, or, instead of "
    "a callback that records, the built-in loggers (loggers=[csv,tensorboard,wandb,mlflow])."
)


def dumps(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return (function, args) pickled; PayloadError, naming the first value that can't be and saying what to do."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    try:
        pickler.dump((function, args))
    except Exception as error:
        raise PayloadError(_complaint(function, args, error)) from error
    if pickler.from_main and not main_is_importable():
        raise PayloadError(
            f"{pickler.from_main[0]!r} is defined in a notebook or on the command line, which workers can't import: move it "
            "into a .py file beside it "
            "and import it from there."
        )
    for name in pickler.from_main:
        if is_under_the_guard(name.partition(".")[0]):
            raise PayloadError(
                f"{name!r} is defined under 'if __name__ == \"__main__\":', which workers do not run when they import the script: "
                "define it above that line, or in a module of its own."
            )
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler that notes which classes and functions of the main module it met."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.from_main: list[str] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            self.from_main.append(value.__qualname__)
        return NotImplemented


def _complaint(function: Callable[..., Any], args: tuple[Any, ...], error: Exception) -> str:
    for index, value in [(None, function), *enumerate(args)]:
        found = _find(value, "", seen=set())
        if found is not None:
            path, culprit = found
            name = path or ("the function" if index is None else f"args[{index}]")
            return f"{name} {_description(culprit)} and can't be sent to the workers. {WAY_OUT}"
    return f"the arguments can't be sent to the workers ({error}). {WAY_OUT}"


def _find(value: Any, path: str, seen: set[int]) -> tuple[str, Any] | None:
    """Return the path and value of the innermost thing that doesn't pickle; None if all of `value` does."""
    error = _pickling_error(value)
    if error is None or id(value) in seen:
        return None
    seen.add(id(value))
    for part, inner in _parts(value):
        found = _find(inner, _joined(path, part), seen)
        if found is not None:
            return found
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (step, inner value) of a container or of an object with attributes; a step is "[1]", "['a b']" or a plain name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (key if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"), inner
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield f"[{index}]", inner
    elif isinstance(value, (set, frozenset)):
        for inner in value:
            yield "{...}", inner
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__
    elif hasattr(value, "func") and hasattr(value, "args") and hasattr(value, "keywords"):  # functools.partial
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif not isinstance(value, (type, types.FunctionType, types.ModuleType)):
        yield from getattr(value, "__dict__", {}).items()


def _joined(path: str, part: str) -> str:
    return f"{path}{part}" if not path or part[0] in "[{" else f"{path}.{part}"


def _pickling_error(value: Any) -> Exception | None:
    try:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return error
    return None


def _description(value: Any) -> str:
    if isinstance(value, types.FunctionType):
        if value.__name__ == "<lambda>":
            return f"is a lambda (line {value.__code__.co_firstlineno} of {value.__code__.co_filename})"
        if "<locals>" in value.__qualname__:
            return f"is the function {value.__name__!r} defined inside {_enclosing(value)!r}"
        return f"is the function {value.__qualname__!r}, which can't be found again under that name in module {value.__module__!r}"
    if isinstance(value, io.IOBase):
        return f"is an open file ({getattr(value, 'name', '?')!r})"
    if isinstance(value, type):
        return f"is the class {value.__name__!r}" + (f" defined inside {_enclosing(value)!r}" if "<locals>" in value.__qualname__ else "")
    if isinstance(value, types.ModuleType):
        return f"is the module {value.__name__!r}"
    kind = type(value)
    if "<locals>" in kind.__qualname__:
        return f"is an instance of the class {kind.__name__!r} defined inside {_enclosing(kind)!r}"
    return f"is a {kind.__module__}.{kind.__qualname__} ({_pickling_error(value)})".replace("builtins.", "")


def _enclosing(value: Any) -> str:
    return str(value.__qualname__.split(".<locals>")[0])
