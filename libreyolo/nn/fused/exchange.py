"""Memory of the host that the GPUs of all its ranks read and write: there the statistics of a layer meet, inside the layer's own kernels.

A collective of a few hundred numbers costs the host more than a kernel does, and there are two in every layer. Here a rank's kernel stores its
numbers, each in one word with the number of the turn, and reads those of the others until all have this turn's. So a number is never seen before it
is there, and nobody waits for a flag behind it (NCCL's protocol LL does so). Two places take turns. A rank that stores in a place for the second time
has had the numbers of all others from the place between, and those left only when the kernel that read the first ones had ended.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path

import torch
from torch import Tensor

WIDEST = 4096  # channels of the widest layer that meets here
LINES = 6  # of words, of a rank: as many as two maps that are normalised together need
PLACES = 2
WORD = 8  # bytes: a float32, and above it the turn in which it was stored
LAST_TURN = 2**31 - 1
FOLDER = Path("/dev/shm")  # memory that looks like files, on Linux
TOKEN = 32  # bytes with which a file begins: whoever reads them there reads this file, and no other of its name
PORTABLE_AND_MAPPED = 3


class Exchange:
    """The part of one rank in that memory: `create` on one rank, `join` on the others, then `register` on all, then `next_turn` alike on all."""

    def __init__(self, path: Path, token: bytes, memory: mmap.mmap, size: int) -> None:
        self.path, self.token, self.size = path, token, size
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._registered = whole[mmap.PAGESIZE :]  # the first page has the token
        self._places = list(self._registered[: WORD * PLACES * size * LINES * WIDEST].view(torch.int64).view(PLACES, -1))
        self._turn = 0

    @classmethod
    def create(cls, size: int) -> Exchange | None:
        """Return memory for `size` ranks that others can join; None where there is none."""
        if not FOLDER.is_dir():
            return None
        try:
            handle, name = tempfile.mkstemp(prefix="libreyolo-", dir=FOLDER)
        except OSError:
            return None
        token = os.urandom(TOKEN)
        try:
            with os.fdopen(handle, "r+b") as stream:
                # Taken now: a page that is not there when a kernel or a process writes to it ends the process.
                os.posix_fallocate(stream.fileno(), 0, _bytes(size))
                stream.write(token)
                stream.flush()
                return cls(Path(name), token, mmap.mmap(stream.fileno(), _bytes(size)), size)
        except OSError:
            Path(name).unlink()
            return None

    @classmethod
    def join(cls, path: Path, token: bytes, size: int) -> Exchange | None:
        """Return the memory that another process of this host created; None where it is not there, as on another host."""
        try:
            with path.open("r+b") as stream:
                if stream.read(TOKEN) != token:
                    return None
                return cls(path, token, mmap.mmap(stream.fileno(), _bytes(size)), size)
        except (OSError, ValueError):
            return None

    def leave_no_name(self) -> None:
        """Take the file's name away: the memory lasts as long as a process has it, and no longer."""
        self.path.unlink(missing_ok=True)

    def register(self, device: torch.device) -> bool:
        """Let this device use the memory, as long as this object lives; return whether it does."""
        runtime = torch.cuda.cudart()
        address, length = self._registered.data_ptr(), self._registered.numel()
        with torch.cuda.device(device):
            done = int(runtime.cudaHostRegister(address, length, PORTABLE_AND_MAPPED)) == 0
        if done:
            weakref.finalize(self, runtime.cudaHostUnregister, address).atexit = False  # a process that ends gives it back by itself
        return done

    def next_turn(self) -> tuple[Tensor, int]:
        """Return this turn's place, int64 [size * LINES * WIDEST], and its number; words of 0 were never stored."""
        self._turn = self._turn + 1 if self._turn < LAST_TURN else 2  # LAST_TURN is odd, so the places still take turns
        return self._places[self._turn % PLACES], self._turn


def _bytes(size: int) -> int:
    return mmap.PAGESIZE + WORD * PLACES * size * LINES * WIDEST
