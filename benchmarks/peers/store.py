"""Rows of a measurement that are kept as soon as they are there, so that a call which is cut off loses nothing and the next one goes on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

Values = dict[str, float | str]


@dataclass(frozen=True)
class Result:
    """What a row gave. state: "done", "failed", "cut off" (ran into its own limit) or "not here" (what it needs is not installed).

    values: by column name. note: one line for the table. tail: the last lines that a failed process wrote. machine: where it was measured.
    """

    state: str
    values: Values = field(default_factory=dict)
    note: str = ""
    tail: list[str] = field(default_factory=list)
    machine: str = ""


class SettingsError(ValueError):
    """The folder holds rows of a measurement with other settings."""


class Store:
    """The rows of one measurement, in the order in which they came: <out>/<name>.json.

    settings: what all rows of the file share; rows that were measured with others can't stand beside them.
    """

    def __init__(self, out: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = out / f"{name}.json", dict(settings)
        self.rows: dict[str, Result] = {}
        out.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            found = json.loads(self.path.read_text())
            differing = [f"{k}={found['settings'].get(k)} there, {v} here" for k, v in self.settings.items() if found["settings"].get(k) != v]
            if differing:
                raise SettingsError(f"{self.path} holds rows of other settings ({', '.join(differing)}): name another --out.")
            self.rows = {name: Result(**row) for name, row in found["rows"].items()}

    def keep(self, name: str, result: Result) -> None:
        """Add a row, or replace it, and write the file in one step."""
        self.rows[name] = result
        content = {"settings": self.settings, "rows": {key: asdict(row) for key, row in self.rows.items()}}
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(self.path)

    def missing(self, names: Sequence[str], again: bool) -> list[str]:
        """Return which of the rows are still to be measured: those that are not there, or could not run here; all of them with `again`."""
        return [n for n in names if again or n not in self.rows or self.rows[n].state == "not here"]

    @property
    def machines(self) -> list[str]:
        """The machines that the rows come from. Figures of different ones must not be compared."""
        return sorted({row.machine for row in self.rows.values() if row.machine})


@lru_cache
def machine() -> str:
    """Return what tells this machine from another: its devices, its cores, torch, and the boot that it runs from.

    This process never touches a device: it would take memory of it that a row is to measure.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip()[:8] if boot.exists() else "?"
    return f"{_devices()}, {len(available_cores())} cores, torch {torch.__version__}, boot {started}"


def _devices() -> str:
    count = torch.cuda.device_count()
    if not count:
        return "CPU"
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=60)
        names = asked.stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        names = []
    return f"{count} x {names[0].strip() if names else 'GPU'}"


def available_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def shown(values: Mapping[str, float | str], column: str, form: str) -> str:
    """Return a cell: the value in the given format, "" where there is none."""
    value = values.get(column, "")
    return value if isinstance(value, str) else format(value, form)
