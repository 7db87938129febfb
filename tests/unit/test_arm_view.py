"""The live view of a model's tuning."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tilewright.compiler.cli.arm_view import ArmTable, best_so_far, curve
from tilewright.compiler.cli.layout import abbreviated, arm_label
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.tune_view import TuneView
from tilewright.search.search_strategy.outcome import Progress
from tilewright.search.task_scheduler.model_tuner import ArmProgress, ModelProgress

LONG = ModelProgress(
    2, "layernorm-1a2b3c/small", "ucb", 8.0, 29, 3.3e-3, 6e-3, 0.4, 12.0, 0.013,
    (ArmProgress("layernorm-1a2b3c/small", 2, 8.0, 30, 1e-3, 4e-3, 0.02, 0.01, False),
     ArmProgress("contraction_mul_softmax_contraction-4d5e6f/middle", 1, 4.0, 9, 2e-3, 2e-3, None, None, True),
     ArmProgress("contraction_add_softmax_contraction-778899/large", 0, 0.0, 1, None, None, None, None, False)),
    ((0.0, 6e-3), (4.0, 3e-3), (8.0, 3.3e-3)))


def shown(state: object, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(state)
    return [line for line in console.export_text().splitlines() if line.strip()]


def test_it_shows_arms_gains_and_latency_over_time() -> None:
    measured = replace(LONG, arms=LONG.arms[:2])
    model, _, head, first, second, last = shown(ArmTable(measured), 170)
    assert "3.000 ms, 2.00x" in model and "12 s left" in model and curve(best_so_far(measured)) in model
    assert "expected gain" in head and "80 % interval" in head
    cells = ["layernorm-1a2b3c/small", "2", "8.0 s", "30", "1.000 ms", "4.00x", "2.00%", "0.72% to 3.28%", "now"]
    assert re.split(r"\s{2,}", first.strip()) == cells
    assert re.split(r"\s{2,}", second.strip())[-1] == "resting" and "beliefs 1.3% of the time" in last


def test_of_a_model_that_is_not_measured_no_latency_is_told() -> None:
    lines = shown(ArmTable(LONG), 170)
    assert lines[0].strip() == "model  12 s left"
    assert re.split(r"\s{2,}", lines[-2].strip()) == ["contraction_add_softmax_contraction-778899/large", "0", "0.0 s", "1"]


@pytest.mark.parametrize("width", [20, 50, 80, 120])
def test_the_operator_is_told_at_any_width(width: int) -> None:
    lines = shown(ArmTable(LONG), width)
    assert all(len(line.rstrip()) <= width for line in lines)
    text = "\n".join(lines)
    assert all(bucket in text for bucket in ("small", "/middle", "/large"))
    if width >= 50:
        assert "layernorm" in text and "1.000 ms" in text and "4.00x" in text
        assert re.search("contract.*/middle", text) and re.search("contract.*/large", text)


def test_labels_keep_both_ends_and_the_bucket() -> None:
    assert abbreviated("contraction", 20) == "contraction" and abbreviated("contraction", 7) == "con…ion"
    key = "contraction_mul_softmax_contraction-4d5e6f/middle"
    assert arm_label(key, 60) == key and arm_label(key, 45) == "contraction_mul_softmax_contraction/middle"
    assert arm_label(key, 24) == "contract…traction/middle" and all(len(arm_label(key, n)) == n for n in range(10, 40))


def test_the_view_of_one_operator_after_the_other_fits_too() -> None:
    view = TuneView(Output(True))
    view.update(Progress("contraction_mul_softmax_contraction", "first kernels", 3, 2, 1, 1e-3, 0.1, 0.5, 3.0))
    (head, row) = shown(view._table(), 50)
    assert "operator" in head and row.startswith("contraction") and "1000.0 us" in row


def test_after_the_last_slot_the_view_tells_what_is_verified() -> None:
    view = TuneView(Output(True))
    view.update(LONG)
    view.update(Progress("contraction_mul_softmax_contraction", "verifying", 3, 2, 1, 1e-3, 0.1, 0.5, 3.0))
    assert shown(view._table(), 80)[0].strip() == "model  verifying contraction_mu…x_contraction"
    view.update(LONG)
    assert "12 s left" in shown(view._table(), 80)[0]


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
