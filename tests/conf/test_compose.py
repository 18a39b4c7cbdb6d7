"""Both doors resolve the same numbers, and what the user types wins over what presets say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from libreyolo import command_line, door, schema
from libreyolo.recipe import Recipe, recipe_fields
from tests.conf.conftest import Compose

CONF = Path(command_line.CONFIG_DIR)
MODELS = sorted(schema.model_names())
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
PRESETS = sorted((group.name, preset.stem) for group in CONF.iterdir() if group.is_dir() and group.name != "hydra" for preset in group.glob("*.yaml"))


@pytest.mark.parametrize("name", MODELS)
def test_composing_gives_every_number_that_train_resolves_in_python(composed: Compose, name: str) -> None:
    family, size = schema.model_names()[name]
    in_python = asdict(schema.resolve(family, size, {"data": "x.yaml"}))
    assert composed(f"model={name}", "data=x.yaml") == in_python


@pytest.mark.parametrize("name", MODELS)
def test_composing_gives_the_recipes_own_numbers(composed: Compose, name: str) -> None:
    family, size = schema.model_names()[name]
    own = asdict(family.recipe(family=family.name, size=size))
    own |= {"data": "x.yaml", "imgsz": schema.default_imgsz(family, size)}
    assert composed(f"model={name}", "data=x.yaml") == own


def test_every_model_has_its_preset_and_every_preset_its_model() -> None:
    assert sorted(p.stem for p in (CONF / "model").glob("*.yaml")) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_model_preset_sets_only_what_the_recipe_cannot_know(name: str) -> None:
    """Family, size, and an input size where the size has one of its own: every other number lives in the recipe."""
    family, size = schema.model_names()[name]
    content = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    assert content.pop("defaults") == [{"/recipe": family.name}, "_self_"]
    assert (content.pop("family"), str(content.pop("size"))) == (family.name, size)
    assert content in ({}, {"imgsz": schema.default_imgsz(family, size)})


def test_a_preset_wins_over_the_recipe_and_the_command_line_over_the_preset(composed: Compose) -> None:
    assert composed("data=x.yaml")["batch"] == 16
    assert composed("data=x.yaml", "batching=auto")["batch"] == -1
    assert composed("data=x.yaml", "batching=nominal64")["nbs"] == 64
    assert composed("data=x.yaml", "batching=nominal64", "nbs=32")["nbs"] == 32
    assert composed("nbs=32", "data=x.yaml", "batching=nominal64")["nbs"] == 32


def test_the_model_comes_right_after_the_schema_so_that_no_preset_is_undone_by_its_recipe() -> None:
    defaults = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    assert defaults[0] == "schema"
    assert list(defaults[1]) == ["model"]


def test_presets_win_over_a_recipe_that_sets_the_same_key(composed: Compose) -> None:
    """yolo9 sets ema_decay; were `model` composed after `experiment`, the demo's own number would be lost."""
    assert composed("experiment=demo")["ema_decay"] == yaml.safe_load((CONF / "experiment" / "demo.yaml").read_text())["ema_decay"]


@pytest.mark.parametrize("group", sorted({group for group, _ in PRESETS} | {"cfg"}))
def test_no_group_has_the_name_of_a_root_key(group: str) -> None:
    assert group not in schema.key_names()


@pytest.mark.parametrize("preset", sorted(p.stem for p in (CONF / "dataset").glob("*.yaml")))
def test_a_dataset_preset_sets_data_and_nothing_else(preset: str) -> None:
    assert list(yaml.safe_load((CONF / "dataset" / f"{preset}.yaml").read_text())) == ["data"]


@pytest.mark.parametrize(("group", "preset"), PRESETS)
def test_a_preset_sets_only_root_keys(group: str, preset: str) -> None:
    text = (CONF / group / f"{preset}.yaml").read_text()
    content = yaml.safe_load(text)
    assert text.startswith("# @package _global_\n")
    assert set(content) - {"defaults"} <= schema.key_names()


@pytest.mark.parametrize(("group", "preset"), [(g, p) for g, p in PRESETS if g != "model"])
def test_a_preset_composes_and_its_numbers_are_in_the_result(composed: Compose, group: str, preset: str) -> None:
    found = composed(f"{group}={preset}")
    content = yaml.safe_load((CONF / group / f"{preset}.yaml").read_text())
    for name, value in content.items():
        if name != "defaults":
            assert found[name] == value, name


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_passes_the_recipes_checks(composed: Compose, experiment: str) -> None:
    found = composed(f"experiment={experiment}")
    chosen = schema.family(found["family"])
    assert asdict(schema.resolve(chosen, found["size"], found)) == found


def test_debug_goes_on_top_of_any_data_and_brings_none(composed: Compose) -> None:
    assert composed("experiment=debug", "data=x.yaml")["data"] == "x.yaml"
    assert composed("experiment=debug", "dataset=shapes")["data"] == "shapes"
    assert composed("experiment=debug")["data"] is None


def test_debug_goes_on_top_of_another_experiment(composed: Compose) -> None:
    found = composed("experiment=[demo,debug]")
    assert (found["data"], found["max_steps"], found["aux_weight"]) == ("shapes", 4, 0.0)


@pytest.mark.parametrize("recipe", [Recipe, *(f.recipe for f in schema.families().values())])
def test_every_key_says_what_it_means(recipe: type[Recipe]) -> None:
    for name, field in recipe_fields(recipe).items():
        assert len(field.metadata["help"]) > 10, name
        assert field.metadata["help"] != name


def test_the_help_lists_every_key_model_and_preset() -> None:
    words = set(door.help_text().replace(",", " ").replace("{", " ").replace("}", " ").split())
    assert set(schema.key_names()) <= words
    assert set(MODELS) <= words
    for group, preset in PRESETS:
        assert group == "model" or preset in words, preset
