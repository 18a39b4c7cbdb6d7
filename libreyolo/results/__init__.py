"""What `predict` returns, one class for each task."""

from libreyolo.results.base import Result, save_all
from libreyolo.results.detection import DetectionResult

__all__ = ["DetectionResult", "Result", "save_all"]
