"""ResNet (arXiv 1512.03385), in the form in which a bottleneck's 3x3 convolution carries the stride ("v1.5")."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import IMAGENET_MEAN, IMAGENET_STD, InputSpec
from libreyolo.models.resnet.recipe import ResNetRecipe

FAMILY = Family(
    name="resnet",
    task="classify",
    prefix="LibreResNet",
    sizes={"18": 224, "34": 224, "50": 224, "101": 224},
    recipe=ResNetRecipe,
    input=InputSpec(mean=IMAGENET_MEAN, std=IMAGENET_STD, resize="crop", filter="pil-bicubic", crop_pct=0.95, stride=1),
    default_nc=1000,
)
