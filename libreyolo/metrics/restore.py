"""The restoration metric: PSNR and SSIM of every picture, from states that ranks can merge. P pictures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo.interfaces.batch import RestoreBatch, Restored
from libreyolo.metrics.similarity import psnr, ssim

log = logging.getLogger(__name__)

FIGURES = ("psnr", "ssim", "input_psnr", "input_ssim")


@dataclass(frozen=True)
class RestoreSample:
    """A picture to show: as it was given, as it was restored, and as it should be; each uint8 [H, W, 3] RGB."""

    given: np.ndarray
    restored: np.ndarray
    target: np.ndarray
    psnr: float
    ssim: float
    input_psnr: float
    title: str = ""


class RestoreMetric:
    """Collects figures picture by picture; the result is equal to the bit whoever saw which picture and in whatever order.

    Each picture is judged by itself at its own size, RGB in [0, 1], clipped but not rounded, without cutting a border off, and counts once in the
    means. The same is measured of the input as it was given: what leaving it alone would have got.
    keep_worst: restored pictures that are kept (those of the lowest PSNR), for drawing.
    """

    def __init__(self, *, keep_worst: int = 0) -> None:
        self.keep_worst = keep_worst
        self._figures: dict[int, tuple[float, ...]] = {}
        self._kept: dict[int, np.ndarray] = {}
        self._warned = False

    def update(self, batch: RestoreBatch, predictions: list[Restored]) -> None:
        """Take one batch's pictures; those of weight 0 or seen before are left out. A value that is not finite counts as 0."""
        rows = zip(batch.index.tolist(), batch.weight.tolist(), batch.picture_hw.tolist(), predictions, strict=True)
        for row, (index, weight, (h, w), prediction) in enumerate(rows):
            if weight == 0 or index in self._figures:
                continue
            given, target = _wide(batch.images[row, :, :h, :w]), _wide(batch.targets[row, :, :h, :w])
            restored = self._finite(prediction.pixels, index)
            placed = _wide(restored).to(target.device)
            self._figures[index] = (psnr(placed, target), ssim(placed, target), psnr(given, target), ssim(given, target))
            if self.keep_worst:
                self._kept[index] = to_uint8(restored)
                self._drop_better()

    def state(self) -> dict[str, Any]:
        """Return index int64 [P], figures float64 [P, 4] in the order of FIGURES, and the kept pictures by index."""
        index = sorted(self._figures)
        figures = np.array([self._figures[i] for i in index], np.float64).reshape(-1, len(FIGURES))
        return {"index": np.array(index, np.int64), "figures": figures, "kept": dict(self._kept)}

    def merge(self, states: Sequence[dict[str, Any]]) -> None:
        """Replace the content by the union of the states; a picture in two of them counts once (the first is kept)."""
        self._figures, self._kept = {}, {}
        for state in states:
            for index, figures in zip(state["index"].tolist(), state["figures"].tolist(), strict=True):
                self._figures.setdefault(index, tuple(figures))
            for index, picture in state["kept"].items():
                self._kept.setdefault(index, picture)
        self._drop_better()

    def compute(self) -> dict[str, float]:
        """Return the validation columns of results.csv: means over the pictures, 0 where there are none."""
        _, figures = self._table()
        means = figures.mean(axis=0) if len(figures) else np.zeros(len(FIGURES))
        columns = {"PSNR": means[0], "SSIM": means[1], "fitness": means[0]}
        return {f"metrics/{name}": float(value) for name, value in columns.items()}

    def curves(self) -> dict[str, Any]:
        """Return what pictures are drawn from: pictures [P], places in the dataset, and psnr, ssim, input_psnr, input_ssim [P] of them."""
        index, figures = self._table()
        return {"pictures": index, **{name: figures[:, column] for column, name in enumerate(FIGURES)}}

    def worst(self, count: int) -> list[int]:
        """Return the places in the dataset of the `count` kept pictures of the lowest PSNR, lowest first (fewer where fewer were kept)."""
        return sorted(self._kept, key=self._badness)[:count]

    def sample(self, index: int, given: np.ndarray, target: np.ndarray, title: str = "") -> RestoreSample:
        """Return a kept picture for drawing. given, target: uint8 [H, W, 3] RGB. Raises KeyError for one that was not kept."""
        figures = dict(zip(FIGURES, self._figures[index], strict=True))
        return RestoreSample(given, self._kept[index], target, figures["psnr"], figures["ssim"], figures["input_psnr"], title)

    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        state = self.state()
        return state["index"], state["figures"]

    def _drop_better(self) -> None:
        for index in sorted(self._kept, key=self._badness)[self.keep_worst :]:
            del self._kept[index]

    def _badness(self, index: int) -> tuple[float, int]:
        return self._figures[index][0], index

    def _finite(self, pixels: Tensor, index: int) -> Tensor:
        if bool(torch.isfinite(pixels).all()):
            return pixels
        if not self._warned:
            self._warned = True
            log.warning("The network gives values that are not finite (picture %d); they count as 0.", index)
        return torch.nan_to_num(pixels, nan=0.0, posinf=0.0, neginf=0.0)


def to_uint8(pixels: Tensor) -> np.ndarray:
    """Return a picture [3, H, W] in [0, 1] as uint8 [H, W, 3], rounded."""
    found: np.ndarray = (pixels * 255.0).round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().cpu().numpy()
    return found


def _wide(pixels: Tensor) -> Tensor:
    """Return the values in float64: variances are small differences of squares. On the CPU where the device has no such numbers."""
    return pixels.cpu().double() if pixels.device.type == "mps" else pixels.double()
