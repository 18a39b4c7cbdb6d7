"""What `predict` returns, one class for each task."""

from libreyolo.results.base import Result, save_all
from libreyolo.results.classify import ClassifyResult
from libreyolo.results.detection import DetectionResult
from libreyolo.results.point import PointResult
from libreyolo.results.restore import RestoreResult
from libreyolo.results.semantic import SemanticResult

__all__ = ["ClassifyResult", "DetectionResult", "PointResult", "RestoreResult", "Result", "SemanticResult", "save_all"]
