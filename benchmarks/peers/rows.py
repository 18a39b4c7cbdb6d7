"""The rows of the table, and how each is measured."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.peers import sets
from benchmarks.peers.process import NOT_HERE, Ended, run
from benchmarks.peers.store import Result, Values, available_cores
from libreyolo.record.tables import read_results

ROOT = Path(__file__).resolve().parents[2]
THEIRS = Path(__file__).resolve().parent / "theirs"
HELD_EPOCHS = 2  # of a peer, on batches that lie on the device: the second one is timed
LONG = 4  # times the pictures of the set in an epoch: what lies between two epochs does not grow with them
FEW = 1024  # pictures with masks or targets; an epoch repeats them


@dataclass(frozen=True)
class Place:
    """What a call was asked for. imgsz, batch (for each GPU), workers: in the place of a row's own where they are not None."""

    scratch: Path
    device: str  # "cpu" or "cuda"
    num_gpus: int
    pictures: int
    epochs: int
    steps: int
    imgsz: int | None = None
    batch: int | None = None
    workers: int | None = None
    peer_python: str | None = None  # None: this interpreter
    peer_site: str | None = None

    def cores(self, row: Row) -> int:
        """Return how many cores a row may use: its own number, or its GPUs' share of the machine."""
        return row.cores or max(len(available_cores()) // max(self.num_gpus, 1), 1) * row.gpus


Make = Callable[[Path, int], Path]


@dataclass(frozen=True)
class Row:
    """One line of the table. batch: pictures on each GPU. cores: the only ones it may use; None: its GPUs' share of the machine.

    keys: arguments of our training beside those that every row has; of a peer's, only its cache. step_of: the row whose step is the same, so that
    its own is not timed again. script: of a peer, in theirs/. held: epochs of a peer on batches that lie on the device, or 0. limit: seconds after
    which the row is cut off. few: whether its set has at most FEW pictures. repeat: how many times as many pictures as the call's sets have are in
    an epoch of the row.
    """

    name: str
    measure: Callable[[Row, Place, float], Result | None]
    model: str = "yolo9s"
    batch: int = 64
    imgsz: int = 640
    gpus: int = 1
    cores: int | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    data: Make = sets.detection
    few: bool = False
    repeat: float = 1
    step_of: str | None = None
    script: str | None = None
    held: int = HELD_EPOCHS
    limit: float = 180.0


def make_data(row: Row, place: Place) -> tuple[Path, int]:
    """Return what the row trains on, made where it is not there, and the pictures of an epoch."""
    pictures = min(place.pictures, FEW) if row.few else place.pictures
    return row.data(sets.below(place.scratch), pictures), round(place.pictures * row.repeat)


def our_keys(row: Row, place: Place) -> dict[str, Any]:
    """Return the arguments of our training that make the row's step."""
    return {"imgsz": place.imgsz or row.imgsz, "no_aug_epochs": 0, **row.keys}


def ours(row: Row, place: Place, left: float) -> Result | None:
    """Measure a training of ours end to end, then its step alone. None where the call's time, not the row's, was too short."""
    data, pictures = make_data(row, place)
    ended, run_dir = _train(row, place, left, data, {"epochs": place.epochs, "val": False, "min_samples": pictures})
    found = results_of(ended, pictures, place.epochs) | records(run_dir)
    if ended.code == 0 and row.step_of is None:
        asked = {"model": row.model, "data": str(data), "keys": our_keys(row, place), "batch": place.batch or row.batch}
        alone = _alone(row, place, min(row.limit, left) - ended.seconds, asked)
        for event in alone.of("alone"):
            found["alone"] = event["images_per_second"]
        ended = alone if alone.code != 0 else ended
    return result(ended, found, row.limit, left)


def validation(row: Row, place: Place, left: float) -> Result | None:
    """Measure validations of a network that has seen the set once and twice; the second one is told."""
    data, pictures = make_data(row, place)
    ended, _ = _train(row, place, left, data, {"epochs": 2, "eval_interval": 1})
    told = ended.of("validation")
    found: Values = {}
    if told:
        found = {"pictures": float(pictures), "seconds": told[-1]["seconds"], "serial": told[-1]["serial"]}
    return result(ended, found, row.limit, left)


def roofline(row: Row, place: Place, left: float) -> Result | None:
    """Count the bytes of a step and measure the device's copy bandwidth."""
    data, _ = make_data(row, place)
    asked = {"model": row.model, "data": str(data), "keys": our_keys(row, place), "batch": place.batch or row.batch, "count": True}
    ended = _alone(row, place, min(row.limit, left), asked)
    found: Values = {}
    for event in ended.of("traffic"):
        largest = ", ".join(f"{name} {number / event['bytes_per_picture']:.0%}" for name, number in event["largest"])
        found = {"bytes": event["bytes_per_picture"], "bandwidth": event["copy_bytes_per_second"], "largest": largest}
    return result(ended, found, row.limit, left)


def theirs(row: Row, place: Place, left: float) -> Result | None:
    """Measure a peer by the row's script."""
    assert row.script is not None
    data, pictures = make_data(row, place)
    held = row.held if row.gpus == 1 else 0
    project = _fresh(place.scratch / "runs" / row.name)
    asked = {
        "data": str(data), "device": "cpu" if place.device == "cpu" else ",".join(map(str, range(row.gpus))), "gpus": row.gpus, "held": held,
        "size": row.model.removeprefix("yolo9"), "batch": (place.batch or row.batch) * row.gpus, "imgsz": place.imgsz or row.imgsz,
        "workers": _workers(row, place), "epochs": place.epochs, "project": str(project), "cache": row.keys.get("cache", False),
    }  # fmt: skip
    # Neither this repository nor the variables that lead to it: both packages are imported as libreyolo.
    env = {"PYTHONPATH": place.peer_site or ""}
    command: list[str | Path] = [place.peer_python or sys.executable, THEIRS / row.script, json.dumps(asked)]
    ended = run(command, cwd=project, env=env, limit=min(row.limit, left), cores=_cores(row, place))
    shutil.rmtree(project, ignore_errors=True)
    found = results_of(ended, pictures, place.epochs)
    for event in ended.of("epoch")[: place.epochs]:
        found |= {"memory_gb": event["memory_gb"]} if event["memory_gb"] else {}  # a peak: it only grows
    return result(ended, found, row.limit, left)


def _train(row: Row, place: Place, left: float, data: Path, more: Mapping[str, Any]) -> tuple[Ended, Path]:
    """Run a training of ours; return how it ended and its run directory."""
    run_dir = _fresh(place.scratch / "runs" / row.name)
    keys = {
        "model": row.model, "data": data, "batch": (place.batch or row.batch) * row.gpus, "workers": _workers(row, place), "save_plots": False,
        "report": False, "save_period": 0, **our_keys(row, place), **more, **_device(row, place), "hydra.run.dir": run_dir,
    }  # fmt: skip
    words = [f"{name}={word(value)}" for name, value in keys.items()]
    command = [sys.executable, "-m", "benchmarks.peers.ours", *words]
    ended = run(command, cwd=ROOT, env=_our_path(), limit=min(row.limit, left), cores=_cores(row, place))
    shutil.rmtree(run_dir / "weights", ignore_errors=True)
    return ended, run_dir


def word(value: Any) -> str:
    """Return a value as an argument of train.py."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value).replace(" ", "")


def _device(row: Row, place: Place) -> dict[str, Any]:
    if place.device == "cpu":
        return {"device": "cpu", **({"nproc": row.gpus} if row.gpus > 1 else {})}
    return {"device": 0 if row.gpus == 1 else list(range(row.gpus))}


def _alone(row: Row, place: Place, left: float, asked: Mapping[str, Any]) -> Ended:
    text = json.dumps({**asked, "steps": place.steps, "device": place.device})
    command = [sys.executable, "-m", "benchmarks.peers.alone", text]
    return run(command, cwd=ROOT, env=_our_path(), limit=left, cores=_cores(row, place))


def _our_path() -> dict[str, str]:
    """Return the variable that makes this repository's packages the first ones."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def _cores(row: Row, place: Place) -> list[int] | None:
    return available_cores()[: place.cores(row)] if place.device != "cpu" else None


def _workers(row: Row, place: Place) -> int:
    """Return the loader processes of a rank."""
    return place.cores(row) // row.gpus if place.workers is None else place.workers


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def results_of(ended: Ended, pictures: int, epochs: int) -> Values:
    """Return what the events of a training say: the rate of the epochs after the first, the share of waiting, the step alone, the start.

    Epochs beyond `epochs` ran on batches that lay on the device; the last of them is the step alone.
    """
    found: Values = {}
    stamps = [event["time"] for event in ended.of("epoch")]
    normal = stamps[:epochs]
    if len(normal) > 1:
        seconds = normal[-1] - normal[0]
        found["images_per_second"] = pictures * (len(normal) - 1) / seconds
        waited = [event["seconds"] for event in ended.of("waited")][1 : len(normal)]
        found |= {"waiting": sum(waited) / seconds} if waited else {}
    if len(stamps) == epochs + HELD_EPOCHS:
        found["alone"] = pictures / (stamps[-1] - stamps[-2])
    for event in ended.of("first step")[:1]:
        found["first_step_s"] = event["time"] - ended.began
    for event in ended.of("version")[:1]:
        found["version"] = event["version"]
    return found


def records(run_dir: Path) -> Values:
    """Return what results.csv of a run says of the epochs after the first."""
    rows = read_results(run_dir / "results.csv")
    later = rows[1:] or rows
    columns = {"waiting": "system/waiting_share", "in_epoch": "system/images_per_second"}
    found: Values = {name: sum(float(r[column] or 0) for r in later) / len(later) for name, column in columns.items() if later}
    memory = max((float(r["system/gpu_memory_gb"] or 0) for r in rows), default=0.0)
    return found | ({"memory_gb": memory} if memory else {})  # 0: a CPU


def result(ended: Ended, values: Values, limit: float, left: float) -> Result | None:
    """Return the row of a process that has ended; None where the call's time ended it, so that a later call measures it whole."""
    version = str(values.pop("version", ""))
    if ended.code is None and left < limit:
        return None
    if ended.code is None:
        return Result("cut off", values, f"{version} after {limit:.0f} s".strip(), ended.tail)
    if ended.code == NOT_HERE:
        return Result("not here", {}, "; ".join(event["why"] for event in ended.of("not here")))
    if ended.code != 0:
        last = ended.tail[-1].strip()[:120] if ended.tail else ""
        return Result("failed", values, f"{version} exit {ended.code}: {last}".strip(), ended.tail)
    return Result("done", values, version)


NO_AUX = {"aux_weight": 0.0}
GRAPH = {"cuda_graph": True}
UNCACHED = {"cache": False}
CLASSIFIER = Row("resnet50", ours, "resnet50", batch=256, imgsz=224, data=sets.class_folders, repeat=8)

ROWS = [
    Row("ours", ours),
    Row("ours-no-aux", ours, keys=NO_AUX),
    Row("libreyolo", theirs, script="libreyolo_peer.py", held=0, limit=300),
    Row("ultralytics", theirs, script="ultralytics_peer.py", limit=240),
    Row("ultralytics-ram", theirs, keys={"cache": "ram"}, script="ultralytics_peer.py", step_of="ultralytics", held=0, limit=240),
    Row("ours-graph", ours, keys=GRAPH),
    Row("ours-no-aux-graph", ours, keys={**NO_AUX, **GRAPH}),
    Row("ours-uncached", ours, keys=UNCACHED, step_of="ours"),
    Row("ours-no-aux-uncached", ours, keys={**NO_AUX, **UNCACHED}, step_of="ours-no-aux"),
    Row("ours-4-cores", ours, cores=4, step_of="ours"),
    Row("ours-no-aux-4-cores", ours, keys=NO_AUX, cores=4, step_of="ours-no-aux"),
    Row("ours-no-aux-graph-4-cores", ours, keys={**NO_AUX, **GRAPH}, cores=4, step_of="ours-no-aux-graph"),
    Row("ours-no-aux-uncached-4-cores", ours, keys={**NO_AUX, **UNCACHED}, cores=4, step_of="ours-no-aux"),
    Row("ours-no-aux-apart", ours, keys={**NO_AUX, "fused": False}),
    Row("ours-no-aux-search", ours, keys={**NO_AUX, **GRAPH, "cudnn_benchmark": True}),
    Row("ours-no-aux-compile", ours, keys={**NO_AUX, "compile": True}, limit=480),
    Row("yoloxs", ours, "yoloxs"),
    Row("rtdetrr18", ours, "rtdetrr18", batch=32),
    CLASSIFIER,
    replace(CLASSIFIER, name="resnet50-uncached", keys=UNCACHED, step_of="resnet50"),
    Row("unets", ours, "unets", batch=16, imgsz=512, data=sets.masks, few=True, repeat=0.25),
    Row("nafnets", ours, "nafnets", batch=32, imgsz=256, data=sets.pairs, few=True, repeat=0.5),
    Row("validation", validation, keys=NO_AUX, data=sets.judged_detection),
    Row("roofline", roofline),
    Row("roofline-no-aux", roofline, keys=NO_AUX),
    Row("ours-2-gpus", ours, gpus=2, step_of="ours"),
    Row("ours-no-aux-2-gpus", ours, keys=NO_AUX, gpus=2, step_of="ours-no-aux"),
    Row("ours-no-aux-long", ours, keys=NO_AUX, repeat=LONG, step_of="ours-no-aux"),
    Row("ours-no-aux-long-2-gpus", ours, keys=NO_AUX, gpus=2, repeat=LONG, step_of="ours-no-aux"),
    Row("libreyolo-2-gpus", theirs, script="libreyolo_peer.py", gpus=2, step_of="libreyolo"),
    Row("ultralytics-2-gpus", theirs, script="ultralytics_peer.py", gpus=2, step_of="ultralytics"),
    Row("validation-2-gpus", validation, keys=NO_AUX, gpus=2, data=sets.judged_detection),
]
