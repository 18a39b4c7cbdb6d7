"""What `python -m libreyolo check` tells of a data set, whatever its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from libreyolo.errors import UserError

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing to know of a split (or of the set, where `split` is "").

    level: "error" would stop a training, "warning" loses or spoils something, "note" is only to be known. what: a sentence without its full stop.
    places: files, "file:line", or pairs, the all of them.
    """

    level: Level
    split: str
    what: str
    places: tuple[str, ...] = ()


@dataclass
class DataReport:
    """A data set as a training would find it.

    data: what was checked. counts: split -> what is counted -> how many ("pictures", "boxes", ...). classes: (id, name, split -> objects).
    draw_samples: writes a page of samples, a PNG; None where there is nothing to draw.
    """

    data: str
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    classes: list[tuple[int, str, dict[str, int]]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    draw_samples: Callable[[Path], None] | None = None

    @property
    def has_errors(self) -> bool:
        """Whether a training on this set would stop."""
        return any(finding.level == "error" for finding in self.findings)

    def add(self, level: Level, split: str, what: str, places: tuple[str, ...] | list[str] = ()) -> None:
        """Note a finding."""
        self.findings.append(Finding(level, split, what, tuple(places)))

    def refuse(self, split: str, error: UserError, places: Sequence[str] = ()) -> None:
        """Note what a training would stop at, in its words."""
        self.add("error", split, str(error).rstrip("."), list(places))

    def add_all(self, level: Level, split: str, what: str, places: Sequence[str]) -> None:
        """Note "what: how many" where there are any."""
        if places:
            self.add(level, split, f"{what}: {len(places)}", list(places))
