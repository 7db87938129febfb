"""The live view of a model's tuning."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from tilewright.compiler.cli.arm_view import arm_table, best_so_far, curve
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.tune_view import TuneView
from tilewright.search.task_scheduler.model_tuner import ArmProgress, ModelProgress


def test_it_shows_arms_gains_and_latency_over_time() -> None:
    arms = (
        ArmProgress("dense/small", 2, 8.0, 30, 1e-3, 4e-3, 0.02, 0.01, False),
        ArmProgress("rows/large", 0, 0.0, 1, 2e-3, 2e-3, 0.0, 0.0, True),
    )
    history = ((0.0, 6e-3), (4.0, 3e-3), (8.0, 3.3e-3))
    state = ModelProgress(2, "dense/small", "ucb", 8.0, 29, 3.3e-3, 6e-3, 0.4, 12.0, 0.013, arms, history)
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(arm_table(state))
    model, head, first, second, last = (line for line in console.export_text().splitlines() if line.strip())
    assert "3.000 ms, 2.00x" in model and "12 s left" in model and curve(best_so_far(state)) in model
    assert "expected gain" in head and "80 % interval" in head
    cells = ["dense/small", "2", "8.0 s", "30", "1.000 ms", "4.00x", "2.00%", "0.72% to 3.28%", "now"]
    assert re.split(r"\s{2,}", first.strip()) == cells
    assert re.split(r"\s{2,}", second.strip())[-1] == "resting" and "beliefs 1.3% of the time" in last


def test_latency_over_time_never_rises() -> None:
    history = ((0.0, 6e-3), (4.0, 3e-3), (8.0, 3.3e-3))
    state = ModelProgress(2, "a", "ucb", 8.0, 29, 3.3e-3, 6e-3, 0.4, None, 0.0, (), history)
    assert [v for _, v in best_so_far(state)] == [6e-3, 3e-3, 3e-3]
    assert curve(best_so_far(state), 8) == "███▁▁▁▁▁"
    assert curve([(0.0, 1.0), (2.0, 1.0)], 3) == "▁▁▁"


def test_slots_are_events(capsys: pytest.CaptureFixture[str]) -> None:
    arms = (ArmProgress("dense/small", 1, 4.0, 9, 1e-3, 4e-3, 0.02, 0.03, False),)
    state = ModelProgress(1, "dense/small", "ucb", 4.0, 8, 1e-3, 4e-3, 0.4, None, 0.0, arms, ((0.0, 4e-3), (4.0, 1e-3)))
    with TuneView(Output(True)) as view:
        view.update(state)
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert event["event"] == "slot" and event["best"] == 1e-3 and event["arms"][0]["low"] == 0.0
