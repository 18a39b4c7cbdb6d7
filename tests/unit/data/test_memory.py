"""What becomes of memory that a loader process frees."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Eight megabytes at a time, as for some pictures: every page that the system maps anew is a fault.
SCRIPT = """
import resource
import numpy as np
from libreyolo.data.loader import _start_worker

def faults_per_round():
    for rounds in (3, 10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(rounds):
            kept = [np.ones(1 << 20, np.uint8) for _ in range(8)]
            del kept
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // rounds

before = faults_per_round()
_start_worker(0, None, 0)
print(before, faults_per_round())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_a_loader_process_maps_no_page_anew_for_what_it_freed_before() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 1000  # of 2048: else this script shows nothing
    assert after < 50
