"""What can go wrong before, while and after processes are started.

`one_sentence` says that the message alone is enough: a door prints it without a traceback. Exceptions of other packages may carry the same
attribute (or `user_error = True`); a worker's exception that does is raised again in the parent as itself.
"""

from __future__ import annotations


class LaunchError(RuntimeError):
    """Base of every error of this package.

    on_every_rank: whether all ranks meet it alike, so that rank 0 alone need say it.
    """

    one_sentence = True
    on_every_rank = True


class DeviceError(LaunchError, ValueError):
    """`device` or `nproc` says something that can't be run here."""


class BatchError(LaunchError, ValueError):
    """The global batch doesn't fit the number of processes."""


class EnvironmentVariableError(LaunchError):
    """The variables that torchrun or Slurm should have set are incomplete or contradict each other."""


class SpawnGuardError(LaunchError):
    """The script trains at its top level, so every worker that imports it would train again; or workers can't import it at all."""


class PayloadError(LaunchError):
    """A value that must go to the workers can't be pickled."""


class RunDirectoryError(LaunchError, ValueError):
    """The run directory can't be used."""


class UnsupportedFamilyError(LaunchError, ValueError):
    """More than one GPU was asked of a family that can't be started automatically."""


class RankFailedError(LaunchError):
    """A rank ended before its work was done; the first failure of the job.

    rank: which one. cause: what happened to it, to be read after "rank 1 ". tail: its traceback and the last lines that it wrote, "" if
    none.
    """

    one_sentence = False

    def __init__(self, rank: int, cause: str, tail: str = "") -> None:
        super().__init__(rank, cause, tail)
        self.rank = rank
        self.cause = cause
        self.tail = tail

    def __str__(self) -> str:
        return f"rank {self.rank} {self.cause}" + (f"\n{self.tail}" if self.tail else "")


def is_one_sentence(error: BaseException) -> bool:
    """Return whether `error` is a user's mistake, told by its message alone."""
    if getattr(error, "one_sentence", False) or getattr(error, "user_error", False):
        return True
    return isinstance(error, ValueError) and any(base.__name__ == "UserError" for base in type(error).__mro__)
