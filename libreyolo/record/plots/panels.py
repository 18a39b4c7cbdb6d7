"""Which diagrams a run's rows make: losses, metrics, learning rates, speed. Columns are data: no task and no metric is known by name.

Column prefixes say what a column is (libreyolo/record/tables.py): "train/", "val/", "metrics/", "lr/", "system/". A task lists its most important
metrics first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Line = tuple[list[int], list[float]]  # epochs, values

MAX_LINES = 5
WIDE = 20  # ratio of largest to smallest positive value from which an axis is logarithmic


@dataclass(frozen=True)
class Panel:
    """One diagram: lines by name, most important first. A name in `dashed` belongs to the line of the same name without its " (val)"."""

    title: str
    lines: dict[str, Line] = field(default_factory=dict)
    left_out: int = 0  # lines that there was no room for
    log: bool = False
    from_zero: bool = False
    best: tuple[int, float] | None = None  # epoch and value of the best validation

    def is_dashed(self, name: str) -> bool:
        """Return whether a line is the validation's counterpart of a training line."""
        return name.endswith(VALIDATION)


VALIDATION = " (val)"


def panels_of(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the diagrams of all rows (as `read_results` gives them); cells without a finite number are skipped.

    Loss, validation and learning rate always come, without lines where nothing is known yet; the others only with lines.
    """
    lines = _lines(rows)
    best_name = next((str(row["best_metric_name"]) for row in reversed(rows) if row.get("best_metric_name")), "")
    beside = _beside_the_loss(lines)
    losses = {name: line for name, line in lines.items() if name not in beside}
    more = [Panel(f"Training: {_loss_name(name)}", {_loss_name(name): lines[name]}) for name in beside]
    return [_losses(losses), *more, *_metrics(lines, best_name, _best(rows)), _rates(lines), *_speed(lines)]


def _lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                epochs, values = lines.setdefault(name, ([], []))
                epochs.append(int(row["epoch"]))
                values.append(float(value))
    return lines


def _best(rows: Sequence[Mapping[str, Any]]) -> tuple[int, float] | None:
    row = next((row for row in reversed(rows) if row.get("best_metric") is not None and row.get("best_epoch")), None)
    return (int(row["best_epoch"]), float(row["best_metric"])) if row else None


def _under(lines: Mapping[str, Line], prefix: str) -> dict[str, Line]:
    return {name.removeprefix(prefix): line for name, line in lines.items() if name.startswith(prefix)}


def _loss_name(column: str) -> str:
    return column.partition("/")[2].removesuffix("_loss")


def _beside_the_loss(lines: Mapping[str, Line]) -> list[str]:
    """Return the column that stands with the loss and is no part of it: without it the others add up to the total. At most one; [] where all do."""
    parts = {name: line[1][-1] for name, line in lines.items() if name.startswith("train/") and name != "train/loss"}
    if "train/loss" not in lines or len(parts) < 2:
        return []
    total, whole = lines["train/loss"][1][-1], sum(parts.values())
    if math.isclose(whole, total, rel_tol=1e-3):
        return []
    return [name for name, value in parts.items() if math.isclose(whole - value, total, rel_tol=1e-3)][:1]


def _losses(lines: Mapping[str, Line]) -> Panel:
    """The total first, then its parts, the largest first; a part's validation loss beside it."""
    trained = {name.removesuffix("_loss"): line for name, line in _under(lines, "train/").items()}
    judged = {name.removesuffix("_loss"): line for name, line in _under(lines, "val/").items()}
    parts = sorted((name for name in trained if name != "loss"), key=lambda name: -trained[name][1][-1])
    ordered = [name for name in ("loss", *parts) if name in trained]
    if len(ordered) == 2 and trained[ordered[0]] == trained[ordered[1]]:
        ordered = ordered[:1]  # a single part is the total
    ordered += [name for name in judged if name not in trained]
    shown: dict[str, Line] = {}
    for name in ordered[:MAX_LINES]:
        title = "total" if name == "loss" else name
        if name in trained:
            shown[title] = trained[name]
        if name in judged:
            shown[title + VALIDATION] = judged[name]
    values = [value for _, series in shown.values() for value in series]
    return Panel("Loss", shown, max(len(ordered) - MAX_LINES, 0), log=_is_wide(values))


def _metrics(lines: Mapping[str, Line], best_name: str, best: tuple[int, float] | None) -> list[Panel]:
    """The best metric's panel first: shares between 0 and 1 have one panel, every other metric one of its own.

    Other names of a metric are its line once more and left out: "mAP50(B)" beside "mAP50", and what repeats the best one throughout.
    """
    named = {name: line for name, line in lines.items() if name.startswith("metrics/")}
    ordered = dict(sorted(named.items(), key=lambda item: item[0] != best_name))
    different = {name.removeprefix("metrics/"): line for name, line in ordered.items() if not _is_repeated(name, ordered, best_name)}
    short = best_name.removeprefix("metrics/")
    shares = {name: line for name, line in different.items() if all(0 <= value <= 1 for value in line[1])}
    others = {name: line for name, line in different.items() if name not in shares and not _is_setting(line[1]) and min(line[1]) >= 0}
    panels = []
    if shares or not others:
        shown = dict(list(shares.items())[:MAX_LINES])
        own = best if short in shares or not shares else None
        # A lone line has no legend.
        title = f"Validation: {next(iter(shown))}" if len(shown) == 1 and (others or own is None) else "Validation"
        panels.append(Panel(title, shown, len(shares) - len(shown), best=own))
    panels += [Panel(f"Validation: {name}", {name: line}, best=best if name == short else None) for name, line in list(others.items())[:2]]
    return sorted(panels, key=lambda panel: short not in panel.lines)


def _is_repeated(name: str, metrics: Mapping[str, Line], best_name: str) -> bool:
    """Return whether a metric's line is that of another one by another name. Lines of nothing but 0, or 1, may be equal by chance."""
    if name.endswith(")") and metrics.get(name.split("(")[0]) == metrics[name]:
        return True
    return name != best_name and metrics.get(best_name) == metrics[name] and set(metrics[name][1]) not in ({0.0}, {1.0})


def _rates(lines: Mapping[str, Line]) -> Panel:
    merged = _merge_equal(_under(lines, "lr/"))
    return Panel("Learning rate", dict(list(merged.items())[:MAX_LINES]), max(len(merged) - MAX_LINES, 0), from_zero=True)


def _title(column: str) -> str:
    """Return "Images per second" for images_per_second, "GPU memory (GB)" for gpu_memory_gb."""
    words = f"{column[0].upper()}{column[1:]}".replace("_", " ")
    return words.replace("Gpu ", "GPU ").replace(" gb", " (GB)")


def _speed(lines: Mapping[str, Line]) -> list[Panel]:
    """What the run says of its own speed, else the time of an epoch."""
    told = {name: line for name, line in _under(lines, "system/").items() if any(line[1])}
    if told:
        return [Panel(_title(name), {name.replace("_", " "): line}, from_zero=True) for name, line in told.items()]
    epochs, totals = lines.get("time", ([], []))
    # The clock goes on over resumed epochs, so every difference of neighbours is an epoch's time.
    pairs = [
        (e, b - a) for (d, a), (e, b) in zip(zip(epochs, totals, strict=True), zip(epochs[1:], totals[1:], strict=True), strict=False) if e == d + 1
    ]
    if epochs and epochs[0] == 1:
        pairs.insert(0, (1, totals[0]))
    return [Panel("Seconds an epoch", {"seconds": ([e for e, _ in pairs], [s for _, s in pairs])}, from_zero=True)] if pairs else []


def _is_setting(values: Sequence[float]) -> bool:
    """Return whether values are the same whole number throughout: a limit that was set, not something measured."""
    return len(set(values)) == 1 and values[0] == int(values[0])


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > WIDE


def _merge_equal(rates: Mapping[str, Line]) -> dict[str, Line]:
    """Return each different line once, named by all its groups: on top of each other only the last could be seen."""
    merged: list[tuple[list[str], Line]] = []
    for name, line in rates.items():
        same = next((names for names, other in merged if other == line), None)
        if same is None:
            merged.append(([name], line))
        else:
            same.append(name)
    if len(merged) == 1 and len(merged[0][0]) > 1:
        return {"all groups": merged[0][1]}
    return {", ".join(names): line for names, line in merged}
