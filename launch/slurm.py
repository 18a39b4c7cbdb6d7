"""What srun tells its tasks, turned into the numbers that a process group needs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launch.errors import EnvironmentVariableError

# Steps that Slurm makes for its own purposes (batch script, interactive shell, extern) are numbered from the top of 32 bits.
FIRST_SPECIAL_STEP = 4294967290
# Below Linux's ephemeral ports (from 32768), so no outgoing connection holds them.
FIRST_PORT, NUM_PORTS = 15000, 17000


def num_step_tasks(environ: Mapping[str, str]) -> int:
    """Return how many tasks srun started beside this one, itself included; 1 where this is no task of an srun step.

    A batch script and the shell of an interactive allocation see the allocation's SLURM_NTASKS but are alone.
    """
    if "SLURM_PROCID" not in environ or "SLURM_PTY_PORT" in environ:  # `srun --pty bash` is a person's shell
        return 1
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if step is not None and step.isdigit() and int(step) >= FIRST_SPECIAL_STEP:
        return 1
    if step is None and not any(name in environ for name in ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")):
        return 1
    return int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or 1)


def tasks_on_this_node(environ: Mapping[str, str], world_size: int) -> int:
    """Return the number of tasks on this node, from "2(x3),1" and this node's place in it, or from the other variables."""
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if per_node:
        counts: list[int] = []
        for part in per_node.split(","):
            match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
            if match is None:
                raise EnvironmentVariableError(f"SLURM_STEP_TASKS_PER_NODE={per_node!r} can't be read: expected something like '2(x3),1'.")
            counts += [int(match.group(1))] * int(match.group(2) or 1)
        node = int(environ.get("SLURM_NODEID", "0"))
        if node >= len(counts):
            raise EnvironmentVariableError(f"SLURM_NODEID={node} lies outside SLURM_STEP_TASKS_PER_NODE={per_node!r}: start the tasks with srun.")
        return counts[node]
    if environ.get("SLURM_NTASKS_PER_NODE", "").isdigit():
        return min(int(environ["SLURM_NTASKS_PER_NODE"]), world_size)
    num_nodes = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1"))
    if num_nodes != "1":
        raise EnvironmentVariableError(
            "SLURM_STEP_TASKS_PER_NODE is not set, so the tasks of this node can't be counted: use srun --ntasks-per-node=N."
        )
    return world_size


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list: "node003" of "node[003-007,012],login"."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist.strip())
    if match is None:
        raise EnvironmentVariableError(f"the Slurm node list {nodelist!r} can't be read: set MASTER_ADDR to the first host.")
    return "".join(part or "" for part in match.groups())


def rendezvous_port(environ: Mapping[str, str]) -> int:
    """Return a port that all tasks of a step agree on and that steps beside it (mostly) don't share."""
    job = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID"))
    if job is None or not job.isdigit():
        raise EnvironmentVariableError("SLURM_JOB_ID is not set, so the tasks can't agree on a port: start them with srun, or set MASTER_PORT.")
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", "0"))
    return FIRST_PORT + (31 * int(job) + (int(step) if step.isdigit() else 0)) % NUM_PORTS
