"""Parallel coordinates: one upright axis for each swept key, one for the metric, one line for each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libreyolo.record.numbers import number
from libreyolo.record.plots.panels import WIDE
from libreyolo.record.report.axes import Axis, linear, logarithmic
from libreyolo.record.report.html import Markup, element, text
from libreyolo.record.report.sweep_facts import SweepFacts, SweepJob, as_number

GAP, HEIGHT = 150, 280  # between axes; of the whole diagram
TOP, BOTTOM, SIDE = 34, 16, 72
LETTERS = 14  # of a name or value beside an axis


@dataclass(frozen=True)
class _Scale:
    """Where an axis puts values: numbers along `axis`, else texts at equal distances."""

    title: str
    axis: Axis | None
    choices: Sequence[str] = ()

    def y(self, value: str) -> float:
        share = self.axis.share(float(value)) if self.axis else (self.choices.index(value) + 0.5) / len(self.choices)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def ticks(self) -> list[tuple[str, str]]:
        """Return (value, what is written) for the axis."""
        if self.axis:
            return [(str(tick), f"{tick:g}") for tick in self.axis.ticks]
        return [(choice, choice or "–") for choice in self.choices]


def parallel_coordinates(sweep: SweepFacts) -> Markup:
    """Return the diagram; nothing where fewer than two jobs or no swept key could be compared. Failed jobs end before the metric."""
    judged = [job for job in sweep.jobs if job.facts.metric is not None]
    if len(sweep.jobs) < 2 or not sweep.swept or not judged or len(sweep.metric_names) > 1:
        return Markup("")
    scales = [_scale(key, [job.values[key] for job in sweep.jobs]) for key in sweep.swept]
    metric = _Scale(sweep.metric_names[0], linear([job.facts.metric for job in judged if job.facts.metric is not None]))
    width = 2 * SIDE + GAP * len(scales)
    axes = [_upright(scale, SIDE + GAP * place, last=scale is metric) for place, scale in enumerate([*scales, metric])]
    # The best one is drawn last, on top.
    lines = [_job(job, scales, metric, rank, len(judged)) for rank, job in reversed(list(enumerate(sweep.jobs)))]
    title = element("title", f"Swept values against {metric.title}")
    # Wider than a narrow window where there are many keys: the diagram scrolls in its frame then, the page does not.
    picture = element(
        "svg", title, lines, axes, viewBox=f"0 0 {width} {HEIGHT}", role="img", style=f"width:{1.25 * width:.0f}px;max-width:max(100%,{width}px)"
    )
    thirds = [("c0", "best third"), ("c4", "middle"), ("c1", "last third"), ("c6", "without a metric")]
    legend = element(
        "ul", [element("li", element("span", class_=f"mark {color}", aria_hidden="true"), name) for color, name in thirds], class_="legend"
    )
    return text([element("div", picture, class_="parallel scroll", tabindex="0"), legend])


def _scale(key: str, values: Sequence[str]) -> _Scale:
    numbers = [as_number(value) for value in values]
    found = [value for value in numbers if value is not None]
    if len(found) < len(values) or len(set(found)) < 2:
        return _Scale(key, None, sorted(set(values)))
    return _Scale(key, logarithmic(found) if min(found) > 0 and max(found) / min(found) > WIDE else linear(found))


def _upright(scale: _Scale, x: float, *, last: bool) -> Markup:
    """Return an axis with its name and numbers, which are on the outer side of the last one."""
    parts = [
        element("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="axis"),
        element("text", element("title", scale.title), _short(scale.title), x=x, y=18, text_anchor="middle", class_="name"),
    ]
    for value, written in scale.ticks():
        y = scale.y(value)
        side, anchor = (1, "start") if last else (-1, "end")
        parts.append(element("line", x1=x, x2=x + 4 * side, y1=y, y2=y, class_="axis"))
        parts.append(element("text", element("title", written), _short(written), x=x + 8 * side, y=y + 4, text_anchor=anchor))
    return element("g", parts)


def _job(job: SweepJob, scales: Sequence[_Scale], metric: _Scale, rank: int, num_judged: int) -> Markup:
    """One job's line; its colour tells its third of the order, the best one is thick."""
    places = [(SIDE + GAP * i, scale.y(job.values[scale.title])) for i, scale in enumerate(scales)]
    value = job.facts.metric
    if value is not None:
        places.append((SIDE + GAP * len(scales), metric.y(str(value))))
    elif len(places) == 1:  # a line needs two ends
        places.append((places[0][0] + GAP // 3, places[0][1]))
    third = min(3 * rank // max(num_judged, 1), 2)
    kind = "c6 failed" if value is None else f"c{(0, 4, 1)[third]}{' first' if rank == 0 else ''}"
    said = ", ".join(f"{key}={job.values[key]}" for key in job.values)
    told = f"job {job.name}: {said}; " + (f"{metric.title} {number(value)}" if value is not None else job.facts.state)
    line = element("polyline", points=" ".join(f"{x},{y}" for x, y in places))
    dots = [element("circle", cx=x, cy=y, r=3) for x, y in places]
    return element("g", element("title", told), line, dots, class_=f"job {kind}")


def _short(name: str) -> Markup:
    return text(name if len(name) <= LETTERS else name[: LETTERS - 1] + "…")
