"""The pictures of a run inside its page, none larger than a page needs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from libreyolo.record.report.html import Markup, element

MAX_BYTES = 400_000  # of a PNG that goes in as it is
MAX_WIDTH = 1400  # pixels of one that is too large for that; it goes in as a JPEG
MAX_PICTURES = 40
# What the drawers of the tasks call their pictures (libreyolo/record/plots); any other is captioned by its name.
CAPTIONS = {
    "predictions": "Validation pictures, the worst mistakes first: what is true beside what the network says",
    "restored": "Validation pictures, the worst first: before, restored, and as they should be",
    "confusion": "What is taken for what; a column holds what is truly of a class",
    "pr_curve": "Precision against recall",
    "f1_curve": "F1, precision and recall against the confidence threshold",
    "iou": "Overlap of what is seen with what is true, by class",
    "psnr": "Every validation picture before and after",
    "train_batch": "A training batch as the network sees it",
    "labels": "What is labelled in the training data",
    "data": "What is in the training data",
    "curves": "The curves above as one picture",
}


def gallery(paths: Sequence[Path]) -> list[Markup]:
    """Return a figure for each PNG, those with a caption of their own first. One that cannot be read is named, no more."""
    known = list(CAPTIONS)
    ordered = sorted(paths, key=lambda path: (known.index(path.stem) if path.stem in known else len(known), path.name))
    figures = [_figure(path) for path in ordered[:MAX_PICTURES]]
    if len(ordered) > MAX_PICTURES:
        figures.append(element("p", f"{len(ordered) - MAX_PICTURES} more pictures are in plots/."))
    return figures


def _figure(path: Path) -> Markup:
    caption = CAPTIONS.get(path.stem, path.stem.replace("_", " "))
    try:
        kind, content, (width, height) = _embedded(path)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        return element("p", f"{path.name} could not be read ({type(error).__name__}).", class_="none")
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    picture = element("img", src=source, alt=caption, width=width, height=height)
    link = element("a", picture, href=f"plots/{quote(path.name)}", title="open the file itself")
    return element("figure", link, element("figcaption", caption, " ", element("code", path.name)), class_="picture")


def _embedded(path: Path) -> tuple[str, bytes, tuple[int, int]]:
    """Return format, content and (width, height) of a picture as it goes into the page. Raises OSError or ValueError for one that is broken."""
    content = path.read_bytes()
    with Image.open(io.BytesIO(content)) as picture:
        picture.load()  # one that is cut off ends here, not in the reader's browser
        if len(content) <= MAX_BYTES:
            return "png", content, picture.size
        plain = Image.new("RGB", picture.size, "white")
        plain.paste(picture.convert("RGB"), mask=picture.getchannel("A") if picture.mode == "RGBA" else None)
    if plain.width > MAX_WIDTH:
        plain = plain.resize((MAX_WIDTH, max(round(plain.height * MAX_WIDTH / plain.width), 1)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    plain.save(buffer, "JPEG", quality=85, optimize=True)
    return "jpeg", buffer.getvalue(), plain.size
