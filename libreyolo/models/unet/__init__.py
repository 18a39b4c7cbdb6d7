"""U-Net (arXiv 1505.04597), with padded convolutions and a fully convolutional head (arXiv 1411.4038)."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.unet.recipe import UNetRecipe

FAMILY = Family(
    name="unet",
    task="semantic",
    prefix="LibreUNet",
    sizes={"s": (1024, 2048)},
    recipe=UNetRecipe,
    input=InputSpec(scale=255.0, mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), resize="stretch", filter="cv2", stride=16),
    default_nc=19,
)
