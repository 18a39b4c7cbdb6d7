"""One session of ranks for many checks: starting processes that import torch is what costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import launch
from libreyolo.data.shapes import make_shapes
from tests.dist.equality import ranks, runs


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the ranks: the number of threads changes the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def two_ranks() -> dict[Any, Any]:
    """Results of `ranks.step_session` on two ranks."""
    return launch.spawn_ddp_train(ranks.step_session, (), num_processes=2)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six training pictures and seven to validate on."""
    return str(make_shapes(tmp_path_factory.mktemp("sets") / "six", num_train=6, num_val=7, size=64))


@pytest.fixture(scope="session")
def one_val_picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A set with a single validation picture: on two ranks one has nothing."""
    return str(make_shapes(tmp_path_factory.mktemp("sets") / "one", num_train=4, num_val=1, size=64))


@pytest.fixture(scope="session")
def trained(dataset: str, one_val_picture: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Whole trainings: straight on 1 and 2 ranks, stopped and resumed on 2, and continued on the other number both ways."""
    project = str(tmp_path_factory.mktemp("runs"))
    start = runs.learn_a_little(dataset, project)
    found: dict[str, Any] = {"straight on 1": runs.train(start, dataset, project, "straight1")}
    stopped = runs.train(start, dataset, project, "stopped1", {"stop_after_epoch": 1})
    shutil.copytree(stopped["dir"], Path(project) / "continued_on_2")
    arguments = (start, dataset, one_val_picture, project, str(Path(project) / "continued_on_2"))
    two = launch.spawn_ddp_train(ranks.run_session, arguments, num_processes=2)
    found |= {f"{name} on 2" if name in ("straight", "stopped", "resumed") else name: value for name, value in two.items()}
    found["stopped on 1"] = stopped
    found["continued on 1"] = runs.resume(str(Path(project) / "continued_on_1"))
    return found
