"""What `predict` returns, one class for each task."""

from libreyolo.results.base import Result, save_all
from libreyolo.results.detection import DetectionResult
from libreyolo.results.point import PointResult

__all__ = ["DetectionResult", "PointResult", "Result", "save_all"]
