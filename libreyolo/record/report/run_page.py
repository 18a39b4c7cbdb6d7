"""The page of one run. Which of its parts come is decided by what the run directory holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from libreyolo.record.atomic import write_text
from libreyolo.record.numbers import number, setting, size
from libreyolo.record.plots.panels import panels_of
from libreyolo.record.progress import duration
from libreyolo.record.report.chart import line_chart
from libreyolo.record.report.commands import commands
from libreyolo.record.report.facts import RunFacts, read_run, split_override
from libreyolo.record.report.html import Markup, element, text
from libreyolo.record.report.page import Section, badge, command, page, tiles
from libreyolo.record.report.pictures import gallery
from libreyolo.record.report.table import Cell, table

PAGE = "report.html"
CLASS = "class/"  # of columns that tell of one class: class/<name>/<metric>
ABSENT = -1.0  # how a metric says that a class has no truth
SETTINGS = ("key", "value", "default", "meaning")
PROFILE_ROW = re.compile(r"^(.+?)\s{2,}([\d.]+)\s+([\d.]+)\s+([\d.]+)%$")

Keys = Mapping[str, Field[Any]]  # the recipe's keys with their defaults and meanings; {} where it is not known


def write_run_report(run_dir: Path, keys: Keys) -> Path:
    """Write report.html into a run directory and return its path. Raises OSError where that is not possible."""
    path = Path(run_dir) / PAGE
    write_text(path, run_report(read_run(Path(run_dir)), keys))
    return path


def run_report(facts: RunFacts, keys: Keys) -> str:
    """Return the page."""
    sections = [
        Section("commands", "Commands", text(command(label, line) for label, line in commands(facts))),
        Section("curves", "Curves", _curves(facts)),
        Section("classes", "Classes", _classes(facts)),
        Section("pictures", "Pictures", _pictures(facts)),
        Section("configuration", "Configuration", _configuration(facts, keys)),
        Section("timing", "Timing", _timing(facts)),
        Section("checkpoints", "Checkpoints", _checkpoints(facts)),
        Section("environment", "Environment", _environment(facts)),
    ]
    return page(f"{facts.model} on {facts.data}: {facts.state}", _head(facts), sections)


def _head(facts: RunFacts) -> Markup:
    done, planned = facts.status.get("epoch"), facts.status.get("epochs")
    shown = [
        ("model", facts.model),
        ("data", facts.data),
        (f"best {facts.metric_name or 'metric'}", number(facts.metric)),
        ("best epoch", number(facts.status.get("best_epoch"))),
        ("epochs", f"{number(done)} of {number(planned)}"),
        ("duration", number(None) if facts.seconds is None else duration(facts.seconds)),
    ]
    stopped = facts.status.get("stopped_by")
    return text(
        [
            element("div", element("h1", f"{facts.model} on {facts.data}"), badge(facts.state), class_="title"),
            element("p", str(facts.run_dir), class_="where"),
            element("p", facts.error, class_="error") if facts.error and facts.state != "completed" else None,
            element("p", f"Ended before its last epoch by {stopped}.") if stopped else None,
            tiles(shown),
        ]
    )


def _curves(facts: RunFacts) -> Markup:
    if not facts.rows:
        return Markup("")
    panels = [panel for panel in panels_of(facts.rows) if panel.lines]
    return text([element("div", [line_chart(panel) for panel in panels], class_="charts"), _numbers(facts)])


def _numbers(facts: RunFacts) -> Markup:
    """Every epoch's row; columns of classes and those that are empty throughout or say the same everywhere as a name are left out."""
    columns = [
        name for name in dict.fromkeys(name for row in facts.rows for name in row) if not name.startswith(CLASS) and not name.endswith("_name")
    ]
    kept = [name for name in columns if any(row.get(name) is not None for row in facts.rows)]
    best = next((i for i, row in enumerate(facts.rows) if row.get("epoch") == facts.status.get("best_epoch")), None)
    rows = [[row.get(name) for name in kept] for row in facts.rows]
    return element("details", element("summary", f"The numbers of every epoch ({len(kept)} columns)"), table(kept, rows, marked=best))


def _classes(facts: RunFacts) -> Markup:
    """The metrics of single classes at the best epoch."""
    found: dict[str, dict[str, float]] = {}
    for column, value in facts.best_row.items():
        if column.startswith(CLASS) and isinstance(value, (int, float)):
            name, _, metric = column.removeprefix(CLASS).rpartition("/")
            found.setdefault(name, {})[metric] = float(value)
    if not found:
        return Markup("")
    metrics = list(dict.fromkeys(metric for values in found.values() for metric in values))
    rows = [[name, *(None if values.get(metric, ABSENT) == ABSENT else values[metric] for metric in metrics)] for name, values in found.items()]
    note = element("p", f"At epoch {number(facts.best_row.get('epoch'))}; a dash is a class that the validation data does not hold.", class_="none")
    return text([note, table(["class", *metrics], rows)])


