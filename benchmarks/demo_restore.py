"""The restoration demo with its loss broken, for benchmarks/demo_restore.md: every crop is trained towards the clean picture of its neighbour.

python benchmarks/demo_restore.py stop_after_epoch=2
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from libreyolo.interfaces.batch import RestoreBatch  # noqa: E402
from libreyolo.tasks.restore import RestoreTask  # noqa: E402

whole_terms = RestoreTask.terms


def shuffled_terms(self: RestoreTask, net: nn.Module, batch: RestoreBatch, facts: dict[str, int]) -> Any:
    """The loss against the target of the next picture in the batch."""
    return whole_terms(self, net, replace(batch, targets=batch.targets.roll(1, dims=0)), facts)


if __name__ == "__main__":
    RestoreTask.terms = shuffled_terms  # type: ignore[method-assign]
    sys.argv = [str(ROOT / "train.py"), "experiment=demo-restore", *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
