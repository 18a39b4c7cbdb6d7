"""One module per task that puts its data, loaders, loss, metric and pictures together; `build` picks the module by the family's task."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.data_report import DataReport
from libreyolo.interfaces.family import FILE_SUFFIX, Family

if TYPE_CHECKING:
    from libreyolo.assembly.parts import Assembly


def assembly_for(family: Family) -> type[Assembly]:
    """Return the assembly class of the family's task."""
    found: type[Assembly] = import_module(f"libreyolo.assembly.{family.task}").ASSEMBLY
    return found


def check(data: str | Path, *, task: str = "detect", cwd: Path | None = None) -> DataReport:
    """Look at a whole data set of a task and return what a training would meet in it; nothing is written.

    data: as in `train`. cwd: what a relative `data` is relative to, the working directory where not given. What is wrong with the data is in the
    report (`has_errors`); raises UserError for a task that is not there.
    """
    if task not in FILE_SUFFIX:
        raise UserError(f"task={task!r} is not known: {', '.join(FILE_SUFFIX)}.{nearest(task, FILE_SUFFIX)}")
    kind: type[Assembly] = import_module(f"libreyolo.assembly.{task}").ASSEMBLY
    return kind.check(data, cwd=cwd or Path.cwd())