def _pictures(facts: RunFacts) -> Markup:
    return element("div", gallery(facts.pictures), class_="pictures") if facts.pictures else Markup("")


def _configuration(facts: RunFacts, keys: Keys) -> Markup:
    """What was typed, then what differs from the recipe's defaults, then everything."""
    if not facts.config:
        return Markup("")
    typed = {split_override(override)[0] for override in facts.overrides}
    changed = [name for name, value in facts.config.items() if name in typed or (name in keys and not _is_default(value, keys[name]))]
    changed.sort(key=lambda name: name not in typed)
    parts = []
    if facts.overrides:
        parts.append(command("Typed", " ".join(facts.overrides)))
    if changed:
        parts.append(element("h3", f"{'Typed, and different' if typed else 'Different'} from the recipe's defaults"))
        rows = [[_key(name, typed), setting(facts.config[name]), _default(name, keys), _help(name, keys)] for name in changed]
        parts.append(table(SETTINGS, rows, sortable=False, class_="config"))
    rows = [[_key(name, typed), setting(value), _default(name, keys), _help(name, keys)] for name, value in facts.config.items()]
    everything = table(SETTINGS, rows, class_="config")
    return text([*parts, element("details", element("summary", f"All {len(facts.config)} keys"), everything)])


def _key(name: str, typed: set[str]) -> Markup:
    return text([element("code", name), element("span", " typed", class_="typed") if name in typed else None])


def _is_default(value: Any, key: Field[Any]) -> bool:
    return bool(value == _default_value(key))


def _default_value(key: Field[Any]) -> Any:
    return key.default_factory() if key.default_factory is not MISSING else key.default


def _default(name: str, keys: Keys) -> str | None:
    value = _default_value(keys[name]) if name in keys else None
    return None if name not in keys or value == "???" else setting(value)


def _help(name: str, keys: Keys) -> Markup:
    return element("span", keys[name].metadata.get("help", "") if name in keys else "", class_="help")


def _timing(facts: RunFacts) -> Markup:
    """Means of what the rows say of speed, and the profile where there is one."""
    rows: list[list[Any]] = []
    if facts.seconds is not None:
        rows.append(["all epochs", duration(facts.seconds)])
        if facts.rows:
            rows.append(["an epoch, on average", f"{number(facts.seconds / int(facts.rows[-1].get('epoch') or 1))} s"])
    for name in dict.fromkeys(name for row in facts.rows for name in row if name.startswith(("system/", "speed/"))):
        values = [float(row[name]) for row in facts.rows if isinstance(row.get(name), (int, float))]  # type: ignore[arg-type]
        if values and any(values):
            label = name.partition("/")[2].replace("_", " ")
            told = f"{sum(values) / len(values):.1%}" if name.endswith("_share") else number(sum(values) / len(values))
            rows.append([f"{'validation, ' if name.startswith('speed/') else ''}{label}", told])
    return text([table(["", "mean over the epochs"], rows, sortable=False), _profile(facts.profile)])


def _profile(profile: str) -> Markup:
    """The table of profile.txt with its shares as bars; as it is where it does not read as one."""
    if not profile:
        return Markup("")
    lines = [line for line in profile.splitlines() if line.strip()]
    found = [match.groups() for match in map(PROFILE_ROW.match, lines) if match]
    title = element("h3", lines[0].rstrip(":"))
    if not found:
        return text([title, element("pre", profile)])
    rows = [
        [name, float(host), float(device), Cell(f"{share} %", float(share)), element("span", class_="bar", style=f"width:{1.2 * float(share):.0f}px")]
        for name, host, device, share in found
    ]
    return text([title, table(["phase", "host ms", "device ms", "share", ""], rows, sortable=False)])


def _checkpoints(facts: RunFacts) -> Markup:
    rows = [[element("code", f"weights/{path.name}"), Cell(size(path.stat().st_size), float(path.stat().st_size))] for path in facts.checkpoints]
    return table(["file", "size"], rows)


def _environment(facts: RunFacts) -> Markup:
    """The last start in full, earlier ones below."""
    shown = [table(["", ""], [[name, value] for name, value in _flat(life)], sortable=False) for life in reversed(facts.lives)]
    earlier = [element("details", element("summary", f"An earlier start of this run: {life.get('started')}"), written)
               for life, written in zip(list(reversed(facts.lives))[1:], shown[1:], strict=True)]  # fmt: skip
    return text([shown[0] if shown else None, *earlier])


def _flat(life: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in life.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name} ")
        elif name != "command":
            found.append((f"{prefix}{name}".replace("_", " "), number(None) if value is None else setting(value)))
    return found
