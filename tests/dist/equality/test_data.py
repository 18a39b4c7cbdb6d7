"""The real loaders of every family: disjoint, complete, reshuffled, the same for any number of ranks and workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from libreyolo import schema
from libreyolo.errors import UserError
from tests.dist.equality.mutations import sampler_dropped
from tests.dist.equality.shards import DATASETS, Pictures, epoch_of, faults

FAMILIES = list(schema.families())


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root = tmp_path_factory.mktemp("shards")
    return {(task, count): make(root / f"{task}{count}", count) for task, make in DATASETS.items() for count in (1, 3, 11)}


def merged(ranks: list[list[Pictures]]) -> list[Pictures]:
    """Return the steps as one rank would see them."""
    return [{place: seen for rank in ranks for place, seen in sorted(rank[step].items())} for step in range(len(ranks[0]))]


@pytest.mark.parametrize("family", FAMILIES)
def test_shards_are_disjoint_complete_and_reshuffled(family: str, sets: dict[tuple[str, int], Path]) -> None:
    data = sets[schema.family(family).task, 11]
    epochs = [epoch_of(family, data, epoch, batch=4, world_size=2) for epoch in (0, 1)]
    for ranks in epochs:
        assert faults(ranks, 11, 4) == []
    orders = [[index for step in merged(ranks) for index, _, _ in dict(sorted(step.items())).values()] for ranks in epochs]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_any_number_of_ranks_and_workers_gives_the_same_steps(family: str, sets: dict[tuple[str, int], Path]) -> None:
    data = sets[schema.family(family).task, 11]
    alone = merged(epoch_of(family, data, 1, batch=4, world_size=1))
    assert merged(epoch_of(family, data, 1, batch=4, world_size=2)) == alone
    assert merged(epoch_of(family, data, 1, batch=4, world_size=4)) == alone
    assert merged(epoch_of(family, data, 1, batch=4, world_size=2, workers=1)) == alone


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_set_smaller_than_the_batch_or_the_ranks_gives_every_rank_one_step(family: str, count: int, sets: dict[tuple[str, int], Path]) -> None:
    ranks = epoch_of(family, sets[schema.family(family).task, count], 0, batch=8, world_size=4)
    assert [len(rank) for rank in ranks] == [1, 1, 1, 1]
    assert all(rank[0] for rank in ranks)
    assert faults(ranks, count, 8) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_that_ranks_do_not_divide_is_refused(family: str, sets: dict[tuple[str, int], Path]) -> None:
    with pytest.raises(UserError, match="batch=6 is the global batch and must be divisible by world_size=4"):
        epoch_of(family, sets[schema.family(family).task, 3], 0, batch=6, world_size=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_of_shards_fails_where_the_sampler_is_dropped(family: str, sets: dict[tuple[str, int], Path]) -> None:
    with sampler_dropped():
        ranks = epoch_of(family, sets[schema.family(family).task, 11], 0, batch=4, world_size=2)
    assert len(faults(ranks, 11, 4)) >= 3
