"""A job that torchrun restarts finds its run directory again.

torchrun's agent lives on while its workers are restarted. A marker file in `root` holds the directories of the job's runs, in the order in
which they were settled (a script may train twice), so that the restarted script takes them in the same order.

Whose marker is it? TORCHELASTIC_RUN_ID alone can't tell: it is "none" unless somebody names one, and many commands carry the same copied
--rdzv_id. The agent, the parent of this process, is known by host, number and start time. So a marker is this job's when its agent is our
agent; or, where another machine's agent goes on with the job, when the id was named and TORCHELASTIC_RESTART_COUNT says that this is a
restart. Anything else is an old job's marker and is written over. With --max-restarts=0, torchrun's default, no marker is made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def restart_directory(environ: Mapping[str, str], root: str | Path) -> Path | None:
    """Return the directory that an earlier life of this torchrun job settled for this run; None for a first life.

    Call it on rank 0 only.
    """
    marker = _marker(environ, root)
    if marker is None or not marker.exists():
        return None
    content = _read(marker)
    agent, me = process_identity(os.getppid()), process_identity(os.getpid())
    same_job = content["agent"] == agent or (_is_named(environ) and _restart_count(environ) > 0)
    if not same_job:
        marker.unlink(missing_ok=True)
        return None
    if content["life"] != me:
        content.update(agent=agent, life=me, num_taken=0)
    if content["num_taken"] >= len(content["directories"]):
        return None
    directory = Path(content["directories"][content["num_taken"]])
    content["num_taken"] += 1
    _write(marker, content)
    return directory if directory.is_dir() else None


def remember(environ: Mapping[str, str], root: str | Path, directory: str | Path) -> None:
    """Note the directory that this run settled; nothing outside torchrun, or where it won't restart.

    Call it on rank 0, once per new run.
    """
    marker = _marker(environ, root)
    if marker is None:
        return
    agent, me = process_identity(os.getppid()), process_identity(os.getpid())
    content: dict[str, Any] = {"agent": agent, "life": me, "directories": [], "num_taken": 0}
    if marker.exists():
        earlier = _read(marker)
        if earlier["life"] == me or earlier["agent"] == agent:
            content["directories"] = earlier["directories"]
    content["directories"].append(str(Path(directory).resolve()))
    content["num_taken"] = len(content["directories"])
    marker.parent.mkdir(parents=True, exist_ok=True)
    _write(marker, content)


def forget(environ: Mapping[str, str], root: str | Path) -> None:
    """Remove the marker: the script came to its end and won't be restarted. Nothing happens where there is none."""
    marker = _marker(environ, root)
    if marker is not None:
        marker.unlink(missing_ok=True)


def process_identity(pid: int) -> str:
    """Return what tells a process from every other, also from a later one of the same number: host, number, start time."""
    started = "?"
    with contextlib.suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Field 22, start time in ticks since boot; the name in field 2 may hold spaces and brackets.
        started = boot + "-" + Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    return f"{platform.node()}-{pid}-{started}"


def _marker(environ: Mapping[str, str], root: str | Path) -> Path | None:
    """Return the job's marker file, None where there can't be a restart."""
    if "TORCHELASTIC_RUN_ID" not in environ or environ.get("TORCHELASTIC_MAX_RESTARTS") == "0":
        return None
    key = environ["TORCHELASTIC_RUN_ID"] if _is_named(environ) else process_identity(os.getppid())
    return Path(root) / f".torchrun-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _is_named(environ: Mapping[str, str]) -> bool:
    return environ["TORCHELASTIC_RUN_ID"] not in ("", "none")


def _restart_count(environ: Mapping[str, str]) -> int:
    text = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def _read(marker: Path) -> dict[str, Any]:
    """Return the marker's content; an unreadable one belongs to nobody."""
    try:
        content = json.loads(marker.read_text())
        if isinstance(content, dict) and {"agent", "life", "directories", "num_taken"} <= content.keys():
            return content
    except (OSError, ValueError):
        pass
    return {"agent": "", "life": "", "directories": [], "num_taken": 0}


def _write(marker: Path, content: dict[str, Any]) -> None:
    part = marker.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(marker)
