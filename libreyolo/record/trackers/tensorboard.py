"""TensorBoard: event files in run_dir/tensorboard."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from libreyolo.record.trackers.base import TrackedRun, Tracker, import_package


class TensorBoard(Tracker):
    """One folder of event files; a resumed run adds a file to it, which TensorBoard shows as the same run.

    torch's SummaryWriter writes from a thread of its own: on a full disk that one dies with a traceback, and what it held is lost. Here an epoch
    is one record, which is in the file or is not.
    """

    name = "tensorboard"
    module = "torch.utils.tensorboard.summary"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._events = import_package("tensorboard.compat.proto.event_pb2", self.name)
        self._records = import_package("tensorboard.summary.writer.record_writer", self.name)
        self._path = Path()

    def open(self) -> int:
        folder = self.run.run_dir / "tensorboard"
        last = min(self.memory.epoch, self.start_epoch)
        folder.mkdir(parents=True, exist_ok=True)
        # What is there of later steps is hidden: of an earlier run in this directory, or of epochs that are trained again.
        hides = any(file.stat().st_size for file in folder.iterdir())
        # TensorBoard reads the files of a folder in the order of their names.
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        events = [self._event(file_version="brain.Event:2")]
        if hides:
            events.append(self._event(last + 1, session_log=self._events.SessionLog(status=self._events.SessionLog.START)))
        if self.memory.id is None:
            about = {"group": self.memory.group, "tags": list(self.run.tags), **self.run.config}
            events.append(self._event(0, summary=self.package.text("config", f"```\n{json.dumps(about, indent=2, default=str)}\n```")))
        self._append(*events)
        self.memory.id = folder.name
        return last

    def send(self, values: dict[str, float], epoch: int) -> None:
        kind = self.package.Summary
        self._append(self._event(epoch, summary=kind(value=[kind.Value(tag=name, simple_value=value) for name, value in values.items()])))

    def close(self, ending: str) -> None:
        """Nothing is open."""

    def _event(self, step: int = 0, **content: Any) -> Any:
        return self._events.Event(step=step, wall_time=time.time(), **content)

    def _append(self, *events: Any) -> None:
        """Write all events or none: behind half a record nothing could be read any more."""
        buffer = io.BytesIO()
        records = self._records.RecordWriter(buffer)
        for event in events:
            records.write(event.SerializeToString())
        with self._path.open("ab", buffering=0) as file:
            before, content = file.tell(), buffer.getvalue()
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(before)
                raise
