"""What is typed reaches Hydra as it was meant, or is answered in one sentence before Hydra reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from libreyolo import command_line, door, schema
from libreyolo.errors import UserError
from libreyolo.place import Place
from libreyolo.record.shell import quoted
from tests.conf.conftest import Compose, told


def refused(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        door.arguments_for_rank(arguments, {})
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    return sentence


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (["model=yolo9t", "-m", "lr0=0.1,0.2"], ["-m", "model=yolo9t", "lr0=0.1,0.2"]),
        (["model=yolo9t", "--cfg", "job", "epochs=3"], ["--cfg", "job", "model=yolo9t", "epochs=3"]),
        (["epochs=3", "--multirun"], ["--multirun", "epochs=3"]),
        (["experiment=null", "dataset=null", "epochs=3"], ["epochs=3"]),
        (["hydra.run.dir=runs/a", "+hydra.x=1", "~experiment"], ["hydra.run.dir=runs/a", "+hydra.x=1", "~experiment"]),
    ],
)
def test_options_may_stand_anywhere_and_no_preset_is_no_word(arguments: list[str], read: list[str]) -> None:
    assert door.arguments_for_rank(arguments, {}) == read


def test_options_come_first_on_ranks_that_write_nothing() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    assert door.arguments_for_rank(["epochs=3", "--cfg", "job"], environ)[:2] == ["--cfg", "job"]


@pytest.mark.parametrize(
    "path",
    ["a=b.yaml", "a(b)/c.yaml", "données.yaml", "数据/x.yaml", "it's/x.yaml", "~/x.yaml", "a{b}, c.yaml", "a & b;c.yaml", "[x", "end\\"],
)
@pytest.mark.parametrize("key", ["data", "resume", "weights", "project"])
def test_a_path_that_hydra_s_grammar_refuses_is_taken_as_it_is(composed: Compose, key: str, path: str) -> None:
    words = door.arguments_for_rank([f"{key}={path}"], {})
    assert OverridesParser.create().parse_overrides(words)[0].value() == path
    if key != "resume":  # which Hydra's run directory would look for
        assert composed(*words)[key] == path


@pytest.mark.parametrize("text", ["plain", "it's", "\\", "a\\'b\\\\'", "''", "x\\\\", "a,b=[c]{d}(e)"])
def test_quoted_text_is_read_back_by_hydra_as_it_was(text: str) -> None:
    assert OverridesParser.create().parse_override(f"data={quoted(text)}").value() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "3"], "--epochs is no option: keys are written without dashes, epochs=VALUE."),
        (["--epochs=3"], "epochs=3."),
        (["-data=x.yaml"], "keys are written without dashes, data=x.yaml."),
        (["--sync-bn=true"], "sync_bn=true."),
        (["--model", "yolo9s"], "model=VALUE."),
        (["--epochz"], "--epochz is no option. Did you mean 'epochs'?"),
        (["--cfg"], "argument --cfg/-c: expected one argument"),
        (["--cfg", "jobs"], "invalid choice: 'jobs'"),
        (["--resolve"], "--resolve goes with --cfg job."),
        (["-m", "--cfg", "job"], "--multirun and --cfg exclude each other"),
        (["epochs"], "'epochs' is not key=value"),
        (["epochs", "=3"], "'epochs' is not key=value"),
        (["=3"], "'=3' is not key=value"),
        (["epochs:3"], "'epochs:3' is not key=value"),
        (["data=my", "pictures.yaml"], "'pictures.yaml' is not key=value"),
        (["épochs=3"], "Unknown key 'épochs'. Did you mean 'epochs'?"),
        (["device=[0,1"], "device=[0,1 cannot be read: a list is written 'device=[a,b]'"),
        (["-m", "data=a(b).yaml,c.yaml"], "with both quotes"),
        (["data=${x"], "data=${x cannot be read"),
        (["model=null"], "model=null is not known. Choose one of: fomol"),
        (["model=3"], "model=3 is not known."),
        (["experiment=1"], "experiment=1 is not known. Choose one of: debug, demo"),
        (["devices=0"], "devices=0 is not known. Choose one of: cpu, cpu2, single, two."),
        (["family=yolox"], "model= chooses family and size"),
        (["size=s"], "model= chooses family and size"),
        (["~epochs"], "~epochs would take epochs out of the configuration"),
        (["~model"], "~model would take model out"),
        (["data="], "data= is empty: give it a value, or leave it out."),
        (["weights="], "weights= is empty"),
        (["epochs="], "epochs= is empty"),
        (["cfg="], "cfg= is empty"),
        (["ema=3"], "ema=3 has the wrong type: ema takes true or false"),
        (["freeze_backbone_norm=-1"], "freeze_backbone_norm=-1 has the wrong type: freeze_backbone_norm takes true or false or null"),
        (["device=0,1"], "device=0,1 is a sweep of 2 runs to Hydra: write 'device=[0,1]' (quoted) for one run on 2 GPUs, or add -m for the sweep."),
        (["imgsz=64,96"], "write 'imgsz=[64,96]' (quoted) for a list"),
        (["betas=0.9,0.99"], "write 'betas=[0.9,0.99]' (quoted) for a list"),
        (["data=a,b.yaml"], "write 'data=\"a,b.yaml\"' (both quotes) for a text with a comma"),
        (["device=range(0,4)"], "device=range(0,4) is a sweep to Hydra: give one value for one run, or add -m for the sweep."),
        (["lr0=0.1,0.2"], "give one value for one run, or add -m for the sweep"),
        (["model=yolo9t,yolo9s"], "model=yolo9t,yolo9s is a sweep of 2 runs to Hydra: give one value for one run"),
        (["experiment=demo,debug"], "write 'experiment=[demo,debug]' (quoted) for a list"),
    ],
)
def test_what_hydra_could_not_use_is_told_in_one_sentence(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize("arguments", [["-m", "device=0,1"], ["hydra.mode=MULTIRUN", "lr0=0.1,0.2"], ["ema=1"], ["ema=false"], ["~experiment"]])
def test_what_has_a_meaning_is_left_alone(arguments: list[str]) -> None:
    assert sorted(door.arguments_for_rank(arguments, {})) == sorted(arguments)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("mosaic_scale={a:1}", "mosaic_scale={a:1} has the wrong type: mosaic_scale takes a list of numbers"),
        ("classes=0", "classes has the wrong type: classes takes a list of whole numbers or null"),
        ("data={a:1}", "data={'a': 1} has the wrong type: data takes a text or null"),
        ("epochs={a:1}", "epochs={'a': 1} has the wrong type: epochs takes a whole number"),
        ("lr0=null", "lr0=null has the wrong type: lr0 takes a number"),
        ("experiment=[demo,nothing]", "experiment=nothing is not known. Choose one of: debug, demo"),
    ],
)
def test_what_hydra_could_not_compose_names_key_and_value(composed: Compose, typed: str, words: str) -> None:
    assert words in told(composed, typed)


def test_a_reference_that_leads_nowhere_names_its_key(composed: Compose) -> None:
    assert told(composed, "data=${oc.env:LIBREYOLO_NOT_THERE}") == (
        "data: KeyError raised while resolving interpolation: \"Environment variable 'LIBREYOLO_NOT_THERE' not found\"."
    )


def test_a_run_directory_s_name_from_python_is_answered_with_hydra_s_key() -> None:
    config = {"family": "yolo9", "size": "t", "project": "my runs", "name": "mine"}
    with pytest.raises(UserError, match=r"^name=mine names a run directory in Python only; on the command line say hydra.run.dir='my runs/mine'.$"):
        door.train_from_config(config, ["name=mine"], Place(Path.cwd()))


def test_every_preset_and_key_is_known_to_the_command_line() -> None:
    assert set(command_line.groups()["model"]) == set(schema.model_names())
    assert all(schema.kind_of(name) for name in schema.key_names())
