"""Is this process one of many that somebody else started? The rank variables of torchrun, of srun, and of our own workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from launch import slurm
from launch.devices import is_list, parse, split
from launch.errors import DeviceError, EnvironmentVariableError

SPAWNED = "LAUNCH_SPAWNED"  # set inside our own workers, beside the torchrun variables


@dataclass(frozen=True)
class RankEnvironment:
    """One process among `world_size`.

    local_rank counts the processes of this machine, of which there are `local_world_size`. `source` says who started them.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    source: Literal["torchrun", "slurm", "spawn"]


def detect(environ: Mapping[str, str]) -> RankEnvironment | None:
    """Return this process's place among the processes of torchrun, srun or our launcher; None for an ordinary process.

    An incomplete or contradictory set is an EnvironmentVariableError that names the variable: training alone by mistake would be worse.
    LOCAL_WORLD_SIZE may be missing and then equals WORLD_SIZE (one machine). Where an old launcher passes the local rank as an argument,
    add LOCAL_RANK from `strip_local_rank` to the mapping first.
    """
    if any(name in environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")):
        return _torchrun(environ)
    if slurm.num_step_tasks(environ) > 1:
        return _slurm(environ)
    return None


def check_device(env: RankEnvironment, device: object, *, cuda_count: int | None = None) -> tuple[str, str]:
    """Return this rank's torch device and a line for the log ("" when there is nothing to say).

    Whoever started the processes owns their number: a list as long as the local world size is ignored with one line, a list of another
    length is a DeviceError, one index (the script is written for one device) means cuda:LOCAL_RANK, the CPU stays the CPU. In our own
    workers the list was settled by the launcher and gives the rank its own index. `cuda_count`, when known, is checked against LOCAL_RANK.
    """
    names = split(device)
    if names == ["mps"]:
        raise DeviceError(f"device={device!r} is one device, but {env.source} started {env.world_size} processes: use device=cpu, or one process.")
    if names == ["cpu"] or (names == ["auto"] and cuda_count == 0):
        return "cpu", ""
    if not all(isinstance(name, int) for name in names) and names != ["auto"]:
        parse(device, cuda_count=cuda_count or 0)  # raises the sentence for mixed kinds
    if env.source == "spawn":
        return f"cuda:{names[env.local_rank]}" if len(names) == env.local_world_size else f"cuda:{env.local_rank}", ""
    note = ""
    if is_list(device):
        if len(names) != env.local_world_size:
            raise DeviceError(
                f"device={device!r} names {len(names)} device(s), but {env.source} started {env.local_world_size} process(es) "
                "on this machine: "
                f"leave device out (each process takes cuda:LOCAL_RANK), or start {len(names)}."
            )
        note = f"device={device!r} is ignored: {env.source} owns the number of processes, and each takes cuda:LOCAL_RANK"
    return f"cuda:{_visible_index(env, cuda_count)}", note


def strip_local_rank(argv: Sequence[str]) -> tuple[list[str], int | None]:
    """Return `argv` without the --local-rank=0 or --local_rank 0 of old launchers, and that rank (None if it wasn't there)."""
    kept: list[str] = []
    local_rank: int | None = None
    words = iter(argv)
    for word in words:
        name, equals, text = word.partition("=")
        if name not in ("--local-rank", "--local_rank"):
            kept.append(word)
            continue
        if not equals:
            text = next(words, "")
        if not text.isdigit():
            raise EnvironmentVariableError(f"{word} needs a whole number, as in --local-rank=0, but got {text!r}: start the script with torchrun.")
        local_rank = int(text)
    return kept, local_rank


def _torchrun(environ: Mapping[str, str]) -> RankEnvironment:
    required = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in required if not environ.get(name)]
    if missing:
        found = [name for name in required if environ.get(name)]
        raise EnvironmentVariableError(
            f"{', '.join(found) or 'an empty rank variable'} is set in the environment but {', '.join(missing)} is not: start "
            "the script with "
            "torchrun, which sets all of them, or unset the rest to train in one process."
        )
    world_size = _number(environ, "WORLD_SIZE", low=1)
    local_world_size = _number(environ, "LOCAL_WORLD_SIZE", low=1) if environ.get("LOCAL_WORLD_SIZE") else world_size
    return RankEnvironment(
        rank=_number(environ, "RANK", low=0, below=("WORLD_SIZE", world_size)),
        local_rank=_number(environ, "LOCAL_RANK", low=0, below=("LOCAL_WORLD_SIZE", local_world_size)),
        world_size=world_size,
        local_world_size=local_world_size,
        master_addr=environ["MASTER_ADDR"],
        master_port=_number(environ, "MASTER_PORT", low=1, below=("the number of ports", 65536)),
        source="spawn" if SPAWNED in environ else "torchrun",
    )


def _slurm(environ: Mapping[str, str]) -> RankEnvironment:
    world_size = slurm.num_step_tasks(environ)
    if not environ.get("SLURM_LOCALID"):
        raise EnvironmentVariableError("SLURM_PROCID is set in the environment but SLURM_LOCALID is not: start the tasks with srun.")
    nodelist = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodelist and not environ.get("MASTER_ADDR"):
        raise EnvironmentVariableError("SLURM_PROCID is set in the environment but SLURM_JOB_NODELIST is not: start the tasks with srun.")
    local_world_size = slurm.tasks_on_this_node(environ, world_size)
    return RankEnvironment(
        rank=_number(environ, "SLURM_PROCID", low=0, below=("SLURM_NTASKS", world_size)),
        local_rank=_number(environ, "SLURM_LOCALID", low=0, below=("the number of tasks on this node", local_world_size)),
        world_size=world_size,
        local_world_size=local_world_size,
        master_addr=environ.get("MASTER_ADDR") or slurm.first_host(nodelist or ""),
        master_port=_number(environ, "MASTER_PORT", low=1) if environ.get("MASTER_PORT") else slurm.rendezvous_port(environ),
        source="slurm",
    )


def _number(environ: Mapping[str, str], name: str, *, low: int, below: tuple[str, int] | None = None) -> int:
    text = environ.get(name, "")
    value = int(text) if text.strip().isdigit() else None
    if value is None or value < low:
        raise EnvironmentVariableError(f"{name}={text!r} in the environment is not a whole number of at least {low}: start the script with torchrun.")
    if below is not None and value >= below[1]:
        raise EnvironmentVariableError(f"{name}={value} must be below {below[0]}={below[1]}: start the script with torchrun.")
    return value


def _visible_index(env: RankEnvironment, cuda_count: int | None) -> int:
    if cuda_count is None or env.local_rank < cuda_count:
        return env.local_rank
    if cuda_count == 1 and env.source == "slurm":  # srun --gpus-per-task=1 shows each task its own GPU only
        return 0
    error = DeviceError(
        f"local rank {env.local_rank} of {env.local_world_size} needs cuda:{env.local_rank}, but {cuda_count} CUDA device(s) are visible: "
        f"start at most one process per visible GPU, or use device=cpu."
    )
    error.on_every_rank = False
    raise error
