"""HTML from nested calls: every element is closed, and whatever is not made here is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"meta", "link", "img", "br", "hr", "input"})


class Markup(str):
    """Text that is HTML already; any other text is escaped where it is put into an element."""

    __slots__ = ()


def text(value: Any) -> Markup:
    """Return a value as HTML text: a Markup as it is, None as nothing, an iterable as its items one after the other."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup("")
    if isinstance(value, str) or not isinstance(value, Iterable):
        # Letters that no HTML page may hold, as a name from a binary file could: shown as the replacement sign.
        plain = "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
        return Markup(html.escape(plain.encode("utf-8", "replace").decode("utf-8")))
    return Markup("".join(text(item) for item in value))


def element(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """Return `<name attributes>children</name>`.

    Attributes: "class_" is class, "data_value" is data-value; None and False leave one out, True names it without a value.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{text(children)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    key = key.rstrip("_").replace("_", "-")
    return f" {key}" if value is True else f' {key}="{text(str(value))}"'
