"""YOLOX (arXiv 2107.08430)."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.yolox.recipe import YOLOXRecipe

FAMILY = Family(
    name="yolox",
    task="detect",
    prefix="LibreYOLOX",
    sizes={"n": 416, "t": 416, "s": 640, "m": 640, "l": 640, "x": 640},
    recipe=YOLOXRecipe,
    input=InputSpec(channels="bgr", scale=255.0, resize="letterbox", filter="pil", pad=114, pad_position="topleft", stride=32),
)
