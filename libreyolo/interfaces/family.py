"""What a model family tells the rest: facts here, work in its modules `network`, `loss`, `decode` and `recipe`.

A family is a folder `libreyolo/models/<family>/` whose `__init__.py` holds one `FAMILY`. Importing it must stay cheap (no torch): the working
modules are imported when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from libreyolo.errors import UserError
from libreyolo.interfaces.input import InputSpec
from libreyolo.recipe import Recipe

# Task of a family -> suffix of its published files ("LibreResNet50-cls.pt").
FILE_SUFFIX = {"detect": "", "classify": "-cls", "semantic": "-sem", "restore": "-restore", "point": "-point"}


@dataclass(frozen=True)
class Family:
    """Facts about a family.

    name: folder name and `model_family` of its files.
    task: a key of FILE_SUFFIX.
    prefix: beginning of published file names ("LibreYOLO9").
    sizes: size code -> default network input, a side or (height, width).
    recipe: its dataclass of arguments.
    input: its input convention.
    inputs: that of sizes which differ from it.
    spawns: whether more than one GPU starts processes by itself.
    default_nc: classes of a network that is built before any data is known; 0 where the task has none.
    backbones: size -> address of its backbone's ImageNet weights, which `pretrained=true` then means; empty: it means the published weights of
        the whole network. Needs `from_backbone(state, size)` in `network`.
    published: whether weights of the whole network can be fetched.
    """

    name: str
    task: str
    prefix: str
    sizes: Mapping[str, int | tuple[int, int]]
    recipe: type[Recipe]
    input: InputSpec
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    spawns: bool = True
    default_nc: int = 80
    backbones: Mapping[str, str] = field(default_factory=dict)
    published: bool = True

    @property
    def network(self) -> Any:
        """Module with `build(size, nc, **options)`, `infer(state)` and `CLASS_LAYERS`."""
        return import_module(f"libreyolo.models.{self.name}.network")

    @property
    def loss(self) -> Any:
        """Module with `build(nc, **options)`, which returns the criterion: `inputs(batch)`, `facts(batch)`, `terms(output, batch)`."""
        return import_module(f"libreyolo.models.{self.name}.loss")

    @property
    def decode(self) -> Any:
        """Module that turns the network's output into predictions; its verbs belong to the task."""
        return import_module(f"libreyolo.models.{self.name}.decode")

    def accepts(self, state: Mapping[str, Any]) -> bool:
        """Return whether the tensors are those of a network of this family, of some size: whether `infer` makes something of them."""
        try:
            self.network.infer(state)
        except UserError:
            return False
        return True

    def input_of(self, size: str) -> InputSpec:
        """Return the input convention of a size."""
        return self.inputs.get(size, self.input)

    def published_name(self, size: str) -> str:
        """Return the name of the published file of a size, "LibreYOLO9s.pt"."""
        return f"{self.prefix}{size}{FILE_SUFFIX[self.task]}.pt"
