"""profile=true: a table of a step's phases and a trace in the run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libreyolo import LibreYOLO
from libreyolo.engine.profiler import phase_table
from tests.run.conftest import QUICK


def test_the_table_shares_out_the_host_s_time_and_takes_nested_phases_out_of_their_parents() -> None:
    phases = {
        "step: wait for data": (2000.0, 0.0),
        "step: prepare batch": (4000.0, 3000.0),
        "copy to device": (0.0, 1000.0),
        "step: forward and loss": (20_000.0, 9000.0),
        "step: forward": (12_000.0, 8000.0),
        "step: backward": (10_000.0, 16_000.0),
        "step: optimiser": (4000.0, 2000.0),
    }
    lines = phase_table(phases, steps=2).splitlines()
    rows = {line[:20].strip(): line[20:].split() for line in lines[2:]}
    assert rows["waiting for data"] == ["1.00", "0.00", "5.0%"]
    assert rows["copy to device"] == ["0.00", "0.50", "0.0%"]
    assert rows["augmentation"] == ["2.00", "1.00", "10.0%"]
    assert rows["forward"] == ["6.00", "4.00", "30.0%"]
    assert rows["loss"] == ["4.00", "0.50", "20.0%"]
    assert rows["average of weights"] == ["0.00", "0.00", "0.0%"]
    assert rows["step"] == ["20.00", "15.00"]


@pytest.mark.slow
def test_a_profiled_run_leaves_its_table_and_trace_and_trains_as_any_other(tiny: Path, tmp_path: Path) -> None:
    keys = {**QUICK, "data": str(tiny), "project": str(tmp_path), "val": False}
    plain = LibreYOLO("yolo9t").train(**keys, report=False)
    found = LibreYOLO("yolo9t").train(**keys, profile=True, profile_warmup=1, profile_steps=2)
    assert found["epoch_losses"] == plain["epoch_losses"]
    run_dir = Path(found["save_dir"])
    table = (run_dir / "profile.txt").read_text()
    rows = {line[:20].strip(): line[20:].split() for line in table.splitlines()[2:]}
    assert "mean of 2 steps" in table
    for phase in ("waiting for data", "augmentation", "forward", "loss", "backward", "optimiser", "average of weights"):
        assert float(rows[phase][0]) > 0, table
    names = [event.get("name") for event in json.loads((run_dir / "trace.json").read_text())["traceEvents"]]
    assert names.count("step: backward") == 2
    assert table.splitlines()[0] in (run_dir / "train.log").read_text()
    assert "<td>waiting for data</td>" in (run_dir / "report.html").read_text()
    assert not (Path(plain["save_dir"]) / "report.html").exists()
