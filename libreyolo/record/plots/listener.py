"""Draws a run's pictures when there is something to show, into run_dir/plots."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from libreyolo.interfaces.events import EpochEnd, Listener, TrainEnd, TrainFailed, TrainStart, ValidationEnd
from libreyolo.record.plots.curves import plot_curves
from libreyolo.record.tables import read_results

log = logging.getLogger(__name__)

TIMES_PER_RUN = 8
MOST_OF_A_RUN = 0.02  # of the time since the last drawing
FIRST_COST = 3.0  # seconds, before one has been drawn


class PictureListener(Listener):
    """Draws curves.png from results.csv, and what a task's own listener draws from the best validation.

    A task's listener says in `validation_pictures` what `draw_validation` writes. Drawing takes seconds, in which the device waits: it happens at
    the end, even of a failed run, and before it at validated epochs at least `every` epochs apart, or, where that is not given, an eighth of the
    run apart and so seldom that it takes a small share of the time. A picture that fails is warned about, no more. It must come after
    `ResultsTable` among the listeners: it reads that one's file. clock: in seconds.
    """

    validation_pictures: tuple[str, ...] = ()

    def __init__(self, run_dir: Path, names: dict[int, str], *, every: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.run_dir = Path(run_dir)
        self.folder = self.run_dir / "plots"
        self.names = names
        self._every = every
        self._period = every or 1
        self._clock = clock
        self._last_drawn = 0  # epoch
        self._drawn_at = clock()
        self._cost = FIRST_COST
        self._has_best = False
        self._validation: ValidationEnd | None = None  # of the current epoch
        self._to_draw: ValidationEnd | None = None  # the best one, or the last while none was best; None once drawn

    def on_train_start(self, event: TrainStart) -> None:
        self._period = self._every or max(1, event.epochs // TIMES_PER_RUN)
        self._last_drawn, self._drawn_at = event.start_epoch, self._clock()
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
        if event.epoch - self._last_drawn >= self._period and (self._every or self._is_cheap()):
            began = self._clock()
            self._draw()
            self._last_drawn, self._drawn_at = event.epoch, self._clock()
            self._cost = self._drawn_at - began

    def _is_cheap(self) -> bool:
        return self._cost <= MOST_OF_A_RUN * (self._clock() - self._drawn_at)

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
