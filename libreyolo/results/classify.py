"""The class of a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from libreyolo.interfaces.batch import ClassScores
from libreyolo.record.plots.boxes import font
from libreyolo.results.base import Result

LETTERS = 14


@dataclass(frozen=True)
class ClassifyResult(Result):
    """The probabilities of a picture's classes."""

    scores: ClassScores

    def __len__(self) -> int:
        return 1

    @property
    def probs(self) -> np.ndarray:
        """[C] float32, adding up to 1."""
        return self.scores.probs.numpy()

    @property
    def top1(self) -> int:
        """The most probable class; of equally probable ones the first."""
        return self.top5[0]

    @property
    def top5(self) -> list[int]:
        """The five most probable classes (all where there are fewer), most probable first."""
        return [int(k) for k in np.argsort(-self.probs, kind="stable")[:5]]

    @property
    def top1conf(self) -> float:
        """Probability of `top1`."""
        return float(self.probs[self.top1])

    @property
    def top5conf(self) -> list[float]:
        """Probabilities of `top5`."""
        return [float(self.probs[k]) for k in self.top5]

    def summary(self) -> str:
        """Return the most probable class and its probability: "cardboard 0.93"."""
        return f"{self.names[self.top1]} {self.top1conf:.2f}"

    def plot(self) -> np.ndarray:
        """Return the picture with its five most probable classes written on its top left, uint8 [H, W, 3] RGB."""
        drawn = Image.fromarray(self.picture)
        canvas = ImageDraw.Draw(drawn, "RGBA")
        lines = "\n".join(f"{self.names[k]} {self.probs[k]:.2f}" for k in self.top5)
        left, top, right, bottom = canvas.multiline_textbbox((6, 6), lines, font=font(LETTERS))
        canvas.rectangle((left - 4, top - 4, right + 4, bottom + 4), fill=(0, 0, 0, 150))
        canvas.multiline_text((6, 6), lines, fill=(255, 255, 255), font=font(LETTERS))
        return np.asarray(drawn)
