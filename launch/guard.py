"""Checks before any worker starts: may this process start workers, and can they import what it is made of?

A spawned worker first imports the script that started it. Without a main guard that import trains again. The worker then raises, and leaves
a note for its parent, which ends with the same sentence. Both know the note's place from a secret that multiprocessing gives to its
children, so no environment variable is touched.
"""

from __future__ import annotations

import ast
import hashlib
import multiprocessing
import multiprocessing.process
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from launch.errors import LaunchError, SpawnGuardError

GUARD_SENTENCE = (
    "spawn_ddp_train() was called from inside a spawned subprocess. This usually means your script calls "
    "model.train(device=...) at the top "
    "level without a 'if __name__ == \"__main__\":' guard."
)


def check_main_guard() -> None:
    """Raise SpawnGuardError with the contract's sentence when a spawned process is still importing its main module.

    Call it before any work that leads to spawning. It asks multiprocessing's own flag, so that workers of joblib or submitit, whose import
    is over, may train.
    """
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    guard_note(os.getppid()).touch()
    sys.excepthook = _say_nothing_of_the_guard
    raise SpawnGuardError(GUARD_SENTENCE)


def check_startable() -> None:
    """Raise when workers can't be started from here: a daemonic process, or a script that they couldn't import."""
    if multiprocessing.current_process().daemon:
        raise LaunchError(
            "training on several devices starts processes, which a daemonic process (a multiprocessing.Pool or DataLoader "
            "worker) may not do: "
            "call it from the main process."
        )
    path = main_path()
    if path is not None and not path.exists():
        shown = path.name if path.name.startswith("<") else str(path)
        raise SpawnGuardError(
            f"the script was read from {'standard input' if shown == '<stdin>' else shown}, so the workers of a training on "
            "several devices can't "
            "import it: save it as a .py file, with the call under 'if __name__ == \"__main__\":', and run that file."
        )


def main_path() -> Path | None:
    """Return the file that workers will import as their main module; None where they import by name, or nothing (a notebook, python -c)."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or file is None:
        return None
    if Path(file).stem == "ipython":  # multiprocessing doesn't import it
        return None
    origin = multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]  # where relative paths of the command line count from
    return Path(origin or ".") / file


def main_is_importable() -> bool:
    """Return whether workers get the main module of this process, and with it what is defined there."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or main_path() is not None


def is_under_the_guard(name: str) -> bool:
    """Return whether the main script defines `name` under its main guard only, where a worker that imports the script does not find it.

    False where the script can't be read: then the worker itself says what it lacks.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        return False
    origin = multiprocessing.process.ORIGINAL_DIR  # type: ignore[attr-defined]
    try:
        tree = ast.parse((Path(origin or ".") / file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    guards = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}]
    guarded = {bound for guard in guards for node in guard.body for bound in _bound(node)}
    others = [*(node for node in tree.body if node not in guards), *(node for guard in guards for node in guard.orelse)]
    return name in guarded - {bound for node in others for bound in _bound(node)}


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a statement, or one inside it, may bind."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]


def guard_note(parent_pid: int) -> Path:
    """Return the place where a child of `parent_pid` notes that the guard fired."""
    secret = bytes(multiprocessing.current_process().authkey) + str(parent_pid).encode()
    return Path(tempfile.gettempdir()) / f"launch-guard-{hashlib.sha256(secret).hexdigest()[:24]}"


def _say_nothing_of_the_guard(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, SpawnGuardError):  # the parent says that sentence, once
        sys.__excepthook__(kind, error, trace)
