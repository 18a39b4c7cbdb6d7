"""The shell's door: python -m libreyolo check|val|predict|report ..."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch import is_one_sentence
from libreyolo.errors import UserError, printable
from libreyolo.interfaces.family import FILE_SUFFIX
from libreyolo.record.run_log import SafeFormatter

EXAMPLES = """examples:
  python -m libreyolo check my.yaml
  python -m libreyolo check my.yaml --save samples.png
  python -m libreyolo val outputs/2026-01-31/12-00-00-1a2b/weights/best.pt
  python -m libreyolo val LibreYOLO9s.pt --data my.yaml --split test
  python -m libreyolo predict best.pt photo.jpg --conf 0.4
  python -m libreyolo predict best.pt "photos/*.jpg" --save drawn
  python -m libreyolo report outputs/2026-01-31/12-00-00-1a2b
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(SafeFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[terminal])
    chosen = _parser().parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except Exception as error:
        if not is_one_sentence(error):
            raise
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m libreyolo",
        description="Look at a data set, or use a trained model. Training: python train.py --help.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser(
        "check",
        help="look at a data set before training on it",
        description="Count what a training would read, skip and drop, and why; look for leaks between the splits. Nothing is written into the data. "
        "The exit code is 1 where a training would stop.",
    )
    check.add_argument("data", help="data.yaml, or what the task's training takes as data")
    check.add_argument("--task", default="detect", choices=tuple(FILE_SUFFIX))
    check.add_argument("--save", metavar="FILE.png", help="write a page of samples with their labels")
    check.add_argument("--places", type=int, default=5, metavar="N", help="files shown for each finding (5)")
    check.set_defaults(run=_check)
    val = commands.add_parser(
        "val", help="metrics of a model on a split", formatter_class=argparse.ArgumentDefaultsHelpFormatter, argument_default=argparse.SUPPRESS
    )
    val.add_argument("model", help="weights file, published name or run/weights/best.pt")
    val.add_argument("--data", help="data.yaml; the one that the weights were trained on when left out")
    val.add_argument("--split", default="val", choices=("train", "val", "test"))
    val.add_argument("--conf", type=float, help="lowest score that counts (boxes: 0.001)")
    val.add_argument("--iou", type=float, help="overlap above which the weaker box goes (0.6)")
    _shared(val, "most predictions for one picture; as in the training when left out")
    val.add_argument("--batch", type=int, default=16, help="pictures at a time")
    val.add_argument("--workers", type=int, default=4, help="loader processes")
    val.set_defaults(run=_val)
    predict = commands.add_parser(
        "predict", help="predictions on pictures", formatter_class=argparse.ArgumentDefaultsHelpFormatter, argument_default=argparse.SUPPRESS
    )
    predict.add_argument("model", help="weights file, published name or run/weights/best.pt")
    predict.add_argument("source", nargs="+", help="picture, folder or pattern; several are predicted one after another")
    predict.add_argument("--conf", type=float, help="lowest score kept (boxes: 0.25)")
    predict.add_argument("--iou", type=float, help="overlap above which the weaker box goes (0.45)")
    predict.add_argument("--classes", type=int, nargs="+", metavar="ID", help="keep only these class ids")
    predict.add_argument("--batch", type=int, default=1, help="pictures at a time")
    predict.add_argument("--save", default="predictions", help="folder for the drawn (or restored) pictures")
    _shared(predict, "most predictions for one picture (300)")
    predict.set_defaults(run=_predict)
    report = commands.add_parser("report", help="write the report.html of a run that was killed, or of a sweep, from what is in its directory")
    report.add_argument("directory", help="run or sweep directory")
    report.set_defaults(run=_report)
    commands.metavar = f"{{{','.join(commands.choices)}}}"  # whoever leaves the command out is told which there are
    return parser


def _shared(parser: argparse.ArgumentParser, max_det_help: str) -> None:
    parser.add_argument("--imgsz", type=int, nargs="+", metavar="N", help="side, or height and width; the model's own when left out")
    parser.add_argument("--device", default="auto", help="auto, cpu, mps or a GPU's index")
    parser.add_argument("--max-det", type=int, help=max_det_help)


def _given(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the options as arguments of the Python door; one that was left out and has no default is not among them."""
    return {k: v for k, v in vars(chosen).items() if k not in ("model", "source", "run")}


def _check(chosen: argparse.Namespace) -> int:
    from libreyolo.assembly import check
    from libreyolo.record.data_report import write_report

    report = check(chosen.data, task=chosen.task)
    write_report(report, sys.stdout, num_places=chosen.places)
    if chosen.save and report.draw_samples is None:
        sys.stdout.write("There is nothing to draw.\n")
    elif chosen.save and report.draw_samples is not None:
        try:
            report.draw_samples(Path(chosen.save))
        except OSError as error:
            raise UserError(f"{chosen.save} could not be written ({error.strerror or error}); choose another place.") from error
        sys.stdout.write(f"Samples: {printable(chosen.save)}\n")
    return int(report.has_errors)


def _val(chosen: argparse.Namespace) -> int:
    from libreyolo.api import LibreYOLO

    metrics = LibreYOLO(chosen.model).val(**_given(chosen))
    for name, value in metrics.items():
        is_count = value > 1 and float(value).is_integer()
        sys.stdout.write(f"{name:<24} {value:.{0 if is_count else 4}f}\n")
    return 0


def _predict(chosen: argparse.Namespace) -> int:
    from libreyolo.api import LibreYOLO

    results = LibreYOLO(chosen.model).predict(chosen.source, **_given(chosen))
    for result in results:
        sys.stdout.write(printable(f"{result.path}: {result.summary()}") + "\n")
    sys.stdout.write(f"Pictures: {chosen.save}\n")
    return 0


def _report(chosen: argparse.Namespace) -> int:
    from launch.rundir import is_run
    from libreyolo import schema
    from libreyolo.recipe import recipe_fields
    from libreyolo.record.report.facts import read_run
    from libreyolo.record.report.run_page import write_run_report
    from libreyolo.record.report.sweep_page import write_sweep_report

    directory = Path(chosen.directory)
    family = schema.families().get(str(read_run(directory).config.get("family")))
    keys = recipe_fields(family.recipe) if family else {}
    page = write_run_report(directory, keys) if is_run(directory) else write_sweep_report(directory) if directory.is_dir() else None
    if page is None:
        found = f"{directory} holds neither a run nor the jobs of a sweep"
        raise UserError(f"{found}; name the directory with a run's results.csv, or the one above a sweep's jobs.")
    sys.stdout.write(f"{page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
