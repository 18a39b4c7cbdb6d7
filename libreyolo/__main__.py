"""The shell's door to a trained model: python -m libreyolo val|predict ..."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from launch import is_one_sentence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except Exception as error:
        if not is_one_sentence(error):
            raise
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m libreyolo", description="Use a trained model from the shell. Training: python train.py --help.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    val = commands.add_parser("val", help="metrics of a model on a split", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    val.add_argument("model", help="weights file, published name or run/weights/best.pt")
    val.add_argument("--data", help="data.yaml; the one that the weights were trained on when left out")
    val.add_argument("--split", default="val", choices=("train", "val", "test"))
    val.add_argument("--conf", type=float, default=0.001, help="lowest score that counts")
    val.add_argument("--iou", type=float, default=0.6, help="overlap above which the weaker box goes")
    _shared(val)
    val.add_argument("--batch", type=int, default=16)
    val.add_argument("--workers", type=int, default=4)
    val.set_defaults(run=_val)
    predict = commands.add_parser("predict", help="predictions on pictures", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    predict.add_argument("model", help="weights file, published name or run/weights/best.pt")
    predict.add_argument("source", help="picture, folder or pattern")
    predict.add_argument("--conf", type=float, default=0.25, help="lowest score kept")
    predict.add_argument("--iou", type=float, default=0.45, help="overlap above which the weaker box goes")
    predict.add_argument("--classes", type=int, nargs="+", help="keep only these class ids")
    predict.add_argument("--batch", type=int, default=1)
    predict.add_argument("--save", default="predictions", help="folder for the drawn pictures")
    _shared(predict)
    predict.set_defaults(run=_predict)
    return parser


def _shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--imgsz", type=int, nargs="+", help="side, or height and width; the model's own when left out")
    parser.add_argument("--device", default="auto", help="auto, cpu, mps or a GPU's index")
    parser.add_argument("--max-det", type=int, default=300, help="most predictions for one picture")


def _size(values: list[int] | None) -> dict[str, int | list[int]]:
    return {} if values is None else {"imgsz": values[0] if len(values) == 1 else values}


def _val(chosen: argparse.Namespace) -> int:
    from libreyolo.api import LibreYOLO

    metrics = LibreYOLO(chosen.model).val(
        chosen.data,
        split=chosen.split,
        conf=chosen.conf,
        iou=chosen.iou,
        batch=chosen.batch,
        workers=chosen.workers,
        device=chosen.device,
        max_det=chosen.max_det,
        **_size(chosen.imgsz),
    )
    for name, value in metrics.items():
        sys.stdout.write(f"{name:<24} {value:.4f}\n")
    return 0


def _predict(chosen: argparse.Namespace) -> int:
    from libreyolo.api import LibreYOLO

    results = LibreYOLO(chosen.model).predict(
        chosen.source,
        conf=chosen.conf,
        iou=chosen.iou,
        classes=chosen.classes,
        batch=chosen.batch,
        save=chosen.save,
        device=chosen.device,
        max_det=chosen.max_det,
        **_size(chosen.imgsz),
    )
    for result in results:
        counts = {name: int((result.cls == i).sum()) for i, name in result.names.items()}
        found = ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "nothing"
        sys.stdout.write(f"{result.path}: {found}\n")
    sys.stdout.write(f"Drawn pictures: {chosen.save}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
