"""Finds every family and its recipe, registers them with Hydra, and resolves arguments into a checked recipe.

Both doors end in `resolve`: the Hydra door with the composed config, the Python door with the arguments of `train()`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

import libreyolo.models
from libreyolo.errors import UserError, nearest
from libreyolo.interfaces.family import Family
from libreyolo.recipe import Recipe, check_keys, recipe_fields


@lru_cache(maxsize=1)
def families() -> dict[str, Family]:
    """Return every family by name; a family is a package in `libreyolo.models` that holds `FAMILY`."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(libreyolo.models.__path__):
        if module.ispkg:
            family: Family = import_module(f"libreyolo.models.{module.name}").FAMILY
            found[family.name] = family
    return found


def family(name: str) -> Family:
    """Return the family of that name. Raises UserError."""
    if name not in families():
        raise UserError(f"Unknown family '{name}'.{nearest(name, families())} Known: {', '.join(families())}.")
    return families()[name]


def model_names() -> dict[str, tuple[Family, str]]:
    """Return every model name ("yolo9s") with its family and size."""
    return {f"{f.name}{size}": (f, size) for f in families().values() for size in f.sizes}


def register() -> None:
    """Register the base recipe as `schema` and every family's as `recipe/<family>` with Hydra's ConfigStore."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="schema", node=Recipe, package="_global_")
    for found in families().values():
        store.store(group="recipe", name=found.name, node=found.recipe, package="_global_")


def resolve(chosen: Family, size: str, values: Mapping[str, Any]) -> Recipe:
    """Return the family's recipe with `values` over its defaults, typed and checked.

    `values` may be partial (arguments of `train()`) or complete (a composed config). Raises UserError for an unknown key, a wrong type or a
    contradiction.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    given = {"imgsz": default_imgsz(chosen, size), **values, "family": chosen.name, "size": size}
    check_keys(chosen.recipe, given)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(chosen.recipe), OmegaConf.create(_plain(given)))
        resolved = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise UserError(type_sentence(error, chosen.recipe, given)) from error
    assert isinstance(resolved, Recipe)
    return resolved


def default_imgsz(chosen: Family, size: str) -> int | list[int]:
    """Return the input size that a recipe takes when nobody sets `imgsz`: the recipe's own unless it keeps the base's, else the size's."""
    own, base = recipe_fields(chosen.recipe)["imgsz"], recipe_fields(Recipe)["imgsz"]
    if own is not base and own.default != base.default:
        found: int | list[int] = getattr(chosen.recipe(), "imgsz")  # noqa: B009 (typed Any in the recipe)
        return found
    side = chosen.sizes[size]
    return side if isinstance(side, int) else list(side)


def type_sentence(error: Exception, recipe: type[Recipe] | None = None, given: Mapping[str, Any] | None = None) -> str:
    """Turn OmegaConf's type error into one sentence that names the key, its value and what it takes.

    recipe: whose keys; None: every family's. given: the values, where they are known.
    """
    name = str(getattr(error, "full_key", "") or "")
    root = name.split(".")[0].split("[")[0]
    first_line = str(error).splitlines()[0]
    known = recipe_fields(recipe) if recipe else {name: f for each in families().values() for name, f in recipe_fields(each.recipe).items()}
    if root in known:
        kind = str(known[root].type)
        value = first_line.split("'")[1] if first_line.count("'") >= 2 else (given or {}).get(root, "this value")
        return f"{root}={value} has the wrong type: {root} takes {_kind_in_words(kind)} ({known[root].metadata['help']})."
    return f"{first_line}{nearest(root, known)}" if root else first_line


def _kind_in_words(kind: str) -> str:
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "a text",
        "list[float]": "a list of numbers",
        "list[int]": "a list of whole numbers",
        "list[str]": "a list of texts",
    }
    base = kind.removesuffix(" | None")
    return words.get(base, base) + (" or null" if base != kind else "")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that OmegaConf can hold: tuples as lists, paths as text, NumPy scalars as numbers."""
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain_value(v) for v in value]
    if hasattr(value, "__fspath__"):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value
