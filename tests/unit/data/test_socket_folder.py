"""Loader processes hand over batches whatever the folder for temporary files is called."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing import util
from pathlib import Path

import pytest

from libreyolo.data import socket_folder
from libreyolo.data.socket_folder import LONGEST_PATH, keep_socket_paths_short
from libreyolo.errors import UserError

ROOT = Path(__file__).parents[3]
READ_WITH_A_WORKER = """
import numpy as np
from libreyolo.data.loader import Loader
from libreyolo.data.sampler import EvaluationSampler
import torch

class Numbers:
    def __getitem__(self, item): return torch.full((3,), float(item.index))
    def describe(self, index): return str(index)

if __name__ == "__main__":
    loader = Loader(Numbers(), EvaluationSampler(4, batch=2), collate=torch.stack, prepare=lambda host, device: host, workers=1)
    print([batch[:, 0].tolist() for batch in loader.epoch(0)])
    loader.close()
"""


@pytest.fixture
def long_folder(tmp_path, monkeypatch):
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)
    return folder


def test_a_long_temporary_folder_is_replaced_by_a_short_one(long_folder):
    keep_socket_paths_short()
    chosen = util.get_temp_dir()
    assert len(f"{chosen}/listener-12345678") <= LONGEST_PATH
    assert Path(chosen).is_dir()
    Path(chosen).rmdir()


def test_a_folder_that_fits_to_the_last_byte_stays(tmp_path, monkeypatch):
    room = LONGEST_PATH - len("/pymp-12345678/listener-12345678")
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * (room - 1))
    keep_socket_paths_short()
    assert multiprocessing.current_process()._config["tempdir"] is None
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * room)
    keep_socket_paths_short()
    chosen = multiprocessing.current_process()._config["tempdir"]
    assert chosen is not None
    Path(chosen).rmdir()


def test_without_any_short_folder_it_is_one_sentence(long_folder, monkeypatch):
    monkeypatch.setattr(socket_folder, "SHORT_FOLDERS", ("/nowhere",))
    with pytest.raises(UserError, match="set TMPDIR to a folder of at most 71 characters, or workers=0"):
        keep_socket_paths_short()


@pytest.mark.slow
def test_a_worker_s_batches_arrive_with_a_long_temporary_folder(tmp_path):
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text(READ_WITH_A_WORKER)
    environ = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout.strip() == "[[0.0, 1.0], [2.0, 3.0]]", ended.stderr
