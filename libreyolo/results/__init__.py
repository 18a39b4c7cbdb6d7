"""What `predict` returns, one class for each task."""

from libreyolo.results.base import Result, save_all
from libreyolo.results.detection import DetectionResult
from libreyolo.results.semantic import SemanticResult

__all__ = ["DetectionResult", "Result", "SemanticResult", "save_all"]
