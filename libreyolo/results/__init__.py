"""What `predict` returns, one class for each task."""

from libreyolo.results.base import Result, save_all
from libreyolo.results.detection import DetectionResult
from libreyolo.results.restore import RestoreResult

__all__ = ["DetectionResult", "RestoreResult", "Result", "save_all"]
