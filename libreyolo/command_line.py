"""Reads the command line before Hydra does: options first, then words of the form key=value; what Hydra could not use is told in one sentence.

Hydra's grammar knows lists, sweeps and numbers, and so refuses what many a path holds ("=", "(", "é"). A text that it cannot read is taken as it
is where the key takes a text.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from libreyolo import schema
from libreyolo.errors import UserError, nearest
from libreyolo.record.shell import quoted

CONFIG_DIR = str(Path(__file__).resolve().parent.parent / "conf")
PATHS_OF_ANY_KIND = ("resume", "pretrained")  # keys that take a path beside true and false


@dataclass(frozen=True)
class CommandLine:
    """What was typed: Hydra's options (with their values), and the words, each of which Hydra can read."""

    options: list[str]
    words: list[str]
    is_sweep: bool


@lru_cache(maxsize=1)
def groups() -> dict[str, list[str]]:
    """Return every config group of presets, `model` too, with its options."""
    folders = ("model", "dataset", "devices", "batching", "tracking", "experiment")
    return {group: sorted(p.stem for p in (Path(CONFIG_DIR) / group).glob("*.yaml")) for group in folders}


def read(arguments: Sequence[str]) -> CommandLine:
    """Return the command line in the order that Hydra needs. Raises UserError for an option or a word that cannot be used."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        chosen, others = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise UserError(f"{error}: python train.py --hydra-help shows Hydra's options.") from error
    for other in others:
        if other.startswith("-"):
            raise UserError(_no_option(other))
    words = [*chosen.overrides, *others]
    _refuse_contradicting_options(chosen)
    left = Counter(words)
    options = []
    for argument in arguments:
        if left[argument] > 0:
            left[argument] -= 1
        else:
            options.append(argument)
    is_sweep = chosen.multirun or any(w.lower() == "hydra.mode=multirun" for w in words)
    return CommandLine(options, [found for word in words if (found := _readable(word, is_sweep)) is not None], is_sweep)


def values_of(words: Sequence[str]) -> dict[str, str]:
    """Return what was typed for each key, as text."""
    return {name.lstrip("+"): value for name, equals, value in (w.partition("=") for w in words) if equals}


def not_a_sweep(word: str) -> str:
    """Return what to say of a comma that makes a sweep of what was meant as one run."""
    name, _, value = word.partition("=")
    kind = schema.kind_of(name.lstrip("+"))
    if "(" in value:  # choice(0.1,0.2), range(1,9): nobody means a list or a text by that
        return f"{word} is a sweep to Hydra: give one value for one run, or add -m for the sweep."
    num_runs = value.count(",") + 1
    if name == "device":
        ways = f"write 'device=[{value}]' (quoted) for one run on {num_runs} GPUs"
    elif kind.startswith("list") or kind == "Any" or name == "experiment":
        ways = f"write '{name}=[{value}]' (quoted) for a list"
    elif kind.startswith("str"):
        ways = f"write '{name}=\"{value}\"' (both quotes) for a text with a comma"
    else:
        ways = "give one value for one run"
    return f"{word} is a sweep of {num_runs} runs to Hydra: {ways}, or add -m for the sweep."


def _refuse_contradicting_options(chosen: argparse.Namespace) -> None:
    modes = {"--run": chosen.run, "--multirun": chosen.multirun, "--cfg": chosen.cfg, "--info": chosen.info, "-sc": chosen.shell_completion}
    given = [name for name, value in modes.items() if value]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} exclude each other: give one of them.")
    if chosen.resolve and not chosen.cfg and not chosen.help:
        raise UserError("--resolve goes with --cfg job.")


def _no_option(typed: str) -> str:
    name, equals, value = typed.lstrip("-").partition("=")
    key = name.replace("-", "_")
    if schema.kind_of(key) or key in (*groups(), "cfg"):
        return f"{typed} is no option: keys are written without dashes, {key}={value if equals else 'VALUE'}."
    return f"{typed} is no option.{nearest(key, schema.key_names())} Keys are written without dashes, epochs=3; more: python train.py --help."


def _readable(word: str, is_sweep: bool) -> str | None:
    """Return the word as Hydra reads it, None for one that says nothing. Raises UserError."""
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        return _as_text(word, is_sweep)
    name = str(override.key_or_group)
    if name == "":
        raise UserError(_no_word(word))
    if name in ("family", "size"):
        raise UserError(f"{word} cannot be set by itself: model= chooses family and size, for example model=yolo9s.")
    if override.is_delete():
        _check_deletion(name)
        return word
    if override.is_sweep_override():
        if not is_sweep:
            raise UserError(not_a_sweep(word))
        return word
    if name in groups():
        return _preset(name, override, word)
    _check_value(name, override.value())
    return word


def _check_deletion(name: str) -> None:
    if schema.kind_of(name) or name == "model":
        raise UserError(f"~{name} would take {name} out of the configuration: leave it out of the command for its default, or give it a value.")


def _preset(name: str, override: Override, word: str) -> str | None:
    value = override.value()
    if value is None and name != "model":
        return None  # as if it had not been typed
    if not isinstance(value, str) and not (isinstance(value, list) and value and all(isinstance(v, str) for v in value)):
        raise UserError(not_an_option(name, "null" if value is None else str(value)))
    return word


def not_an_option(group: str, value: str) -> str:
    """Return what to say of a preset that there is not."""
    options = groups().get(group, [])
    return f"{group}={value} is not known.{nearest(value, options)} Choose one of: {', '.join(options)}."


def _check_value(name: str, value: Any) -> None:
    """Raise for what Hydra takes without a word and nobody can have meant."""
    kind = schema.kind_of(name)
    if kind and value == "":
        raise UserError(f"{name}= is empty: give it a value, or leave it out.")
    if kind.startswith("bool"):
        schema.check_flag(name, value)


def _as_text(word: str, is_sweep: bool) -> str:
    """Return a word that Hydra's grammar refuses with its value quoted, where the key takes a text. Raises UserError."""
    name, equals, value = word.partition("=")
    key = name.lstrip("+")
    if not equals or not key or key != key.strip():
        raise UserError(_no_word(word))
    kind = schema.kind_of(key)
    if not kind and not re.fullmatch(r"[\w.@/:]+", key, flags=re.ASCII):
        raise UserError(f"Unknown key '{key}'.{nearest(key, schema.key_names())} All keys: python train.py --help.")
    if (kind.startswith("str") or key in PATHS_OF_ANY_KIND) and not is_sweep and "${" not in value:
        return f"{name}={quoted(value)}"
    example = f"'{name}=\"...\"'" if not value or '"' in value else f"'{name}=\"{value}\"'"
    raise UserError(f"{word} cannot be read: a list is written '{name}=[a,b]', and a text with such characters {example}, with both quotes.")


def _no_word(word: str) -> str:
    return f"{word!r} is not key=value: write no blanks around '=', and quote a value that holds blanks, like 'data=my pictures.yaml'."
