"""Thresholds set by measurements: a value that pays takes the place of today's, one that loses somewhere does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from search_surfaces import LIMITS, dense

from tilewright.compiler.builder.calibration_file import (
    Calibration,
    calibrated_limits,
    calibration_path,
    store_calibration,
)
from tilewright.compiler.cli.main import main
from tilewright.compiler.tuning import calibration
from tilewright.compiler.verification import machine_speeds
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.threads import SMALL, effort, one_thread_when_small, small_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.dispatch import select
from tilewright.search.calibration.calibrate import Probe, Tried, calibrate
from tilewright.search.calibration.choices import Choice
from tilewright.search.space.shapes import Dims

HERE = replace(LIMITS, threads=2, cores=2)
WORKLOAD = dense(8, 96)  # small enough that threads are in question
SHAPES = tuple((("d0", n),) for n in (1, 4, 16, 32, 64, 128, 256, 512, 1024))


def tried(second: Callable[[int], float], going: Callable[[], bool] = lambda: True) -> list[Tried]:
    """Of a machine whose second thread makes a kernel take so many times as long, by work."""
    def timer(workload: Workload, choices: Sequence[Choice], shape: Dims) -> Mapping[Choice, float]:
        return {c: 1.0 if c[1] == 1 else second(effort(workload).evaluate(dict(shape))) for c in choices}

    return list(calibrate([Probe("host_matmul", WORKLOAD, SHAPES)], HERE, timer, going))


def test_a_machine_whose_threads_start_soon_uses_them_earlier() -> None:
    early = next(t for t in tried(lambda work: 0.6) if t.threshold.family == "threads")
    late = next(t for t in tried(lambda work: 1.4 if work < 8 * SMALL else 0.6) if t.threshold.family == "threads")
    assert early.best == SMALL // 4 and early.gain > 0.02
    assert late.best == 4 * SMALL


@pytest.mark.parametrize("second", [1.0, 0.99])
def test_what_makes_no_difference_stays(second: float) -> None:
    assert all(t.best == t.threshold.value for t in tried(lambda work: second))


def test_a_value_that_loses_much_at_one_shape_is_not_taken() -> None:
    lost = effort(WORKLOAD).evaluate(dict(SHAPES[2]))
    found = tried(lambda work: 3.0 if work == lost else 0.5)
    assert all(math.isfinite(t.gain) for t in found)
    chosen = next(t for t in found if t.threshold.family == "threads").best
    assert chosen >= lost or chosen == SMALL


def test_nothing_is_begun_after_the_time() -> None:
    assert tried(lambda work: 0.5, lambda: False) == []


def test_what_was_calibrated_is_what_runs_untuned() -> None:
    here = replace(HERE, calibrated=(("host_matmul.no_longer", 3), ("threads.small", SMALL // 8 + 1)))
    assert small_of(HERE) == SMALL and small_of(here) == SMALL // 8 + 1
    assert all(small_of(replace(HERE, calibrated=(("threads.small", far),))) == SMALL for far in (0, 1, 1 << 40))
    configs, root = default_of("host_matmul", WORKLOAD, here)
    assert (configs, root) == default_of("host_matmul", WORKLOAD, HERE)
    between = next(s for s in SHAPES if small_of(here) < effort(WORKLOAD).evaluate(dict(s)) <= SMALL)
    assert select(one_thread_when_small(root, WORKLOAD, small_of(here)), dict(between)).threads != 1
    assert select(one_thread_when_small(root, WORKLOAD, small_of(HERE)), dict(between)).threads == 1


def test_a_calibration_is_kept_for_its_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert calibrated_limits("znver3", HERE) == HERE
    path = store_calibration(Calibration("znver3", {"threads.small": 5}), HERE)
    found = calibrated_limits("znver3", HERE)
    assert found.calibrated == (("threads.small", 5),) and calibration_path("znver3", found) == path
    assert calibrated_limits("znver4", HERE) == HERE and calibrated_limits("znver3", replace(HERE, l2=1)).calibrated == ()
    for damage in (b"", b"{", b'{"cpu":"znver3","values":{"threads.small":-1}}', b'{"cpu":"znver3","values":[],"schema":9}'):
        path.write_bytes(damage)
        assert calibrated_limits("znver3", HERE) == HERE


def test_the_command_counts_thresholds_with_another_value_and_no_speeds(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tried(lambda work: 1.0)[0]

    def host(seconds: float, threads: int | None, told: Callable[[Tried], None], speeds: Mapping[str, int]) -> SimpleNamespace:
        for best in (kept.threshold.value, kept.threshold.value + 1):
            told(replace(kept, best=best))
        return SimpleNamespace(unfinished=False, stored=Calibration("cpu", {"threads.small": 1, "speed.l1": 2}))

    monkeypatch.setattr(machine_speeds, "machine_speeds", lambda seconds: {"l1": 10**9})
    monkeypatch.setattr(calibration, "calibrate_host", host)
    assert main(["calibrate"]) == 0
    assert "2 thresholds measured, 1 have another value here" in capsys.readouterr().out
