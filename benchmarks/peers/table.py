"""The rows as Markdown: trainings, validations, the roofline, and what is compared with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.rows import Row, ours, roofline, validation
from benchmarks.peers.store import Result, Values, markdown, shown

# (row, row that it is compared with, goal): the ratio of their images/s, end to end.
RATIOS: list[tuple[str, str, float | None]] = [
    ("ours-no-aux", "ultralytics", 1.8),
    ("ours", "libreyolo", 3.3),
    ("ours-4-cores", "ours", 0.9),
    ("ours-no-aux-4-cores", "ours-no-aux", 0.9),
    ("ours-no-aux-graph", "ultralytics", 1.8),
    ("ours-graph", "libreyolo", 3.3),
    ("ours-no-aux-graph-4-cores", "ours-no-aux-graph", 0.9),
    ("ours-no-aux", "ultralytics-ram", 1.8),
    ("ours-2-gpus", "ours", 1.9),
    ("ours-no-aux-2-gpus", "ours-no-aux", 1.9),
    ("ours-no-aux-long-2-gpus", "ours-no-aux-long", 1.9),
    ("ours-no-aux-2-gpus", "ultralytics-2-gpus", None),
    ("ours-2-gpus", "libreyolo-2-gpus", None),
]
RATE = ("ours-no-aux", 600.0)  # goal in images/s of one H200
OWN_STEP = 0.9  # goal: end to end as a share of the same trainer's step alone
TRAININGS = ("row", "images/s", "step alone", "share of it", "waiting", "peak GB", "first step after", "note")
VALIDATIONS = ("row", "pictures", "s", "sharded s", "only on rank 0 s", "note")
ROOFLINE = ("row", "GB a picture", "copy GB/s", "ceiling images/s", "step alone", "share of it", "most bytes", "note")


def step_alone(row: Row, found: Mapping[str, Result]) -> float | None:
    """Return the images/s of the row's step alone over all its GPUs; None where that has not been measured."""
    name = row.step_of or row.name
    alone = found[name].values.get("alone") if name in found else None
    return alone * row.gpus if isinstance(alone, float) else None


def tables(rows: Sequence[Row], found: Mapping[str, Result], machines: Sequence[str]) -> str:
    """Return the whole page. Rows that are not measured are left out."""
    here = [row for row in rows if row.name in found]
    parts = [f"Measured on {'; '.join(machines)}.\n"] if machines else []
    if len(machines) > 1:
        parts.append("**The rows come from more than one machine: compare only those of one.**\n")
    kinds = {"validation": validation, "roofline": roofline}
    trainings = [r for r in here if r.measure not in kinds.values()]
    lines = {name: [r for r in here if r.measure is measure] for name, measure in kinds.items()}
    if trainings:
        parts.append(markdown(TRAININGS, [_training(row, found) for row in trainings]))
    if lines["validation"]:
        parts.append(markdown(VALIDATIONS, [_validation(row, found[row.name]) for row in lines["validation"]]))
    if lines["roofline"]:
        parts.append(markdown(ROOFLINE, [_roofline(row, found) for row in lines["roofline"]]))
    compared = _ratios(trainings, found)
    if compared:
        parts.append(markdown(("compared", "measured", "goal"), compared))
    return "\n".join(parts)


def _note(result: Result) -> str:
    return result.note if result.state == "done" else f"{result.state}: {result.note}"


def _training(row: Row, found: Mapping[str, Result]) -> list[str]:
    values, alone = found[row.name].values, step_alone(row, found)
    derived: Values = {}
    if alone:
        derived["alone"] = alone
        if isinstance(values.get("images_per_second"), float):
            derived["share"] = float(values["images_per_second"]) / alone
    start = shown(values, "first_step_s", ".1f")
    return [
        row.name, shown(values, "images_per_second", ".0f"), shown(derived, "alone", ".0f"), shown(derived, "share", ".0%"),
        shown(values, "waiting", ".1%"), shown(values, "memory_gb", ".1f"), f"{start} s" if start else "", _note(found[row.name]),
    ]  # fmt: skip


def _validation(row: Row, result: Result) -> list[str]:
    values = dict(result.values)
    if "seconds" in values:
        values["sharded"] = float(values["seconds"]) - float(values["serial"])
    cells = [shown(values, name, form) for name, form in (("pictures", ".0f"), ("seconds", ".2f"), ("sharded", ".2f"), ("serial", ".2f"))]
    return [row.name, *cells, _note(result)]


def _roofline(row: Row, found: Mapping[str, Result]) -> list[str]:
    values = dict(found[row.name].values)
    trained = found.get(row.name.replace("roofline", "ours"))
    if "bytes" in values:
        values |= {"gb": float(values["bytes"]) / 1e9, "rate": float(values["bandwidth"]) / 1e9}
        values["ceiling"] = float(values["bandwidth"]) / float(values["bytes"])
        if trained and "alone" in trained.values:
            values |= {"alone": trained.values["alone"], "share": float(trained.values["alone"]) / float(values["ceiling"])}
    forms = (("gb", ".3f"), ("rate", ".0f"), ("ceiling", ".0f"), ("alone", ".0f"), ("share", ".0%"), ("largest", "s"))
    return [row.name, *(shown(values, name, form) for name, form in forms), _note(found[row.name])]


def _ratios(trainings: Sequence[Row], found: Mapping[str, Result]) -> list[list[str]]:
    lines = []
    rates = {r.name: found[r.name].values.get("images_per_second") for r in trainings}
    rate = rates.get(RATE[0])
    if isinstance(rate, float):
        lines.append([f"{RATE[0]}, images/s", f"{rate:.0f}", f"{RATE[1]:.0f}"])
    for name, other, goal in RATIOS:
        one, two = rates.get(name), rates.get(other)
        if isinstance(one, float) and isinstance(two, float):
            lines.append([f"{name} / {other}", f"{one / two:.2f}", "" if goal is None else f"{goal:g}"])
    for row in trainings:
        rate, alone = rates[row.name], step_alone(row, found)
        if row.measure is ours and isinstance(rate, float) and alone and row.gpus == 1:
            lines.append([f"{row.name} / its step alone", f"{rate / alone:.2f}", f"{OWN_STEP:g}"])
    times = [found[name].values for name in ("validation", "validation-2-gpus") if name in found and "seconds" in found[name].values]
    if len(times) == 2:
        one, two = (float(v["seconds"]) - float(v["serial"]) for v in times)
        lines.append(["validation, sharded part: time on 1 / on 2", f"{one / two:.2f}", "1.8"])
    return lines
