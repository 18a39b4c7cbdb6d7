"""Draws a run's pictures when there is something to show, into run_dir/plots."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from libreyolo.interfaces.events import EpochEnd, Listener, TrainEnd, TrainFailed, TrainStart, ValidationEnd
from libreyolo.record.plots.curves import plot_curves
from libreyolo.record.tables import read_results

log = logging.getLogger(__name__)

TIMES_PER_RUN = 8


class PictureListener(Listener):
    """Draws curves.png from results.csv, and what a task's own listener draws from the best validation.

    A task's listener says in `validation_pictures` what `draw_validation` writes. Drawing takes seconds, so it happens at validated epochs at
    least `every` epochs apart (an eighth of the run unless given) and at the end, even of a failed run. A picture that fails is warned about,
    no more. It must come after `ResultsTable` among the listeners: it reads that one's file.
    """

    validation_pictures: tuple[str, ...] = ()

    def __init__(self, run_dir: Path, names: dict[int, str], *, every: int | None = None) -> None:
        self.run_dir = Path(run_dir)
        self.folder = self.run_dir / "plots"
        self.names = names
        self._every = every
        self._period = every or 1
        self._last_drawn = 0
        self._has_best = False
        self._validation: ValidationEnd | None = None  # of the current epoch
        self._to_draw: ValidationEnd | None = None  # the best one, or the last while none was best; None once drawn

    def on_train_start(self, event: TrainStart) -> None:
        self._period = self._every or max(1, event.epochs // TIMES_PER_RUN)
        self._last_drawn = event.start_epoch
        self._validation = self._to_draw = None
        # A resumed run whose best epoch lies behind it has its pictures already.
        self._has_best = event.start_epoch > 0 and any((self.folder / name).exists() for name in self.validation_pictures)

    def on_validation_end(self, event: ValidationEnd) -> None:
        self._validation = event

    def on_epoch_end(self, event: EpochEnd) -> None:
        validation, self._validation = self._validation, None
        if validation is None:
            return
        self._has_best = self._has_best or event.is_best
        if event.is_best or not self._has_best:
            self._to_draw = validation
        if event.epoch - self._last_drawn >= self._period:
            self._last_drawn = event.epoch
            self._draw()

    def on_train_end(self, event: TrainEnd) -> None:
        self._draw()

    def on_exception(self, event: TrainFailed) -> None:
        self._draw()

    def _draw(self) -> None:
        attempt(self.folder / "curves.png", self._draw_run)
        validation, self._to_draw = self._to_draw, None
        if validation is not None:
            self.draw_validation(validation)

    def draw_validation(self, event: ValidationEnd) -> None:
        """Write the pictures of a validation into `folder`; none here."""

    def _draw_run(self, path: Path) -> None:
        rows = read_results(self.run_dir / "results.csv")
        if rows:
            plot_curves(rows, path)


def attempt(path: Path, draw: Callable[[Path], None]) -> None:
    """Call `draw(path)`; a failure is warned about and forgotten, because no picture is worth a training."""
    try:
        draw(path)
    except Exception as error:
        log.warning("The picture %s could not be drawn (%s: %s).", path, type(error).__name__, error)
