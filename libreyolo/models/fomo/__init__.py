"""FOMO, "faster objects, more objects": object centres on a coarse grid, by the first layers of a MobileNetV2 (arXiv 1801.04381)."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.fomo.recipe import FOMORecipe

FAMILY = Family(
    name="fomo",
    task="point",
    prefix="LibreFOMO",
    sizes={"s": 96, "m": 192, "l": 224},
    recipe=FOMORecipe,
    input=InputSpec(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), resize="stretch", filter="pil", stride=8),
    default_nc=1,
    published=False,
)
