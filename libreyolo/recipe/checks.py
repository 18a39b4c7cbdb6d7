"""Checks of single values that Hydra's types cannot state; both doors say the same sentence."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from libreyolo.errors import UserError, nearest

LARGEST_SIDE = 65536  # of a network's input in pixels; a batch of one such picture is 48 GiB of float32


def in_range(name: str, value: float, low: float, high: float, *, hint: str = "") -> None:
    """Raise unless low <= value <= high."""
    _real(name, value)
    if not low <= value <= high:
        raise UserError(f"{name}={value} is out of range: it must lie between {low:g} and {high:g}.{hint}")


def at_least(name: str, value: float, low: float, *, hint: str = "") -> None:
    """Raise unless value >= low and finite."""
    _real(name, value)
    if value == float("inf"):
        raise UserError(f"{name}={value} must be a finite number.")
    if not value >= low:
        raise UserError(f"{name}={value} is too small: it must be {low:g} or more.{hint}")


def count(name: str, value: Any) -> None:
    """Raise unless value is a whole number of 1 or more."""
    at_least(name, value, 1)
    if not isinstance(value, Integral):
        raise UserError(f"{name}={value} must be a whole number.")


def one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    """Return the choice that value equals (False for 0); raise where there is none."""
    if value not in choices:
        shown = ", ".join("null" if c is None else str(c).lower() if isinstance(c, bool) else str(c) for c in choices)
        raise UserError(f"{name}={value} is not known: choose one of {shown}.{nearest(str(value), [str(c) for c in choices])}")
    return choices[choices.index(value)]


def pair(name: str, value: Any) -> list[float]:
    """Return [low, high] with low <= high, both finite numbers."""
    values = list(value) if isinstance(value, (list, tuple)) else value
    if not isinstance(values, list) or len(values) != 2 or not all(_is_number(v) for v in values):
        raise UserError(f"{name}={value} must be two numbers, lowest first, like [0.5, 1.5].")
    if values[0] > values[1]:
        raise UserError(f"{name}={values} must have its lower number first: use [{values[1]}, {values[0]}].")
    return [float(v) for v in values]


def hsv_gain(value: Sequence[float]) -> None:
    """Raise unless value is three numbers between 0 and 1."""
    if len(value) != 3 or not all(0 <= g <= 1 for g in value):
        raise UserError(f"hsv_gain={list(value)} must be three numbers between 0 and 1: hue, saturation, value.")


def image_size(value: Any, name: str = "imgsz") -> int | list[int]:
    """Return a network input as an int (square) or [height, width]; every side a positive whole number."""
    sides = list(value) if isinstance(value, (list, tuple)) else [value]
    whole = all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in sides)
    if not whole or len(sides) not in (1, 2):
        raise UserError(f"{name}={value} must be a positive whole number of pixels (640) or height and width ([480, 640]).")
    if max(sides) > LARGEST_SIDE:
        raise UserError(f"{name}={value} is too large: a side has at most {LARGEST_SIDE} pixels.")
    return sides[0] if len(sides) == 1 else sides


def image_hw(imgsz: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of a checked `imgsz`."""
    return (imgsz, imgsz) if isinstance(imgsz, int) else (int(imgsz[0]), int(imgsz[1]))


def selection(name: str, value: Any) -> None:
    """Raise unless value is null (or false), a count, a name, or a list of names and numbers."""
    entries = value if isinstance(value, list) else [value]
    if value is None or value is False or all(isinstance(e, str) or (type(e) is int and e >= 0) for e in entries):
        return
    raise UserError(f"{name}={value} must be a number of parts (10), a name (backbone), a list of names or part numbers, or null.")


def on_stride(imgsz: int | Sequence[int], stride: int, name: str = "imgsz") -> None:
    """Raise unless every side is a multiple of the network's stride, naming both neighbours."""
    for side in image_hw(imgsz):
        if side % stride:
            below, above = side // stride * stride, (side // stride + 1) * stride
            choices = f"{name}={above}" if below == 0 else f"{name}={below} or {name}={above}"
            shown = f"{name}={_shown(imgsz)}"
            raise UserError(f"{shown} does not fit the network: every side must be a multiple of its stride {stride}. Use {choices}.")


def _real(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name}={value!r} must be a number.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf")


def _shown(imgsz: int | Sequence[int]) -> str:
    return str(imgsz) if isinstance(imgsz, int) else str(list(imgsz)).replace(" ", "")
