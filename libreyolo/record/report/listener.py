"""Writes report.html when a run ends, however it ends."""

from __future__ import annotations

import logging
from pathlib import Path

from libreyolo.interfaces.events import Listener, TrainEnd, TrainFailed
from libreyolo.recipe import Recipe, recipe_fields
from libreyolo.record.report.run_page import write_run_report

log = logging.getLogger(__name__)


class ReportListener(Listener):
    """Writes the page of a run at its end, from what the other listeners left in its directory: it must be told after all of them.

    A page that cannot be written is warned about once, and no training ends by it.
    """

    def __init__(self, run_dir: Path, recipe: type[Recipe]) -> None:
        self.run_dir, self._keys = Path(run_dir), recipe_fields(recipe)
        self._warned = False

    def on_train_end(self, event: TrainEnd) -> None:
        self._write()

    def on_exception(self, event: TrainFailed) -> None:
        self._write()

    def _write(self) -> None:
        try:
            write_run_report(self.run_dir, self._keys)
        except Exception as error:
            if not self._warned:
                self._warned = True
                log.warning("report.html could not be written (%s: %s); everything it shows is in %s.", type(error).__name__, error, self.run_dir)
