"""The frame of a page: everything it needs is inside it, and it says so to the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from libreyolo.record.report.html import Markup, element

# Nothing is loaded from anywhere, whatever a name in the page may hold.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of a page: its anchor, its title, and what it holds; one that holds nothing is left out."""

    anchor: str
    title: str
    content: Markup


def page(title: str, head: Markup, sections: Sequence[Section]) -> str:
    """Return a whole HTML document."""
    kept = [section for section in sections if section.content]
    links = [element("li", element("a", section.title, href=f"#{section.anchor}")) for section in kept]
    parts = [element("section", element("h2", section.title), section.content, id=section.anchor) for section in kept]
    heading = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(_file("page.css"))),
    )
    navigation = element("nav", element("ul", links), aria_label="Sections") if len(kept) > 2 else None
    body = element("body", element("main", head, navigation, *parts), element("script", Markup(_file("page.js"))))
    return f"<!doctype html>\n{element('html', heading, body, lang='en')}\n"


def command(label: str, line: str) -> Markup:
    """Return a command line that one click selects, with a button that copies it where scripts run."""
    return element("div", element("span", label, class_="label"), element("pre", element("code", line)), class_="command")


def tiles(facts: Sequence[tuple[str, object]]) -> Markup:
    """Return the few facts that a page begins with."""
    return element("dl", [element("div", element("dt", name), element("dd", value)) for name, value in facts], class_="tiles")


def badge(state: str) -> Markup:
    """Return a run's state; its colour says whether that is good."""
    known = state if state in ("completed", "failed", "interrupted", "running") else "other"
    return element("span", state, class_=f"badge {known}")


@lru_cache(maxsize=2)
def _file(name: str) -> str:
    return files(__package__ or __name__.rpartition(".")[0]).joinpath(name).read_text(encoding="utf-8")
