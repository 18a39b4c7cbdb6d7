"""From `device` to a placement: every form, every error."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from launch.devices import Placement, parse
from launch.errors import DeviceError
from tests.dist.launch.conftest import ROOT


@pytest.mark.parametrize(
    ("device", "indices"),
    [
        (0, (0,)),
        ("0", (0,)),
        ("0,1", (0, 1)),
        ("0, 1", (0, 1)),
        ([0, 1], (0, 1)),
        ((1, 0), (1, 0)),
        (["0", "1"], (0, 1)),
        ("[0,1]", (0, 1)),
        ("(0, 1)", (0, 1)),
        ("[2]", (2,)),
        ("cuda", (0,)),
        ("cuda:1", (1,)),
        ("CUDA:1", (1,)),
        ("cuda:0,1", (0, 1)),
        ("cuda:0,cuda:3", (0, 3)),
        (["cuda:0", "cuda:1"], (0, 1)),
        (torch.device("cuda:1"), (1,)),
        (np.int64(2), (2,)),
        (range(4), (0, 1, 2, 3)),
    ],
)
def test_cuda_forms_give_their_indices_and_one_process_each(device, indices):
    placement = parse(device, cuda_count=4)
    assert (placement.kind, placement.indices, placement.num_processes) == ("cuda", indices, len(indices))
    assert [placement.device_for(rank) for rank in range(len(indices))] == [f"cuda:{index}" for index in indices]


def test_a_list_of_the_configuration_is_a_list():
    omegaconf = pytest.importorskip("omegaconf")
    assert parse(omegaconf.OmegaConf.create([0, 1]), cuda_count=2).indices == (0, 1)


def test_the_cpu_takes_as_many_processes_as_nproc_says():
    assert parse("cpu", cuda_count=0) == Placement("cpu", (), 1)
    assert parse("cpu", cuda_count=8, nproc=3) == Placement("cpu", (), 3)
    assert parse(torch.device("cpu"), cuda_count=0, nproc=2).device_for(1) == "cpu"
    with pytest.raises(IndexError):
        parse("cpu", cuda_count=0, nproc=2).device_for(2)


@pytest.mark.parametrize(("cuda_count", "mps", "kind", "device"), [(2, True, "cuda", "cuda:0"), (0, True, "mps", "mps"), (0, False, "cpu", "cpu")])
def test_auto_says_what_it_chose(cuda_count, mps, kind, device):
    placement = parse("auto", cuda_count=cuda_count, mps_available=mps)
    assert (placement.kind, placement.num_processes, placement.device_for(0)) == (kind, 1, device)
    assert device in placement.note
    assert parse("cpu", cuda_count=2).note == ""


@pytest.mark.parametrize(
    ("device", "nproc", "words"),
    [
        ("gpu", None, ["'gpu'", "device='0,1'"]),
        ("cuda:x", None, ["'cuda:x'"]),
        ("", None, ["empty"]),
        ("[]", None, ["empty"]),
        ("0,", None, ["'0,'"]),
        ([], None, ["empty"]),
        (None, None, ["None"]),
        (True, None, ["True"]),
        ([0, True], None, ["True"]),
        (1.0, None, ["1.0"]),
        ({0: 1}, None, ["{0: 1}"]),
        ("0,0", None, ["twice", "0,0"]),
        (-1, None, ["-1", "negative"]),
        ("0,-1", None, ["-1", "negative"]),
        ([0, [1]], None, ["list inside a list"]),
        ("cpu,0", None, ["mixes"]),
        (["cpu", 1], None, ["mixes"]),
        ("cpu,cpu", None, ["more than once", "nproc=N"]),
        ("0,7", None, ["no CUDA device 7", "2 are visible", "positions in the visible set", "0 to 1"]),
        ("mps", None, ["MPS is not available"]),
        ("0,1", 3, ["nproc=3 contradicts device='0,1'"]),
        ([0], 2, ["nproc=2 contradicts device=[0]"]),
        ("auto", 2, ["nproc=2 contradicts"]),
        ("cpu", 0, ["nproc=0"]),
        ("cpu", True, ["nproc=True"]),
    ],
)
def test_what_can_t_be_run_is_one_sentence_that_shows_the_value(device, nproc, words):
    with pytest.raises(DeviceError) as caught:
        parse(device, cuda_count=2, nproc=nproc)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text and text.endswith(".")
    assert caught.value.one_sentence and isinstance(caught.value, ValueError)


def test_nproc_may_equal_the_list():
    assert parse([0, 1], cuda_count=2, nproc=2).num_processes == 2


def test_cuda_that_isn_t_there_is_said_with_the_variable_that_hides_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match=r"no CUDA device is visible here \(CUDA_VISIBLE_DEVICES=''\)"):
        parse("0,1", cuda_count=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(DeviceError, match=r"no CUDA device 5, because 1 is visible \(CUDA_VISIBLE_DEVICES='5'\)"):
        parse(5, cuda_count=1)


def test_something_that_looks_like_a_torch_device_is_read_by_its_text():
    class Device(SimpleNamespace):
        def __str__(self):
            return "cuda:1"

    assert parse(Device(type="cuda", index=1), cuda_count=2).indices == (1,)


def test_parsing_makes_no_cuda_context():
    code = "import torch; from launch import parse; parse('cpu', cuda_count=torch.cuda.device_count()); print(torch.cuda.is_initialized())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert said.stdout.strip() == "False"
