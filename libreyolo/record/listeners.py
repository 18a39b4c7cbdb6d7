"""Everything that keeps records of a run, in the order in which it must be told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libreyolo.interfaces.events import Listener
from libreyolo.record.progress import ProgressListener
from libreyolo.record.status import StatusFile
from libreyolo.record.tables import ResultsTable
from libreyolo.record.trackers import tracker_listeners


def run_listeners(loggers: Sequence[str], run_dir: Path, config: dict[str, Any]) -> list[Listener]:
    """Return tables, status file, progress and the trackers named in `loggers`. Raises UserError for an unknown name or a missing package."""
    return [ResultsTable(run_dir), StatusFile(run_dir), ProgressListener(), *tracker_listeners(loggers, run_dir, config)]
