"""Trains YOLOv9 with the published libreyolo in this process's interpreter: PYTHON libreyolo_peer.py JSON (see rows.py for its keys)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from watched import Watched, memory_gb, not_here, tell

ASKED: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}

try:
    import libreyolo
    from libreyolo.models.yolo9.model import LibreYOLO9
    from libreyolo.training import trainer
except ImportError as error:
    not_here(error)

if Path(libreyolo.__file__).resolve().is_relative_to(Path(__file__).resolve().parents[3]):
    sys.exit("this project was imported in the place of the published libreyolo: run this script from another folder, without PYTHONPATH")

original = trainer.create_dataloader


def create_dataloader(*arguments: Any, **keys: Any) -> Any:
    one = ASKED["gpus"] == 1
    device = ASKED["device"] if ASKED["device"] == "cpu" else "cuda:0"
    return Watched(original(*arguments, **keys), ASKED["epochs"], device, held=one)


trainer.create_dataloader = create_dataloader  # here, so that the ranks, which import this script, do it too


class Clock:
    """The peer's callback."""

    def on_train_start(self, event: Any) -> None: ...

    def on_train_epoch_end(self, event: Any) -> None:
        tell("epoch", memory_gb=memory_gb())

    def on_train_end(self, event: Any) -> None: ...

    def on_train_exception(self, event: Any) -> None: ...


def main() -> None:
    tell("version", version=f"libreyolo {getattr(libreyolo, '__version__', '?')}")
    cpu = ASKED["device"] == "cpu"
    LibreYOLO9(None, size=ASKED["size"], device="cpu" if cpu else "cuda:0").train(
        data=ASKED["data"], epochs=ASKED["epochs"] + ASKED["held"], batch=ASKED["batch"], imgsz=ASKED["imgsz"], device=ASKED["device"],
        workers=ASKED["workers"], project=ASKED["project"], name="run", exist_ok=True, patience=0, val=False, amp=not cpu, no_aug_epochs=0,
        callbacks=[Clock()],
    )  # fmt: skip


if __name__ == "__main__":
    main()
