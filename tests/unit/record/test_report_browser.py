"""Both pages in a real browser: light and dark, wide and narrow, with scripts and without."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from libreyolo.recipe import Recipe, recipe_fields
from libreyolo.record.report.run_page import write_run_report
from libreyolo.record.report.sweep_page import write_sweep_report
from tests.unit.record.report_pages import HOSTILE, make_run

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, BROWSERS)), None)
# For a closed network too: a browser that asks nobody for anything.
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

# Looks into every frame and writes what it saw where --dump-dom shows it.
LOOK = """
window.onload = () => {
  const told = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, root = page.documentElement, table = page.querySelector("table.sortable");
    const column = (index) => [...table.tBodies[0].rows].map((row) => row.cells[index].textContent);
    const seen = { overflow: root.scrollWidth - root.clientWidth, background: getComputedStyle(page.body).backgroundColor };
    seen.scripts = page.querySelectorAll("th button, .command button").length;
    seen.alerts = page.querySelectorAll("script").length;
    const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.classList.contains("num"));
    seen.before = column(place);
    if (seen.scripts) {
      for (const clicks of ["once", "twice"]) {
        table.tHead.rows[0].cells[place].querySelector("button").click();
        seen[clicks] = column(place);
      }
    }
    const svg = page.querySelector("svg[data-lines]");
    if (svg) {
      const box = svg.getBoundingClientRect(), caption = svg.parentNode.querySelector("figcaption");
      svg.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", { clientX: box.left + 1 }));
      seen.caption = caption.textContent;
      seen.value = svg.parentNode.querySelector(".legend .now").textContent;
      svg.dispatchEvent(new frame.contentWindow.PointerEvent("pointerleave"));
      seen.after = caption.textContent;
    }
    seen.pictures = [...page.images].map((picture) => picture.naturalWidth);
    told[frame.id] = seen;
  }
  document.querySelector("#told").textContent = JSON.stringify(told);
};
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The page of a run and of a sweep of three jobs."""
    sweep = tmp_path_factory.mktemp("sweep")
    for job, metric in enumerate((0.5, 0.7, None)):
        run = make_run(sweep / str(job), overrides=[f"lr0={10**job}", f"name='{HOSTILE}'", "with_a_rather_long_name=1"], metric=metric)
        page = write_run_report(run, recipe_fields(Recipe)).read_text()
    written = write_sweep_report(sweep)
    assert written is not None
    return {"run": page, "sweep": written.read_text()}


@pytest.fixture(scope="module")
def seen(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the browser saw of each page, by "page width scheme" (and "run 375 still": without scripts)."""
    if FOUND is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed; test_report*.py read the same pages without a browser")
    folder: Path = tmp_path_factory.mktemp("browser")
    frames = []
    for name, page in pages.items():
        for width, scheme in ((375, "light"), (375, "dark"), (1200, "light"), (1200, "dark"), (375, "still")):
            sandbox = ' sandbox="allow-same-origin"' if scheme == "still" else ""
            style = f"color-scheme:{'dark' if scheme == 'dark' else 'light'};border:0"
            frames.append(
                f'<iframe id="{name} {width} {scheme}" width="{width}" height="900" style="{style}" srcdoc="{html.escape(page)}"{sandbox}></iframe>'
            )
    outer = folder / "outer.html"
    outer.write_text(f'<!doctype html><meta charset="utf-8"><pre id="told"></pre>{"".join(frames)}<script>{LOOK}</script>', encoding="utf-8")
    command = [FOUND, "--headless", *QUIET, "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not re.search(r"CONSOLE.*(Uncaught|Refused)", done.stderr.replace("about:srcdoc", "")), done.stderr
    (told,) = re.findall(r'<pre id="told">(.*?)</pre>', done.stdout)
    return json.loads(html.unescape(told))


def test_no_page_scrolls_sideways_on_a_narrow_window_or_a_wide_one(seen):
    assert len(seen) == 10
    assert {name: frame["overflow"] for name, frame in seen.items() if frame["overflow"] != 0} == {}


def test_pages_are_dark_where_the_reader_likes_it_dark(seen):
    for name, frame in seen.items():
        red, green, blue = map(int, re.findall(r"\d+", frame["background"])[:3])
        assert (red + green + blue < 150) is name.endswith("dark"), (name, frame["background"])


def test_a_click_sorts_numbers_down_and_another_one_up_with_the_unknown_last(seen):
    frame = seen["sweep 1200 light"]
    assert (frame["before"], frame["once"], frame["twice"]) == (["10", "1", "100"], ["100", "10", "1"], ["1", "10", "100"])
    frame = seen["run 1200 light"]
    assert (frame["once"], frame["twice"]) == (["5", "4", "3", "2", "1"], ["1", "2", "3", "4", "5"])


def test_a_diagram_tells_the_values_under_the_pointer(seen):
    frame = seen["run 375 dark"]
    assert (frame["caption"], frame["value"], frame["after"]) == ("Loss, epoch 1", "8", "Loss")


def test_pictures_are_shown_and_nothing_of_the_users_is_run(seen):
    for name, frame in seen.items():
        assert frame["pictures"] == ([64] if name.startswith("run") else [])
        assert frame["alerts"] == 1  # the page's own script


def test_without_scripts_everything_is_there_and_nothing_pretends_to_work(seen):
    assert seen["run 375 still"]["scripts"] == seen["sweep 375 still"]["scripts"] == 0
    assert seen["sweep 375 still"]["before"] == ["10", "1", "100"]
    assert seen["run 375 light"]["scripts"] > 5


def luminance(color: str) -> float:
    """Relative luminance of "#rrggbb", as WCAG 2.1 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_texts_and_lines_stand_out_in_light_and_dark():
    css = files("libreyolo.record.report").joinpath("page.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)]
    assert len(schemes) == 2
    for colors in schemes:
        weak = {
            (name, ground): round(contrast(colors[name], colors[ground]), 2)
            for names, least in ((("ink", "soft", "link", "good", "bad", "warn"), 4.5), ([f"c{i}" for i in range(7)], 3.0))
            for name in names
            for ground in ("page", "card", "mark")
            if contrast(colors[name], colors[ground]) < least
        }
        assert weak == {}
