"""What scripts and calls get that can't be started on several devices: an answer before any process starts, or soon after."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace

import pytest
import torch

import launch
from launch.guard import GUARD_SENTENCE
from libreyolo import LibreYOLO, schema
from tests.dist.doors.conftest import SMALL, Workplace, make_data

UNGUARDED = """
import json, sys
from libreyolo import LibreYOLO
model = LibreYOLO("yolo9t")
results = model.train(data="data/data.yaml", nproc=2, **json.loads(sys.argv[1]))
print("trained", results["best_checkpoint"])
"""


@pytest.mark.slow
def test_an_unguarded_script_ends_with_the_guard_s_sentence_and_leaves_nothing(workplace: Workplace):
    ended = workplace.run(workplace.script(UNGUARDED), json.dumps(SMALL))
    assert ended.code == 1 and ended.out == ""
    assert ended.err.strip().splitlines()[-1].endswith(GUARD_SENTENCE)
    assert ended.err.count(GUARD_SENTENCE) == 1 and ended.err.count("Traceback") == 1
    assert workplace.temporary == []
    assert not (workplace.folder / "outputs").exists()


@pytest.mark.slow
def test_a_script_from_standard_input_is_answered_before_any_process_starts(workplace: Workplace):
    workplace.script(UNGUARDED)
    ended = workplace.run("-", json.dumps(SMALL), stdin=workplace.folder / "script.py")
    assert ended.code == 1
    assert "the script was read from standard input" in ended.err.strip().splitlines()[-1]
    assert GUARD_SENTENCE not in ended.err
    assert workplace.temporary == []


@pytest.fixture
def small(tmp_path, monkeypatch) -> dict:
    """Arguments of a training of two ranks that must not start."""

    def no_start(*args: object, **settings: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(launch, "spawn_ddp_train", no_start)
    monkeypatch.setattr("tempfile.mkdtemp", no_start)
    monkeypatch.chdir(tmp_path)
    return {**SMALL, "data": str(make_data(tmp_path / "data")), "nproc": 2}


@pytest.fixture(scope="module")
def model() -> LibreYOLO:
    return LibreYOLO("yolo9t")


def test_a_lambda_among_the_callbacks_is_named_before_weights_are_saved(small, model):
    with pytest.raises(launch.PayloadError, match=r"^callbacks\[1\] is a lambda") as caught:
        model.train(**small, callbacks=[print, lambda event: None])
    assert "loggers=[csv,tensorboard,wandb,mlflow]" in str(caught.value)


def test_an_open_file_in_a_callback_is_named(small, model, tmp_path):
    class Recorder:
        def on_epoch_end(self, event):
            self.file.write("an epoch\n")

    with (tmp_path / "notes.txt").open("w") as file, pytest.raises(launch.PayloadError, match=r"^callbacks\[0\]"):
        recorder = Recorder()
        recorder.file = file
        model.train(**small, callbacks=[recorder])


def test_a_batch_that_the_ranks_do_not_divide_is_refused_in_the_contract_s_words(small, model):
    with pytest.raises(ValueError, match=r"batch=5 is the global batch and must be divisible by world_size=2.*Use batch=4 or batch=6\."):
        model.train(**{**small, "batch": 5})


def test_nproc_beside_a_list_of_gpus_of_another_length_is_a_contradiction(small, model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ValueError, match=r"nproc=3 contradicts device=\[0, 1\]"):
        model.train(**{**small, "device": [0, 1], "nproc": 3})


def test_a_family_without_automatic_start_names_its_call_and_the_torchrun_command(small, model, monkeypatch):
    monkeypatch.setattr(model, "family", replace(schema.family("yolo9"), spawns=False))
    with pytest.raises(launch.UnsupportedFamilyError) as caught:
        model.train(**small)
    assert 'LibreYOLO("yolo9t").train(device=...)' in str(caught.value)
    assert "torchrun --nproc_per_node=2" in str(caught.value)


def test_a_chosen_backend_that_does_not_fit_is_refused(small, model):
    with pytest.raises(launch.LaunchError, match="backend='nccl' can't be used, because device=cpu is not a CUDA device"):
        model.train(**{**small, "backend": "nccl"})


def test_training_inside_a_spawned_import_is_refused_before_anything_is_read(small, model, monkeypatch, tmp_path):
    monkeypatch.setattr("launch.guard.guard_note", lambda pid: tmp_path / "note")
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    monkeypatch.setattr("sys.excepthook", None)  # the guard silences it in a worker; put back afterwards
    with pytest.raises(launch.SpawnGuardError):
        model.train(data="nowhere.yaml")
    assert (tmp_path / "note").exists()
