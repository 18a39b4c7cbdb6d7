"""What the host has for this process: free memory, where shared memory lives, what becomes of memory that is freed, and processors."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path

import numpy as np

IN_MEMORY = Path("/dev/shm")  # where Linux keeps files that are memory


def shared_memory_folder() -> Path:
    """Return the folder whose files are memory; where the system has none the temporary folder, whose files are cached in memory."""
    return IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def available_ram_bytes() -> int:
    """Return the bytes a new buffer may take without swapping: what the kernel calls available, or less in a limited container."""
    available = _meminfo_available()
    limit = _container_room()
    return available if limit is None else min(available, limit)


def keep_freed_memory() -> None:
    """Have this process keep up to some 60 MB that it frees, for what it allocates next. Changes nothing where the C library isn't glibc.

    A process that reads pictures takes and frees megabytes all the time. By itself glibc gives such pieces back to the system, which finds, clears
    and maps every page anew for the next picture: a tenth of the time that a picture takes.
    """
    # glibc keeps pieces as large as the largest one freed so far that it had asked the system for; it learns so from pieces of up to 32 MiB.
    np.empty(31 << 20, np.uint8)


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        psutil = importlib.import_module("psutil")  # optional
    except ImportError:
        return 0  # unknown counts as none: a cache is never worth running out of memory
    return int(psutil.virtual_memory().available)


def _container_room() -> int | None:
    """Room below the cgroup (v2) limit, counting reclaimable file pages as free; None where there is no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text())  # "max" is a ValueError: no limit
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return None
