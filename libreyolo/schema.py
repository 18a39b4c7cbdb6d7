"""Finds every family and its recipe, registers them with Hydra, and resolves arguments into a checked recipe.

Both doors end in `resolve`: the Hydra door with the composed config, the Python door with the arguments of `train()`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Mapping
from dataclasses import Field
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
    for name in given:
        if name not in recipe_fields(chosen.recipe) and name in key_names():
            raise UserError(key_of_others(name, chosen))
    check_keys(chosen.recipe, given)
    for name, own in (("family", chosen.name), ("size", size)):
        if values.get(name, own) != own:
            raise UserError(f"{name}={values[name]} is not that of the model, {chosen.name}{size}: another model is another name, LibreYOLO(...).")
    for name, value in given.items():
        _check_given(name, value, chosen.recipe)
    plain = _plain(given)
    try:
        resolved = OmegaConf.to_object(_merged(chosen.recipe, plain))
    except OmegaConfBaseException as error:
        raise UserError(type_sentence(error, chosen.recipe, given) or _culprit(chosen.recipe, plain) or str(error).splitlines()[0]) from error
    assert isinstance(resolved, Recipe)
    return resolved


def _check_given(name: str, value: Any, recipe: type[Recipe]) -> None:
    """Raise for a value that OmegaConf would take although nobody can have meant it."""
    if isinstance(value, str) and not value.strip():
        raise UserError(f"{name} is empty: give it a value, or leave it out.")
    if str(recipe_fields(recipe)[name].type).startswith("bool"):
        check_flag(name, value)


def check_flag(name: str, value: Any) -> None:
    """Raise UserError for a number given as true or false: only 0 and 1 mean that."""
    if isinstance(value, int) and value not in (0, 1):
        raise UserError(wrong_type(name, value))


def _merged(recipe: type[Recipe], values: Mapping[str, Any]) -> Any:
    """Return the recipe's defaults with `values` over them, references resolved first, so that what they lead to is typed too."""
    from omegaconf import OmegaConf

    resolved = OmegaConf.to_container(OmegaConf.create(dict(values)), resolve=True)
    return OmegaConf.merge(OmegaConf.structured(recipe), OmegaConf.create(resolved))


def _culprit(recipe: type[Recipe], values: Mapping[str, Any]) -> str:
    """Return the sentence for the first value that cannot be taken even by itself; "" where each can."""
    from omegaconf.errors import OmegaConfBaseException

    for name, value in values.items():
        try:
            _merged(recipe, {name: value})
        except OmegaConfBaseException:
            return wrong_type(name, value, recipe)
    return ""


def default_imgsz(chosen: Family, size: str) -> int | list[int]:
    """Return the input size that a recipe takes when nobody sets `imgsz`: the recipe's own unless it keeps the base's, else the size's."""
    own, base = recipe_fields(chosen.recipe)["imgsz"], recipe_fields(Recipe)["imgsz"]
    if own is not base and own.default != base.default:
        found: int | list[int] = getattr(chosen.recipe(), "imgsz")  # noqa: B009 (typed Any in the recipe)
        return found
    side = chosen.sizes[size]
    return side if isinstance(side, int) else list(side)


def type_sentence(error: Exception, recipe: type[Recipe] | None = None, given: Mapping[str, Any] | None = None) -> str:
    """Turn OmegaConf's type error into one sentence that names the key, its value and what it takes; "" where it names no key.

    recipe: whose keys; None: every family's. given: the values, where they are known.
    """
    name = str(getattr(error, "full_key", "") or "")
    root = name.split(".")[0].split("[")[0]
    first_line = str(error).splitlines()[0]
    if root == "":
        return ""
    if not kind_of(root, recipe):
        return f"{first_line}{nearest(root, key_names())}"
    said = _VALUE.search(first_line)
    value = said[1] if said else "null" if "is not Optional" in first_line else (given or {}).get(root, _UNKNOWN)
    return wrong_type(root, value, recipe)


def key_of_others(name: str, chosen: Family | None) -> str:
    """Return what to say of a key that other families have. chosen: the family that has not, where it is known."""
    owners = [family.name for family in families().values() if name in recipe_fields(family.recipe)]
    close = nearest(name, recipe_fields(chosen.recipe)) if chosen else ""
    lacking = chosen.name if chosen else "this model"
    return f"Unknown key '{name}'. It is a key of {', '.join(owners)}, not of {lacking}.{close} All keys: python train.py --help."


# How OmegaConf quotes the value that it could not convert.
_VALUE = re.compile(r"(?:Value|to string:) '(.*?)'(?: of type '\w+'| could| is not a valid|$)")
_UNKNOWN = object()  # a value that nobody can tell


def wrong_type(name: str, value: Any, recipe: type[Recipe] | None = None) -> str:
    """Return the sentence for a value of a kind that the key does not take."""
    shown = name if value is _UNKNOWN else f"{name}={'null' if value is None else value}"
    field = _field_of(name, recipe)
    assert field is not None, name
    if str(field.type) == "Any":
        return f"{shown} has the wrong type; {name} takes: {field.metadata['help']}."
    return f"{shown} has the wrong type: {name} takes {_kind_in_words(str(field.type))} ({field.metadata['help']})."


def kind_of(name: str, recipe: type[Recipe] | None = None) -> str:
    """Return the declared type of a key ("int", "str | None"), "" for one that there is not. recipe: whose key; None: any family's."""
    field = _field_of(name, recipe)
    return str(field.type) if field else ""


def _field_of(name: str, recipe: type[Recipe] | None) -> Field[Any] | None:
    if recipe is not None:
        return recipe_fields(recipe).get(name)
    return next((found for each in families().values() if (found := recipe_fields(each.recipe).get(name))), None)


@lru_cache(maxsize=1)
def key_names() -> frozenset[str]:
    """Return every key of every family."""
    return frozenset(name for f in families().values() for name in recipe_fields(f.recipe))


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
    """Return values that OmegaConf can hold: tuples as lists, paths and torch devices as text, NumPy scalars as numbers."""
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, (tuple, list, range)):
        return [_plain_value(v) for v in value]
    if hasattr(value, "__fspath__") or (hasattr(value, "type") and hasattr(value, "index")):  # a torch.device
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value
