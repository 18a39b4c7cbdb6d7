"""A finished scan on disk: one .npz a split of a data set, with a JSON header; plain arrays, never unpickled.

Whatever is wrong with a cached file (cut off, of another set, of another version, not writable) the scan is simply made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from libreyolo.data.cache_folder import cache_folder, write_atomically
from libreyolo.data.scan_result import Scan, SplitReport

logger = logging.getLogger(__name__)

# name: (dtype, number of dimensions)
_ARRAYS = {
    "kept": (np.int64, 1),
    "sizes": (np.int32, 2),
    "boxes": (np.float32, 2),
    "labels": (np.int64, 1),
    "offsets": (np.int64, 1),
    "stamps": (np.int64, 2),
}


def cache_file(cache_name: str) -> Path:
    """Return where the scan called `cache_name` (any text that tells the split of the set) is kept."""
    return cache_folder("scan") / f"{hashlib.sha256(cache_name.encode(errors='surrogateescape')).hexdigest()[:32]}.npz"


def load(cache_name: str, key: str) -> Scan | None:
    """Return the cached scan if it was saved under exactly this `key`, else None."""
    path = cache_file(cache_name)
    try:
        with np.load(path, allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["key"] != key:
                logger.debug("%s is of another state of the set; scanning again", path)
                return None
            arrays = {name: _checked(name, stored[name]) for name in _ARRAYS}
        report = dict(header["report"])
        report["skipped"] = [(str(file), str(reason)) for file, reason in report["skipped"]]
        scan = Scan(**arrays, report=SplitReport(**report))
        if len(scan.offsets) != len(scan.kept) + 1 or scan.offsets[-1] != len(scan.labels) or len(scan.boxes) != len(scan.labels):
            raise ValueError("its arrays do not fit together")
    except Exception as error:  # on a damaged archive NumPy and zipfile raise anything, from MemoryError to NotImplementedError
        logger.debug("%s cannot be used (%s); scanning again", path, error)
        return None
    return scan


def save(cache_name: str, key: str, scan: Scan) -> None:
    """Keep a scan under `key`; a folder that can't be written is no error."""
    header = json.dumps({"key": key, "report": asdict(scan.report)}).encode()
    arrays: dict[str, Any] = {name: getattr(scan, name) for name in _ARRAYS}
    path = cache_file(cache_name)
    try:
        write_atomically(path, lambda file: np.savez(file, header=np.frombuffer(header, np.uint8), **arrays))
    except OSError as error:
        logger.debug("%s cannot be written (%s); the next start scans again", path, error)


def _checked(name: str, array: np.ndarray) -> np.ndarray:
    dtype, ndim = _ARRAYS[name]
    if array.dtype != dtype or array.ndim != ndim:
        raise ValueError(f"{name} is {array.dtype} with {array.ndim} dimensions")
    return array
