"""What is said at the end of a run: its metrics, where its weights are, and commands that work as they are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from libreyolo.interfaces.events import TrainEnd, TrainStart
from libreyolo.record import shell

# What is shown first, of what a task measures; a task with none of them shows its first five.
HEADLINES = (
    *("mAP50-95", "mAP50", "grid_F1", "precision", "recall"),
    *("accuracy_top1", "accuracy_top5", "f1", "mIoU", "pixel_accuracy", "PSNR", "SSIM"),
)
PREFIX = "metrics/"


def headlines(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the main metrics of a row or a validation by their short names, the one that says which epoch is best in front; {} for none."""
    measured = {k.removeprefix(PREFIX): float(v) for k, v in row.items() if k.startswith(PREFIX) and isinstance(v, (int, float))}
    best = str(row.get("best_metric_name") or "").removeprefix(PREFIX)
    shown = {name: measured[name] for name in (best, *HEADLINES) if name in measured}
    return shown if set(shown) - {best} else {**shown, **dict(list(measured.items())[:5])}


def best_text(row: Mapping[str, Any]) -> str:
    """Return "mAP50-95 0.5000 at epoch 5", "" where nothing was validated yet."""
    if row.get("best_metric") is None:
        return ""
    name = str(row.get("best_metric_name") or "metric").removeprefix(PREFIX)
    return f"{name} {float(row['best_metric']):.4f} at epoch {row.get('best_epoch')}"


def end_text(start: TrainStart, event: TrainEnd, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table at the end of a run. `rows` are those of results.csv, oldest first, as far as they are known."""
    last = rows[-1] if rows else {}
    done = int(last.get("epoch") or start.start_epoch)
    stopped = event.result.get("stopped_by")
    head = f"Training is done after {done} of {start.epochs} epochs" + (f", stopped by {stopped}." if stopped else ".")
    if not event.completed:
        head = f"Training stopped as asked after {done} of {start.epochs} epochs."
    paths = [(title, event.result.get(key)) for title, key in (("best weights", "best_checkpoint"), ("last weights", "last_checkpoint"))]
    paths += [("average", event.result.get("average_checkpoint")), ("results", event.run_dir / "results.csv")]
    paths.append(("report", event.run_dir / "report.html" if start.config.get("report") else None))
    lines = [f"  {title:<14}{text}" for title, text in [("best result", best_text(last) or "none: no validation was run"), *paths] if text]
    weights = event.result.get("best_checkpoint") or event.result.get("last_checkpoint")
    commands = [f"  {title:<14}{command}" for title, command in _commands(start, event.run_dir, weights, done)]
    return "\n".join([head, *_metrics(rows), *lines, "What to run next:", *commands])


def _metrics(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each main metric, at the best epoch and at the last that was validated."""
    validated = [row for row in rows if headlines(row)]
    if not validated:
        return []
    last = validated[-1]
    best = next((row for row in validated if row.get("epoch") == last.get("best_epoch")), last)
    shown = [("best", best)] if best is last else [("best", best), ("last", last)]
    columns = [(f"{which}: epoch {row['epoch']}", headlines(row)) for which, row in shown]
    title = f"  {'metric':<20}" + "".join(f"{head:>18}" for head, _ in columns)
    return [title, *(f"  {name:<20}" + "".join(f"{values.get(name, float('nan')):>18.4f}" for _, values in columns) for name in columns[0][1])]


def _commands(start: TrainStart, run_dir: Path, weights: Any, done: int) -> list[tuple[str, str]]:
    if not weights:
        return []
    found = [("validate", shell.module("val", weights))] if start.config.get("val", True) else []
    if start.example is not None:
        found.append(("predict", shell.module("predict", weights, start.example)))
    return [*found, ("go on", shell.go_on(run_dir, 2 * start.epochs if done >= start.epochs else None))]
