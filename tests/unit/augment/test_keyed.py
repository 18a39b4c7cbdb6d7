import numpy as np
import pytest

from libreyolo.ops.keyed import derive, generator


def test_a_key_gives_the_same_numbers_on_every_platform():
    assert generator(7, "augment", 3, 11).integers(0, 2**32, 3).tolist() == [741221103, 1492750523, 3859689849]
    assert derive(7, "augment", 3, 11) == 3797811178304086015


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (1, 0)),  # SeedSequence pads with zeros
        ((1, 23), (12, 3)),
        (("ab", "c"), ("a", "bc")),
        ((1,), ("1",)),
        ((2**32,), (0, 1)),  # SeedSequence splits into 32-bit words
        ((-1,), (2**64 - 1,)),
    ],
)
def test_keys_that_look_alike_are_different_keys(one, other):
    assert derive(0, *one) != derive(0, *other)
    assert generator(0, *one).random() != generator(0, *other).random()


def test_seed_and_key_both_count():
    assert derive(0, 5) != derive(1, 5)
    assert derive(0, 5) != derive(5, 0)


def test_numpy_integers_are_the_same_key_as_python_ones():
    assert derive(np.int64(3), np.int32(4)) == derive(3, 4)


def test_derived_seeds_fit_in_63_bits_and_use_them():
    seeds = [derive(0, i) for i in range(200)]
    assert all(0 <= s < 2**63 for s in seeds)
    assert max(seeds) > 2**62
    assert len(set(seeds)) == 200


def test_a_float_is_no_key():
    with pytest.raises(TypeError, match="float"):
        derive(0, 0.5)
