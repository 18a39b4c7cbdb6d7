"""What a run directory says about its run. Every file may be missing or half written: a run that failed at once has a report too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from libreyolo.record.tables import Row, read_results

# Errors whose sentence says all; a traceback names them in full, status.json by their last part.
OWN_ERROR = re.compile(r"^(?:(?:libreyolo|launch)\.[\w.]+|UserError|AgreedError): ")
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there


@dataclass(frozen=True)
class RunFacts:
    """The files of a run directory, read.

    status: of status.json. config: every argument. rows: of metrics.jsonl, oldest first. lives: of environment.json, one for each start.
    overrides: what was typed on Hydra's command line; [] where another door was used. pictures: the PNGs in plots/. checkpoints: weights/*.pt.
    profile: the text of profile.txt. log_end: the last lines of train.log.
    """

    run_dir: Path
    status: Mapping[str, Any]
    config: Mapping[str, Any]
    rows: Sequence[Row]
    lives: Sequence[Mapping[str, Any]]
    overrides: Sequence[str]
    pictures: Sequence[Path]
    checkpoints: Sequence[Path]
    profile: str
    log_end: Sequence[str]

    @property
    def model(self) -> str:
        """Family and size, "?" where the run ended before it wrote them."""
        return f"{self.config.get('family', '')}{self.config.get('size', '')}" or "?"

    @property
    def data(self) -> str:
        """What it was trained on, in few letters: a built-in name, or a path's last two parts."""
        return "/".join(Path(str(self.config.get("data") or self.config.get("data_dir") or "?")).parts[-2:])

    @property
    def state(self) -> str:
        """completed, failed, interrupted or running (also where the process was killed); failed where it never came to a first step."""
        return str(self.status.get("state") or "failed")

    @property
    def error(self) -> str:
        """What ended the run, one line; "" where nothing did."""
        said = str(self.status.get("error") or "")
        if not said and self.state == "failed":
            said = next((line for line in reversed(self.log_end) if line.strip()), "")
        return OWN_ERROR.sub("", said)

    @property
    def metric_name(self) -> str:
        return str(self.status.get("best_metric_name") or "").removeprefix("metrics/")

    @property
    def metric(self) -> float | None:
        value = self.status.get("best_metric")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def best_row(self) -> Row:
        """The row of the best epoch, else the last one that was validated, else {}."""
        best = self.status.get("best_epoch")
        validated = [row for row in self.rows if row.get("validated")]
        return next((row for row in validated if row.get("epoch") == best), validated[-1] if validated else {})

    @property
    def seconds(self) -> float | None:
        """Time spent in finished epochs, over all lives; of a run without any, from its start to its end; None where neither is known."""
        times = [row["time"] for row in self.rows if isinstance(row.get("time"), (int, float))]
        if times:
            return float(times[-1])  # type: ignore[arg-type]
        if self.lives and isinstance(self.status.get("updated"), (int, float)):
            return max(float(self.status["updated"]) - datetime.fromisoformat(_iso(self.lives[-1]["started"])).timestamp(), 0.0)
        return None


def read_run(run_dir: Path) -> RunFacts:
    """Return what is known of the run in `run_dir`."""
    lives = _json(run_dir / "environment.json", [])
    return RunFacts(
        run_dir=run_dir,
        status=_mapping(_json(run_dir / "status.json", {})),
        config=_mapping(_yaml(run_dir / "train_config.yaml")),
        rows=_rows(run_dir),
        lives=[life for life in lives if isinstance(life, dict)] if isinstance(lives, list) else [],
        overrides=read_overrides(run_dir),
        pictures=sorted((run_dir / "plots").glob("*.png")),
        checkpoints=sorted((run_dir / "weights").glob("*.pt")),
        profile=_text(run_dir / "profile.txt"),
        log_end=_text(run_dir / "train.log")[-8000:].splitlines()[-12:],
    )


def read_overrides(run_dir: Path) -> list[str]:
    """Return what was typed for this run on Hydra's command line, [] where Hydra has left no such file."""
    typed = _yaml(run_dir / ".hydra" / "overrides.yaml")
    return [str(override) for override in typed] if isinstance(typed, list) else []


def split_override(override: str) -> tuple[str, str]:
    """Return key and value of "lr0=0.01", "+lr0=0.01" or "~lr0"."""
    key, _, value = override.lstrip("+~").partition("=")
    return key, value


def _rows(run_dir: Path) -> list[Row]:
    for name in ("metrics.jsonl", "results.csv"):
        try:
            rows = read_results(run_dir / name)
        except (OSError, ValueError):
            continue
        if rows:
            return rows
    return []


def _json(path: Path, missing: Any) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return missing


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _iso(stamp: Any) -> str:
    """Return a time stamp as Python 3.10 reads it: +0000 becomes +00:00."""
    said = str(stamp)
    return f"{said[:-2]}:{said[-2:]}" if len(said) > 5 and said[-5] in "+-" else said
