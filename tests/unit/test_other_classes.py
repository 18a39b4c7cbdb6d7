"""A model is judged only on a set whose class ids mean what its own mean."""

from __future__ import annotations

import pytest

from libreyolo.assembly.parts import refuse_other_classes
from libreyolo.errors import UserError

MODEL = {0: "cat", 1: "dog", 2: "\u00e9mu"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({0: "cat", 1: "dog"}, "x.yaml has 2 classes and this model 3: they must agree to be compared."),
        (
            {0: "dog", 1: "cat", 2: "e\u0301mu"},
            "x.yaml has the classes of this model in another order (dog is 0 there, 1 here): give them the order of",
        ),
        ({0: "cow", 1: "cat", 2: "\u00e9mu"}, "in another order (cat is 1 there, 0 here)"),
        ({0: "cat", 1: "\u00c9mu", 2: "fox"}, "in another order (\u00c9mu is 1 there, 2 here)"),
    ],
)
def test_another_number_or_order_is_refused(names: dict[int, str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        refuse_other_classes("x.yaml", names, MODEL)
    assert said in str(caught.value)


def test_equal_names_are_no_matter_of_case_and_other_names_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    refuse_other_classes("x.yaml", {0: "Cat", 1: "dog ", 2: "E\u0301MU"}, MODEL)
    assert caplog.text == ""
    refuse_other_classes("x.yaml", {0: "chat", 1: "dog", 2: "emeu"}, MODEL)
    assert "x.yaml: 2 classes have other names than in the model (0 is chat, in the model cat); ids are compared." in caplog.text


def test_a_task_without_classes_has_nothing_to_compare(caplog: pytest.LogCaptureFixture) -> None:
    refuse_other_classes("x.yaml", {}, {})
    assert caplog.text == ""
