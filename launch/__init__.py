"""Starts N processes and calls one function in each; knows no model."""

from launch.batch import check_divisible
from launch.devices import Placement, parse
from launch.environment import RankEnvironment, check_device, detect, strip_local_rank
from launch.errors import (
    BatchError,
    DeviceError,
    EnvironmentVariableError,
    LaunchError,
    PayloadError,
    RankFailedError,
    RunDirectoryError,
    SpawnGuardError,
    UnsupportedFamilyError,
    is_one_sentence,
)
from launch.failure import is_consequence
from launch.group import choose_backend, process_group
from launch.guard import check_main_guard
from launch.leaving import told_of_signals
from launch.owned_folder import owned_folder
from launch.run_lock import alone_in
from launch.spawn import check_can_spawn, spawn_ddp_train
from launch.support import require_spawn_support

__all__ = [
    "BatchError",
    "DeviceError",
    "EnvironmentVariableError",
    "LaunchError",
    "PayloadError",
    "Placement",
    "RankEnvironment",
    "RankFailedError",
    "RunDirectoryError",
    "SpawnGuardError",
    "UnsupportedFamilyError",
    "alone_in",
    "check_can_spawn",
    "check_device",
    "check_divisible",
    "check_main_guard",
    "choose_backend",
    "detect",
    "is_consequence",
    "is_one_sentence",
    "owned_folder",
    "parse",
    "process_group",
    "require_spawn_support",
    "spawn_ddp_train",
    "strip_local_rank",
    "told_of_signals",
]
