"""YOLOv9 (arXiv 2402.13616)."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.yolo9.recipe import YOLO9Recipe

FAMILY = Family(
    name="yolo9",
    task="detect",
    prefix="LibreYOLO9",
    sizes={"t": 640, "s": 640, "m": 640, "c": 640},
    recipe=YOLO9Recipe,
    input=InputSpec(resize="letterbox", pad=114, pad_position="topleft", stride=32),
)
