"""The variables of torchrun, srun and old launchers."""

from __future__ import annotations

import pytest

from launch.environment import SPAWNED, RankEnvironment, check_device, detect, strip_local_rank
from launch.errors import DeviceError, EnvironmentVariableError
from launch.slurm import first_host

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07-09,12],cpu1",
    "SLURM_JOB_NODELIST": "other1",
}


def test_torchrun_is_recognised():
    assert detect({**TORCHRUN, "HOME": "/root"}) == RankEnvironment(5, 1, 8, 4, "node1", 29500, "torchrun")


def test_our_own_workers_are_told_from_torchrun():
    assert detect({**TORCHRUN, SPAWNED: "1"}).source == "spawn"


def test_an_ordinary_process_is_none():
    assert detect({"HOME": "/root", "MASTER_PORT": "29500", "MASTER_ADDR": "node1"}) is None


def test_one_machine_is_assumed_where_local_world_size_is_missing():
    environ = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
    assert detect(environ).local_world_size == 8


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_an_incomplete_set_names_what_is_missing(name):
    with pytest.raises(EnvironmentVariableError, match=rf"but {name} is not"):
        detect({key: value for key, value in TORCHRUN.items() if key != name})


@pytest.mark.parametrize(("name", "value"), [("RANK", "8"), ("RANK", "-1"), ("WORLD_SIZE", "x"), ("LOCAL_RANK", "4"), ("MASTER_PORT", "99999")])
def test_a_value_that_can_t_be_is_shown(name, value):
    with pytest.raises(EnvironmentVariableError, match=rf"{name}=.?{value}"):
        detect({**TORCHRUN, name: value})


def test_srun_is_recognised_with_its_nodes_and_a_port_that_all_tasks_agree_on():
    env = detect(SRUN)
    assert (env.rank, env.local_rank, env.world_size, env.local_world_size, env.source) == (3, 1, 5, 2, "slurm")
    assert env.master_addr == "gpu07"
    assert 1024 < env.master_port < 32768  # below the ports of outgoing connections
    assert detect({**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}).master_port == env.master_port
    assert detect({**SRUN, "SLURM_STEP_ID": "1"}).master_port != env.master_port
    assert detect({**SRUN, "MASTER_PORT": "4242"}).master_port == 4242


@pytest.mark.parametrize(
    "environ",
    [
        {**SRUN, "SLURM_NTASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
        # A batch script, or salloc's shell: the allocation has tasks, this process is none of them.
        {key: value for key, value in SRUN.items() if "STEP" not in key},
        {**SRUN, "SLURM_STEP_ID": "4294967290"},
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        {**SRUN, "SLURM_PTY_PORT": "4711"},
        {key: value for key, value in SRUN.items() if key != "SLURM_PROCID"},
    ],
    ids=["one task", "no step", "interactive step", "step of one task", "pty", "allocation only"],
)
def test_one_slurm_task_is_an_ordinary_process(environ):
    assert detect(environ) is None


@pytest.mark.parametrize("name", ["SLURM_LOCALID", "SLURM_JOB_ID"])
def test_an_incomplete_srun_set_names_what_is_missing(name):
    with pytest.raises(EnvironmentVariableError, match=name):
        detect({key: value for key, value in SRUN.items() if key != name})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("node1", "node1"), ("a,b", "a"), ("n[3-7]", "n3"), ("n[03,05-07],x", "n03"), ("n[1-2]-ib,x", "n1-ib"), ("gpu-a[12]", "gpu-a12")],
)
def test_the_first_host_of_a_node_list(nodelist, host):
    assert first_host(nodelist) == host


def rank_of(local_rank: int = 1, local_world_size: int = 2, source: str = "torchrun") -> RankEnvironment:
    return RankEnvironment(local_rank, local_rank, local_world_size, local_world_size, "localhost", 29500, source)


@pytest.mark.parametrize("device", ["0,1", [0, 1], "[0, 1]", [4, 5]])
def test_a_list_as_long_as_the_local_processes_is_ignored_with_one_line(device):
    chosen, note = check_device(rank_of(), device)
    assert chosen == "cuda:1"
    assert "ignored" in note and "\n" not in note


@pytest.mark.parametrize("device", [0, "0", "cuda:0", "auto"])
def test_a_script_written_for_one_device_takes_its_local_rank(device):
    assert check_device(rank_of(), device) == ("cuda:1", "")


@pytest.mark.parametrize(("device", "count"), [([0, 1, 2], 3), ("0,1,2", 3), ([0], 1)])
def test_a_list_of_another_length_is_an_error_with_both_numbers(device, count):
    with pytest.raises(DeviceError, match=rf"names {count} device.*started 2 process"):
        check_device(rank_of(), device)


def test_the_cpu_stays_the_cpu():
    assert check_device(rank_of(), "cpu") == ("cpu", "")
    assert check_device(rank_of(), "auto", cuda_count=0) == ("cpu", "")
    with pytest.raises(DeviceError, match="mps"):
        check_device(rank_of(), "mps")
    with pytest.raises(DeviceError, match="mixes"):
        check_device(rank_of(), "cpu,0")


def test_more_ranks_than_gpus_is_an_error():
    with pytest.raises(DeviceError, match="needs cuda:1, but 1 CUDA"):
        check_device(rank_of(), "0,1", cuda_count=1)


def test_a_slurm_task_that_sees_only_its_own_gpu_takes_it():
    assert check_device(rank_of(source="slurm"), 0, cuda_count=1) == ("cuda:0", "")


def test_our_own_worker_takes_its_place_in_the_list():
    assert check_device(rank_of(source="spawn"), [2, 5]) == ("cuda:5", "")


@pytest.mark.parametrize(
    ("argv", "kept", "local_rank"),
    [
        (["train.py", "--local-rank=1", "a=2"], ["train.py", "a=2"], 1),
        (["train.py", "--local_rank", "0", "a=2"], ["train.py", "a=2"], 0),
        (["train.py", "a=--local-rank=3"], ["train.py", "a=--local-rank=3"], None),
    ],
)
def test_the_argument_of_old_launchers_is_understood(argv, kept, local_rank):
    assert strip_local_rank(argv) == (kept, local_rank)


def test_a_local_rank_without_a_number_is_an_error():
    with pytest.raises(EnvironmentVariableError, match="--local-rank"):
        strip_local_rank(["train.py", "--local-rank"])
