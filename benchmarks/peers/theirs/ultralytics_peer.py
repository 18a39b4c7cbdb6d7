"""Trains YOLOv9 with ultralytics in this process's interpreter, by its public interface: PYTHON ultralytics_peer.py JSON."""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

from watched import Watched, memory_gb, not_here, tell

ASKED: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
os.environ |= {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "false"}
try:
    import polars  # noqa: F401  # it reads its own csv with it
except ImportError:
    stub = types.ModuleType("polars")
    stub.read_csv = lambda *a, **k: types.SimpleNamespace(to_dict=lambda **k: {})  # type: ignore[attr-defined]
    sys.modules["polars"] = stub
try:
    import ultralytics
    from ultralytics import YOLO
except ImportError as error:
    not_here(error)


def watch(trainer: Any) -> None:
    trainer.train_loader = Watched(trainer.train_loader, ASKED["epochs"], trainer.device, held=ASKED["gpus"] == 1)


def main() -> None:
    tell("version", version=f"ultralytics {ultralytics.__version__}")
    model = YOLO(f"yolov9{ASKED['size']}.yaml")
    if ASKED["gpus"] == 1:  # with more it starts processes of its own, to which a loader can't be handed
        model.add_callback("on_train_start", watch)
    model.add_callback("on_train_epoch_end", lambda trainer: tell("epoch", memory_gb=memory_gb()))
    ids = [] if ASKED["device"] == "cpu" else [int(i) for i in ASKED["device"].split(",")]
    devices = ids if len(ids) > 1 else ids[0] if ids else "cpu"
    model.train(
        data=ASKED["data"], epochs=ASKED["epochs"] + ASKED["held"], batch=ASKED["batch"], imgsz=ASKED["imgsz"], device=devices,
        workers=ASKED["workers"], project=ASKED["project"], name="run", exist_ok=True, val=False, plots=False, pretrained=False, close_mosaic=0,
        optimizer="SGD", amp=devices != "cpu", cache=ASKED["cache"],
    )  # fmt: skip


if __name__ == "__main__":
    main()
