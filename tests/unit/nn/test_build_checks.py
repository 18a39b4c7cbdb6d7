"""A size that is not there and no class are refused by every family in the same words."""

from __future__ import annotations

import pytest

from libreyolo.errors import UserError
from libreyolo.nn.build_checks import check_build
from libreyolo.schema import families


@pytest.mark.parametrize("name", sorted(families()))
def test_a_size_that_is_not_there_is_told_with_those_that_are(name: str) -> None:
    family = families()[name]
    with pytest.raises(UserError, match=rf"^{name} has no size 'q'; use one of {', '.join(family.sizes)}\.$"):
        family.network.build("q", 1)


def test_a_network_with_classes_needs_one() -> None:
    with pytest.raises(UserError, match=r"^toy needs at least 1 class, not nc=0; name the classes in the data file\.$"):
        check_build("toy", "s", {"s": 1}, 0)
    check_build("toy", "s", {"s": 1}, 1)
    check_build("toy", "s", ["s"])
