"""Which diagrams a run's columns make, and where a diagram puts its values."""

from __future__ import annotations

import json

import pytest

from libreyolo.record.plots.panels import MAX_LINES, Panel, panels_of
from libreyolo.record.report.axes import linear, logarithmic
from libreyolo.record.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, line_chart
from tests.unit.record.report_pages import Reader

BEST = {"best_metric": 0.4, "best_epoch": 2, "best_metric_name": "metrics/recall"}


def rows_of(**columns: list[float | None]) -> list[dict]:
    names = {name: name.replace("__", "/") for name in columns}
    return [{"epoch": i + 1, **{names[name]: values[i] for name, values in columns.items()}} for i in range(len(next(iter(columns.values()))))]


def drawn(panel: Panel) -> Reader:
    reader = Reader()
    reader.feed(line_chart(panel))
    reader.close()
    assert reader.open == []
    return reader


def test_the_total_loss_comes_first_then_parts_by_size_and_validation_beside_training():
    rows = rows_of(train__loss=[9.0, 6.0], train__a_loss=[1.0, 1.0], train__b_loss=[8.0, 5.0], val__a_loss=[None, 2.0])
    (panel, *_) = panels_of(rows)
    assert list(panel.lines) == ["total", "b", "a", "a (val)"]
    assert panel.lines["a (val)"] == ([2], [2.0]) and panel.is_dashed("a (val)") and not panel.is_dashed("a")


def test_a_lone_part_is_the_total():
    (panel, *_) = panels_of(rows_of(train__loss=[9.0, 6.0], train__cls_loss=[9.0, 6.0]))
    assert list(panel.lines) == ["total"]


def test_what_is_reported_beside_the_loss_and_is_no_part_of_it_has_a_diagram_of_its_own():
    loss, beside, *_ = panels_of(rows_of(train__loss=[5.0, 3.0], train__a_loss=[3.0, 2.0], train__b_loss=[2.0, 1.0], train__psnr_loss=[20.0, 30.0]))
    assert list(loss.lines) == ["total", "a", "b"]
    assert (beside.title, beside.lines) == ("Training: psnr", {"psnr": ([1, 2], [20.0, 30.0])})


def test_a_loss_that_falls_far_has_a_logarithmic_axis_and_one_that_reaches_zero_has_not():
    assert panels_of(rows_of(train__loss=[50.0, 1.0]))[0].log
    assert not panels_of(rows_of(train__loss=[50.0, 0.0]))[0].log
    assert not panels_of(rows_of(train__loss=[5.0, 1.0]))[0].log


def test_the_best_metric_leads_its_panel_and_other_names_of_a_metric_are_left_out():
    columns = {
        "metrics__fitness": [0.3, 0.4],
        "metrics__precision": [0.1, 0.2],
        "metrics__recall": [0.3, 0.4],
        "metrics__recall(B)": [0.3, 0.4],
        "metrics__max_det": [300.0, 300.0],
    }
    panel = panels_of([row | BEST for row in rows_of(**columns)])[1]
    assert (panel.title, list(panel.lines), panel.best) == ("Validation", ["recall", "precision"], (2, 0.4))
    first = panels_of([row | BEST for row in rows_of(**{name: values[:1] for name, values in columns.items()})])[1]
    assert list(first.lines) == ["recall", "precision"]
    begun = panels_of([row | BEST for row in rows_of(metrics__fitness=[0.0], metrics__recall=[0.0])])[1]
    assert list(begun.lines) == ["recall", "fitness"]  # all begin at 0


def test_a_metric_beyond_one_has_a_panel_of_its_own_in_front_when_it_chooses_the_best():
    rows = [
        row | {"best_metric_name": "metrics/PSNR", "best_metric": 30.0, "best_epoch": 2}
        for row in rows_of(metrics__SSIM=[0.5, 0.8], metrics__PSNR=[25.0, 30.0])
    ]
    _loss, first, second, *_ = panels_of(rows)
    assert (first.title, first.best) == ("Validation: PSNR", (2, 30.0))
    assert (second.title, list(second.lines), second.best) == ("Validation: SSIM", ["SSIM"], None)


def test_more_metrics_than_a_diagram_holds_are_counted():
    panel = panels_of([row | BEST for row in rows_of(**{f"metrics__m{i}": [i / 100] for i in range(MAX_LINES + 3)})])[1]
    assert (len(panel.lines), panel.left_out) == (MAX_LINES, 3)


