"""An accumulator whose state merges across ranks."""

from __future__ import annotations

from typing import Any, Protocol


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
