import pytest

from libreyolo.data.augment.settings import AugmentSettings
from libreyolo.errors import UserError


def test_the_last_no_aug_epochs_are_not_strong():
    settings = AugmentSettings(imgsz=(64, 64), epochs=5, no_aug_epochs=2)
    assert [settings.strong(e) for e in range(5)] == [True, True, True, False, False]


def test_lists_from_a_recipe_become_tuples():
    assert AugmentSettings(imgsz=[64, 32], mosaic_scale=[0.1, 2.0]).mosaic_scale == (0.1, 2.0)
    assert hash(AugmentSettings(imgsz=[64, 32])) == hash(AugmentSettings(imgsz=(64, 32)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mosaic_prob", 1.5),
        ("flipud", -0.1),
        ("mosaic_scale", (2.0, 1.0)),
        ("mixup_scale", (0.0, 1.0)),
        ("hsv_gain", (0.1, 2.0, 0.1)),
        ("perspective", 0.1),
        ("shear", 90.0),
        ("translate", -0.1),
        ("max_labels", 0),
    ],
)
def test_a_wrong_number_is_named_with_its_value(name, value):
    with pytest.raises(UserError) as error:
        AugmentSettings(imgsz=(64, 64), **{name: value})
    assert name in str(error.value)
    assert str(value) in str(error.value)
