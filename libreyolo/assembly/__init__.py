"""One module per task that puts its data, loaders, loss, metric and pictures together; `build` picks the module by the family's task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from libreyolo.interfaces.family import Family

if TYPE_CHECKING:
    from libreyolo.assembly.parts import Assembly


def assembly_for(family: Family) -> type[Assembly]:
    """Return the assembly class of the family's task."""
    found: type[Assembly] = import_module(f"libreyolo.assembly.{family.task}").ASSEMBLY
    return found
