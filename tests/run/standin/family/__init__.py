"""A family of a test: the smallest detector that trains. It is copied into `libreyolo/models/standin` of a copy of the project."""

from libreyolo.interfaces.family import Family
from libreyolo.interfaces.input import InputSpec
from libreyolo.models.standin.recipe import StandInRecipe

FAMILY = Family(
    name="standin",
    task="detect",
    prefix="LibreStandIn",
    sizes={"a": 64},
    recipe=StandInRecipe,
    input=InputSpec(resize="letterbox", stride=16),
)
