"""TensorBoard: event files in run_dir/tensorboard."""

from __future__ import annotations

import json

from libreyolo.record.trackers.base import Tracker


class TensorBoard(Tracker):
    """One folder of event files; a resumed run adds a file to it, which TensorBoard shows as the same run."""

    name = "tensorboard"
    module = "torch.utils.tensorboard"

    def open(self) -> int:
        folder = self.run.run_dir / "tensorboard"
        last = min(self.memory.epoch, self.start_epoch)
        # What is there of later steps is hidden: of an earlier run in this directory, or of epochs that are trained again.
        purge = last + 1 if folder.is_dir() and any(folder.iterdir()) else None
        self._writer = self.package.SummaryWriter(log_dir=str(folder), purge_step=purge)
        if self.memory.id is None:
            self.memory.id = folder.name
            about = {"group": self.memory.group, "tags": list(self.run.tags), **self.run.config}
            self._writer.add_text("config", f"```\n{json.dumps(about, indent=2, default=str)}\n```", 0)
        return last

    def send(self, values: dict[str, float], epoch: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self, ending: str) -> None:
        self._writer.close()
