"""Composing the configuration as `python train.py` does, without a process for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from libreyolo import command_line, door

Compose = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def composed() -> Iterator[Compose]:
    """Return a function from overrides to the composed configuration; it raises what Hydra raises."""
    door.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(command_line.CONFIG_DIR, version_base="1.3"):

        def run(*overrides: str) -> dict[str, Any]:
            found = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
            assert isinstance(found, dict)
            return {str(key): value for key, value in found.items()}

        yield run


def told(composed: Compose, *overrides: str) -> str:
    """Return the sentence that a user gets for these overrides."""
    with pytest.raises(Exception) as caught:
        composed(*overrides)
    sentence = door.sentence(caught.value)
    assert sentence is not None, f"no sentence for {caught.value!r}"
    assert "\n" not in sentence
    return sentence
