"""A data report as text: tables with colours on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from libreyolo.errors import printable
from libreyolo.interfaces.data_report import DataReport, Finding

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def write_report(report: DataReport, stream: TextIO, *, num_places: int = 5) -> None:
    """Write the report; of each finding's places the first `num_places`.

    Names are other people's text: they are shown as they are, neither as markup nor as commands to the terminal.
    """
    if stream.isatty():
        _write_colours(report, Console(file=stream), num_places)
        return
    lines = [report.data, *_plain(_counts(report)), *_plain(_classes(report)), *_finding_lines(report, num_places), "", _verdict(report)]
    text = "\n".join(printable(line) for line in lines) + "\n"
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _counts(report: DataReport) -> list[list[str]]:
    if not report.counts:
        return []
    what = list(dict.fromkeys(name for counted in report.counts.values() for name in counted))
    return [["split", *what], *([split, *(str(counted.get(name, 0)) for name in what)] for split, counted in report.counts.items())]


def _classes(report: DataReport) -> list[list[str]]:
    if not report.classes:
        return []
    splits = list(report.classes[0][2])
    rows = [[f"{class_id} {printable(name)}", *(str(count[split]) for split in splits)] for class_id, name, count in report.classes]
    return [["class", *splits], *rows]


def _plain(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table's lines, the first column flush left and the others right, with an empty line before it."""
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    yield ""
    for row in rows:
        yield "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])


def _finding_lines(report: DataReport, num_places: int) -> Iterator[str]:
    for finding in _sorted(report):
        yield ""
        yield f"{finding.level.upper()}  {_said(finding)}"
        yield from _places(finding, num_places)


def _sorted(report: DataReport) -> list[Finding]:
    return sorted(report.findings, key=lambda finding: list(STYLES).index(finding.level))


def _said(finding: Finding) -> str:
    return f"{finding.split}: {finding.what}." if finding.split and not finding.what.startswith(f"{finding.split}:") else f"{finding.what}."


def _places(finding: Finding, num_places: int) -> Iterator[str]:
    for place in finding.places[:num_places]:
        yield f"    {place}"
    if len(finding.places) > num_places:
        yield f"    and {len(finding.places) - num_places} more"


def _verdict(report: DataReport) -> str:
    num = {level: sum(finding.level == level for finding in report.findings) for level in STYLES}
    ending = "a training would stop" if report.has_errors else "a training would start"
    return f"errors: {num['error']}, warnings: {num['warning']}, notes: {num['note']}; {ending}."


def _write_colours(report: DataReport, console: Console, num_places: int) -> None:
    console.print(Text(printable(report.data), style="bold"))
    for rows in (_counts(report), _classes(report)):
        if rows:
            table = Table()
            for number, title in enumerate(rows[0]):
                table.add_column(Text(title), justify="right" if number else "left")
            for row in rows[1:]:
                table.add_row(*(Text(cell) for cell in row))
            console.print(table)
    for finding in _sorted(report):
        console.print(Text.assemble((finding.level.upper(), STYLES[finding.level]), "  ", printable(_said(finding))))
        for line in _places(finding, num_places):
            console.print(Text(printable(line), style="dim"), soft_wrap=True)
    console.print(Text(_verdict(report), style="bold red" if report.has_errors else "bold green"))