def test_speed_is_what_the_columns_say_else_the_time_of_an_epoch():
    told = panels_of(rows_of(time=[2.0, 5.0], system__images_per_second=[10.0, 12.0], system__gpu_memory_gb=[0.0, 0.0]))
    assert [panel.title for panel in told[3:]] == ["Images per second"]
    (untold,) = panels_of(rows_of(time=[2.0, 5.0, 6.0]))[3:]
    assert untold.lines == {"seconds": ([1, 2, 3], [2.0, 3.0, 1.0])}
    assert panels_of([{"epoch": 7, "time": 70.0}])[3:] == []  # a resumed run's first row: what it took alone is not known


@pytest.mark.parametrize(
    ("axis", "ends", "ticks"),
    [
        (linear([0.31, 0.92]), (0.0, 1.0), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (linear([28.0, 31.0]), (28.0, 31.0), (28.0, 29.0, 30.0, 31.0)),
        (linear([5.0], whole=True), (4.0, 6.0), (4.0, 5.0, 6.0)),
        (linear([1.0, 20.0], whole=True), (1.0, 20.0), (5.0, 10.0, 15.0, 20.0)),
        (linear([0.0, 0.0], from_zero=True), (0.0, 1.0), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (linear([0.0]), (0.0, 1.0), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (linear([-3.0, 4.0]), (-4.0, 4.0), (-4.0, -2.0, 0.0, 2.0, 4.0)),
        (logarithmic([0.15, 3.0]), (0.1, 5.0), (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)),
        (logarithmic([1e-5, 1.0]), (1e-5, 1.0), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
        (logarithmic([1.0]), (0.5, 2.0), (0.5, 1.0, 2.0)),
        (logarithmic([1e-3, 1e18]), (1e-3, 1e18), (1e-3, 1.0, 1e3, 1e6, 1e9, 1e12, 1e15, 1e18)),
        (logarithmic([2e-3, 2e9]), (1e-3, 1e11), (1e-3, 1e-1, 1e1, 1e3, 1e5, 1e7, 1e9, 1e11)),
    ],
)
def test_axes_hold_their_values_between_round_numbers(axis, ends, ticks):
    assert (axis.low, axis.high) == pytest.approx(ends)
    assert axis.ticks == pytest.approx(ticks)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors():
    axis = logarithmic([0.1, 10.0])
    assert [axis.share(value) for value in (0.1, 1.0, 10.0)] == pytest.approx([0.0, 0.5, 1.0])


def test_a_diagram_puts_values_where_they_belong_and_says_them():
    reader = drawn(Panel("Loss <b>", {"a & b": ([1, 2, 3], [0.0, 5.0, 10.0])}, best=(2, 5.0)))
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    places = [tuple(map(float, point.split(","))) for point in reader.values("polyline", "points")[0].split()]
    assert places == [(LEFT, HEIGHT - BOTTOM), middle, (WIDTH - RIGHT, TOP)]
    assert (float(reader.values("circle", "cx")[3]), float(reader.values("circle", "cy")[3])) == middle  # the ring around the best
    assert {"Loss <b>", "a & b 5, epoch 2", "best: 5, epoch 2", "best 5 (epoch 2)"} <= set(reader.words)
    assert json.loads(reader.values("svg", "data-lines")[0]) == [{"name": "a & b", "x": [1, 2, 3], "y": [0.0, 5.0, 10.0]}]


def test_a_validation_loss_has_the_colour_of_its_training_loss():
    reader = drawn(Panel("Loss", {"a": ([1], [1.0]), "a (val)": ([1], [2.0]), "b": ([1], [3.0])}))
    assert reader.values("g", "class") == ["line c1", "line c0", "line c0"]  # the first one last, over the others
    assert reader.values("polyline", "class") == ["dashed"]


def test_a_diagram_without_lines_says_so():
    assert "Nothing yet." in drawn(Panel("Validation")).words


def test_speed_and_memory_have_titles_with_their_units() -> None:
    panels = panels_of(rows_of(train__loss=[5.0, 3.0], system__images_per_second=[10.0, 20.0], system__gpu_memory_gb=[1.5, 1.5]))
    assert [panel.title for panel in panels][-2:] == ["Images per second", "GPU memory (GB)"]
