"""NAFNet (arXiv 2204.04676): restoration of pictures, noise or blur taken out."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.nafnet.recipe import NAFNetRecipe

FAMILY = Family(
    name="nafnet",
    task="restore",
    prefix="LibreNAFNet",
    sizes={"s": 256, "l": 256},
    recipe=NAFNetRecipe,
    input=InputSpec(resize="native", stride=16),
    default_nc=0,
)
