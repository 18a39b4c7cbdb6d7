"""An accumulator whose state merges across ranks."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


class Metric(Protocol):
    """Collects predictions picture by picture; the result does not depend on who saw which picture, nor in what order."""

    def update(self, batch: Any, predictions: list[Any]) -> None:
        """Take the predictions of one evaluation batch (weight-0 pictures are left out)."""

    def state(self) -> Any:
        """Return a picklable state (plain NumPy arrays and builtins)."""

    def merge(self, states: list[Any]) -> None:
        """Replace this accumulator's content by the union of the given states; a picture seen twice counts once."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by their column names ("metrics/mAP50-95"); defined (never NaN) for empty input."""

    def curves(self) -> dict[str, Any]:
        """Return what pictures are drawn from, beyond single numbers; the content belongs to the task."""


@runtime_checkable
class SharedMetric(Protocol):
    """A metric whose computation is worth sharing: ranks that hold the same pictures each work out a part of it."""

    def part(self, number: int, of: int) -> Any:
        """Return part `number` of `of` of what `compute` needs, picklable. Who is asked has merged the states of all ranks."""

    def take_parts(self, parts: list[Any]) -> None:
        """Take all parts, in the order of their numbers; `compute` then gives the same numbers as without them."""


@runtime_checkable
class ClassMetric(Protocol):
    """A metric that also judges single classes."""

    def class_metrics(self) -> list[tuple[str, dict[str, float]]]:
        """Return for each class, in the order of the ids, its name and its metrics; their names are those of the columns ("mAP50-95").

        The columns become "class/<name>/<metric>". Every class has the same metrics in every validation; [] where there are no classes.
        """
