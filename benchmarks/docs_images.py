"""The pictures in docs/images, from the demo runs: one command makes them all (`make pictures`).

    python -m benchmarks.docs_images [--out FOLDER] [--only NAME ...]

Every row of DEMOS is trained as a user would (`python train.py experiment=demo`), into FOLDER/EXPERIMENT; a run that is complete there is used as it
is, one that was interrupted goes on. Then the named pictures of its plots/ are written to docs/images/TASK_NAME.png, at most 150 kB each. Where a
Chromium is installed, docs/images/report.png shows the top of the first run's report.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 150_000
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Demo:
    """One task's demo: the name of its files, its experiment in conf/experiment, and which of its plots are worth showing."""

    task: str
    experiment: str
    pictures: tuple[str, ...]


DEMOS = (
    Demo("detect", "demo", ("predictions", "curves", "confusion", "pr_curve")),
    Demo("classify", "demo-classify", ("predictions", "curves", "confusion")),
    Demo("semantic", "demo-semantic", ("predictions", "curves", "iou")),
    Demo("restore", "demo-restore", ("restored", "curves", "psnr")),
    Demo("point", "demo-point", ("predictions", "curves")),
)


def available(demos: tuple[Demo, ...] = DEMOS) -> list[Demo]:
    """Return the demos whose experiment this checkout has."""
    return [demo for demo in demos if (ROOT / "conf" / "experiment" / f"{demo.experiment}.yaml").exists()]


def trained(demo: Demo, out: Path) -> Path:
    """Train a demo into out/experiment unless it is complete there; return its run directory."""
    run = out / demo.experiment
    status = json.loads((run / "status.json").read_text()) if (run / "status.json").exists() else {}
    if status.get("state") != "completed":
        begun = (run / "weights" / "last.pt").exists()
        words = [f"resume={run}"] if begun else [f"experiment={demo.experiment}", f"hydra.run.dir={run}", "exist_ok=true"]
        subprocess.run([sys.executable, str(ROOT / "train.py"), *words], check=True, cwd=ROOT)
    return run


def shrunk(picture: Image.Image, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the largest PNG of the picture that fits, in fewer colours before fewer pixels."""
    for content in _smaller_and_smaller(picture.convert("RGB")):
        if len(content) <= max_bytes:
            return content
    raise ValueError(f"a picture of {picture.size} pixels does not fit into {max_bytes} bytes")


def _smaller_and_smaller(picture: Image.Image) -> Iterator[bytes]:
    yield _png(picture)
    width = min(picture.width, 1300)
    while width >= 100:
        scaled = picture.resize((width, max(round(picture.height * width / picture.width), 1)), Image.Resampling.LANCZOS)
        for colors in (256, 96):
            yield _png(scaled.quantize(colors, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))
        width = int(width * 0.88)


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def screenshot(page: Path, width: int, height: int) -> Image.Image | None:
    """Return the top of a run's page as a browser shows it, with the paths of no machine; None where there is no browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        shot, copy = Path(folder) / "shot.png", Path(folder) / "page.html"
        shown = page.read_text().replace(str(page.parent), f"outputs/{page.parent.name}").replace(sys.executable, "python")
        copy.write_text(shown.replace(f"{ROOT}/", ""))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        subprocess.run([browser, *options, f"--window-size={width},{height}", f"--screenshot={shot}", copy.as_uri()], check=True, capture_output=True)
        with Image.open(shot) as picture:
            return picture.convert("RGB")


def write(name: str, content: bytes) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / name).write_bytes(content)
    print(f"docs/images/{name}  {len(content) / 1000:.0f} kB")


def main() -> None:
    """Make the pictures of every demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "docs_images", help="where the runs are, or will be")
    parser.add_argument("--only", nargs="+", default=None, metavar="EXPERIMENT", help="these experiments alone")
    chosen = parser.parse_args()
    demos = [demo for demo in available() if chosen.only is None or demo.experiment in chosen.only]
    for demo in demos:
        run = trained(demo, chosen.out.resolve())
        for picture in demo.pictures:
            source = run / "plots" / f"{picture}.png"
            if not source.exists():
                print(f"{demo.experiment} has drawn no {picture}.png")
                continue
            with Image.open(source) as drawn:
                write(f"{demo.task}_{picture}.png", shrunk(drawn))
        shot = screenshot(run / "report.html", 1100, 1240) if demo is available()[0] else None
        if shot is not None:
            write("report.png", shrunk(shot))


if __name__ == "__main__":
    main()
