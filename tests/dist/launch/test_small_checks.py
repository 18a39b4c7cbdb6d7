"""The batch sentence, the refusal of families, and which errors are one sentence."""

from __future__ import annotations

import pytest

from launch.batch import check_divisible
from launch.errors import BatchError, RankFailedError, SpawnGuardError, UnsupportedFamilyError, is_one_sentence
from launch.support import require_spawn_support
from libreyolo.errors import UserError


def test_the_batch_sentence_is_the_contract_s():
    with pytest.raises(BatchError) as caught:
        check_divisible(6, 4)
    assert str(caught.value) == (
        "batch=6 is the global batch and must be divisible by world_size=4: each rank trains at batch // world_size, so this value would "
        "silently train at a different global batch than requested. Use batch=4 or batch=8."
    )


def test_a_batch_below_the_number_of_processes_has_one_neighbour():
    with pytest.raises(BatchError, match=r"Use batch=4\.$"):
        check_divisible(3, 4)


@pytest.mark.parametrize(("batch", "world_size"), [(4, 4), (32, 2), (1, 1), (7, 1)])
def test_a_batch_that_fits_passes(batch, world_size):
    check_divisible(batch, world_size)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_below_one_is_an_error(batch):
    with pytest.raises(BatchError, match=f"batch={batch} must be 1 or more"):
        check_divisible(batch, 2)


def test_a_family_without_automatic_start_is_refused_on_several_devices_only():
    require_spawn_support("yolo9", True, "LibreYOLO('a.pt').train", 4)
    require_spawn_support("sam", False, "LibreYOLO('a.pt').train", 1)
    with pytest.raises(UnsupportedFamilyError) as caught:
        require_spawn_support("sam", False, "LibreYOLO('a.pt').train", 4)
    assert "LibreYOLO('a.pt').train" in str(caught.value)
    assert "torchrun --nproc_per_node=4" in str(caught.value)


def test_a_user_s_mistake_is_told_from_a_bug():
    class MarkedError(Exception):
        user_error = True

    assert is_one_sentence(UserError("x")) and is_one_sentence(SpawnGuardError("x")) and is_one_sentence(MarkedError())
    assert not is_one_sentence(ValueError("x")) and not is_one_sentence(RankFailedError(1, "raised", ""))
