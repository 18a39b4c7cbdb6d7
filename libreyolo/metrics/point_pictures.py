"""One picture's points beside its truth. D points, G objects, C cells that hold an object, R radii of suppression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import Self

from libreyolo.interfaces.batch import Points
from libreyolo.metrics.confusion import Match


@dataclass(frozen=True)
class Seen:
    """What a metric keeps of a picture: its points, best first (equal scores by row, then column), and its objects in the labels' order.

    cells int64 [D, 2] (column, row), xy float32 [D, 2] (original pixels), scores float32 [D], labels int64 [D], kept bool [D, R];
    truth_cells int64 [G, 2], truth_labels int64 [G].
    """

    cells: np.ndarray
    xy: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    kept: np.ndarray
    truth_cells: np.ndarray
    truth_labels: np.ndarray

    @classmethod
    def of(cls, points: Points, truth_cells: np.ndarray, truth_labels: np.ndarray) -> Self:
        order = np.lexsort((points.cells[:, 0].numpy(), points.cells[:, 1].numpy(), -points.scores.numpy()))
        return cls(
            cells=points.cells.numpy()[order].astype(np.int64),
            xy=points.xy.numpy()[order].astype(np.float32),
            scores=points.scores.numpy()[order].astype(np.float32),
            labels=points.labels.numpy()[order].astype(np.int64),
            kept=points.kept.numpy()[order],
            truth_cells=truth_cells.astype(np.int64),
            truth_labels=truth_labels.astype(np.int64),
        )

    @classmethod
    def nothing(cls, num_radii: int) -> Self:
        """Return a picture without points and objects."""
        pairs, ids = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
        return cls(pairs, pairs.astype(np.float32), np.zeros(0, np.float32), ids, np.zeros((0, num_radii), bool), pairs, ids)


@dataclass(frozen=True)
class Chosen:
    """The points of one radius and threshold, best first: cells int64 [D, 2], scores float32 [D], labels int64 [D], rows int64 [D] in `Seen`."""

    cells: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class PointPicture:
    """Chosen points beside the cells that hold an object. index: the picture's place in the dataset; truth_cells [C, 2], truth_labels [C]."""

    index: int
    predicted: Chosen
    truth_cells: np.ndarray
    truth_labels: np.ndarray

    @classmethod
    def of(cls, index: int, seen: Seen, place: int, threshold: float) -> Self:
        """Choose the points above `threshold` that stay at radius number `place`."""
        rows = np.flatnonzero(seen.kept[:, place] & (seen.scores > threshold))
        objects = occupied(seen.truth_cells)
        return cls(index, Chosen(seen.cells[rows], seen.scores[rows], seen.labels[rows], rows), seen.truth_cells[objects], seen.truth_labels[objects])


def occupied(cells: np.ndarray) -> np.ndarray:
    """Return the rows of the objects that decide their cell, rising: of several in one cell [G, 2] the last, as in the loss."""
    last = {cell: row for row, cell in enumerate(map(tuple, cells.tolist()))}
    return np.array(sorted(last.values()), np.int64)


@dataclass(frozen=True)
class PointSample:
    """A picture to show: what was there and what was seen.

    image: uint8 [H, W, 3] RGB. truth_xy: [G, 2] centres in its pixels, truth_labels: [G], missed: bool [G], no point stands for its cell.
    xy: [D, 2] points in its pixels, scores, labels: [D], is_class: int64 [D], the class of the object there, -1 where there is none.
    mistakes: how wrong it is (see `confusion.mistakes`); higher is worse.
    """

    image: np.ndarray
    truth_xy: np.ndarray
    truth_labels: np.ndarray
    missed: np.ndarray
    xy: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    is_class: np.ndarray
    title: str = ""
    mistakes: float = 0.0


def sample_of(image: np.ndarray, boxes: np.ndarray, seen: Seen, picture: PointPicture, match: Match, title: str, mistakes: float) -> PointSample:
    """Return a matched picture for drawing; `boxes` [G, 4] are its true ones in the labels' order."""
    missed_cells = {tuple(cell) for cell in picture.truth_cells[match.missed].tolist()}
    is_class = np.full(len(picture.predicted.rows), -1, np.int64)
    is_class[match.pairs[:, 0]] = picture.truth_labels[match.pairs[:, 1]]
    corners = np.asarray(boxes, np.float32).reshape(-1, 4)
    return PointSample(
        image=image,
        truth_xy=(corners[:, :2] + corners[:, 2:]) / 2,
        truth_labels=seen.truth_labels,
        missed=np.array([tuple(cell) in missed_cells for cell in seen.truth_cells.tolist()], bool),
        xy=seen.xy[picture.predicted.rows],
        scores=picture.predicted.scores,
        labels=picture.predicted.labels,
        is_class=is_class,
        title=title,
        mistakes=mistakes,
    )
