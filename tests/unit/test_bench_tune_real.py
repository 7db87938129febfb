"""The comparison of policies in real tuning: what its table says of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.policies.tuned import Measured, Run, append, excess, parse, read, report, trace, until


def run(policy: str, seed: int, latencies: list[float]) -> Run:
    return Run("bert_layer", policy, seed, 40.0, 1, 2.0, 30, 0.01, [(10.0 * i, v) for i, v in enumerate(latencies)])


def test_time_to_the_best_of_all_runs_on_the_scale_of_one_measurement() -> None:
    fast, slow = run("ucb", 1, [4e-3, 2e-3, 2.1e-3, 2e-3]), run("sequential", 1, [4e-3, 4e-3, 4e-3, 1.9e-3])
    together = Measured("bert_layer", 7, {fast.name: 2e-3, slow.name: 2.09e-3})
    assert [v for _, v in trace(fast, together)] == pytest.approx([4e-3, 2e-3, 2e-3, 2e-3])
    assert trace(slow, together)[-1][1] == pytest.approx(2.09e-3)
    assert until(trace(fast, together), 2.02e-3) == 10.0 and until(trace(slow, together), 2.02e-3) == float("inf")
    assert excess(trace(fast, together), 2e-3, 40.0) == pytest.approx(0.25)
    text = report([fast, slow, together])
    assert "best final latency 2.000 ms of 2 runs\n" in text and "to 1 % never (0 of 1 reach it)" in text
    assert "NOT measured together" in report([fast, slow]) and "best final latency 1.900 ms" in report([fast, slow])


def test_a_later_run_of_the_same_name_counts_and_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    records = [run("ucb", 1, [4e-3, 3e-3]), run("ucb", 1, [4e-3, 2e-3]), Measured("bert_layer", 3, {"bert_layer.ucb.1": 2e-3})]
    for record in records:
        append(path, record)
    assert read(path) == records
    assert "2.000 ms of 1 runs" in report(read(path))
    with pytest.raises(SystemExit, match="no model 'vgg'"):
        parse("vgg:ucb:1")
