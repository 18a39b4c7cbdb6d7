"""Weights & Biases: online, offline or disabled, as WANDB_MODE says."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from libreyolo.record.trackers.base import FINISHED, SECONDS_WITH_A_CHECKPOINT, TrackedRun, Tracker, one_line

log = logging.getLogger(__name__)

PROJECT = "libreyolo"
ONLINE = "online"
SECONDS_TO_CONNECT = 20.0
SECONDS_TO_FINISH = 25.0  # less than the end of a training waits: why it was not enough is said in time
SECONDS_TO_STORE = SECONDS_WITH_A_CHECKPOINT - 2 * SECONDS_TO_FINISH


class Wandb(Tracker):
    """One run at Weights & Biases, in run_dir/wandb; a resumed training goes on under the same id.

    A run that cannot go online (no network, no API key) is kept offline, for `wandb sync`. wandb's own variables (WANDB_MODE, WANDB_PROJECT,
    WANDB_RUN_GROUP and so on) mean what they always do. A run of the user's own in the same process is left alone. What wandb itself would warn
    about on the terminal is this tracker's one warning instead.
    """

    name = "wandb"
    module = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._speaks_here = False

    def open(self) -> int:
        self._let_it_speak_here()
        try:
            self._run = self._start()
        except Exception as error:
            if self._wanted_offline():
                raise
            self._run = self._start(mode="offline")
            self.warn(f"wandb could not go online ({one_line(error)}); the run is kept offline: send it with wandb sync {Path(self._run.dir).parent}")
        if self._run.disabled:
            return 0
        mode = "offline" if self._run.offline else ONLINE
        # A server knows the next step of its run; of an offline run only this directory knows what was sent.
        last = max(int(self._run.step) - 1, 0) if mode == ONLINE else self.memory.epoch if self.memory.where == mode else 0
        self.memory.id, self.memory.where = self._run.id, mode
        if mode == ONLINE:
            log.info("wandb: %s", self._run.url)
        return last

    def send(self, values: dict[str, float], epoch: int) -> None:
        self._run.log(values, step=epoch, commit=True)

    def keep_file(self, path: Path) -> None:
        artifact = self.package.Artifact(f"run-{self._run.id}-{path.stem}", type="model")
        artifact.add_file(str(path), name=path.name)
        stored = self._run.log_artifact(artifact)
        if self.memory.where == ONLINE:
            stored.wait(timeout=SECONDS_TO_STORE)  # else the end of the run, which does not wait as long, would cut it off

    def close(self, ending: str) -> None:
        try:
            self._run.finish(exit_code=0 if ending == FINISHED else 1)
        finally:
            if self._speaks_here:
                self.package.termsetup(self.package.setup().settings, None)  # as it was

    def _let_it_speak_here(self) -> None:
        """Have what wandb says for the terminal said by this tracker, unless a run of the user's own speaks there."""
        if self.package.run is None and not self._speaks_here:
            self.package.setup()  # speaks as its own settings say, until told otherwise
            self.package.termsetup(self.package.Settings(silent=True), _Speech(self._warn_of_its_own))
            self._speaks_here = True

    def _warn_of_its_own(self, text: str) -> None:
        if self._is_open:  # else an exception follows, which says more
            self.warn(f"wandb: {text} Training goes on, and results.csv has every number.")

    def _start(self, **mode: str) -> Any:
        if not mode and not self._wanted_offline() and not self._logged_in():
            raise PermissionError("no API key: run wandb login, or set WANDB_API_KEY")
        run = self.run
        run.run_dir.mkdir(parents=True, exist_ok=True)
        with _quiet_debug_log():
            return self.package.init(
                project=None if "WANDB_PROJECT" in os.environ else PROJECT,
                name=None if "WANDB_NAME" in os.environ else run.name,
                group=self.memory.group or None,
                tags=list(run.tags) or None,
                dir=str(run.run_dir),
                config=run.config,
                id=self.memory.id,
                resume="allow" if self.memory.id else None,
                allow_val_change=True,
                reinit="create_new",
                settings=self._settings(),
                **mode,
            )

    def _settings(self) -> Any:
        """Return wandb's settings: quiet beside the progress, and no wait without an end, as far as this version knows them."""
        wanted = {"silent": True, "console": "off", "finish_timeout": SECONDS_TO_FINISH}
        if "WANDB_INIT_TIMEOUT" not in os.environ:
            wanted["init_timeout"] = SECONDS_TO_CONNECT
        return self.package.Settings(**{name: value for name, value in wanted.items() if name in self.package.Settings.model_fields})

    def _wanted_offline(self) -> bool:
        mode = os.environ.get("WANDB_MODE") or self.package.setup().settings.mode  # the second knows `wandb offline` too
        return mode in ("offline", "dryrun", "disabled")

    def _logged_in(self) -> bool:
        """Return whether wandb has an API key; it must never ask for one from a background thread."""
        if self.package.run is not None:
            return True  # the user's own run: wandb would not look
        try:
            return bool(self.package.login(prompt=False))
        except TypeError:  # a version without `prompt`
            return bool(self.package.api.api_key)


class _Speech:
    """Takes what wandb says: its warnings are passed on in one line each, the rest is of no interest beside a training."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def info(self, text: str) -> None:
        log.debug("%s", text)

    def warning(self, text: str) -> None:
        self._warn(" ".join(text.replace("wandb: WARNING ", "").replace("wandb: ERROR ", "").split()))

    error = warning


@contextmanager
def _quiet_debug_log() -> Iterator[None]:
    """Let the log files that wandb opens meanwhile be silent about their own failures.

    wandb tells its debug.log of all it does; on a full disk Python would print a traceback for each of these lines, beside our one warning.
    """
    logger = logging.getLogger("wandb")
    add = logger.addHandler

    def add_quietly(hdlr: logging.Handler) -> None:
        hdlr.handleError = lambda record: None  # type: ignore[method-assign]
        add(hdlr)

    logger.addHandler = add_quietly  # type: ignore[method-assign]
    try:
        yield
    finally:
        del logger.addHandler
