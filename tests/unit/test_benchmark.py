"""Timing of native calls, with a clock that only calls advance."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from tilewright.runtime.host.benchmark import Timing, time_beside, time_call, time_in_turns
from tilewright.runtime.host.giving_way import Others, busy_seconds, give_way, running_tasks


class Machine:
    """Calls take their time, twice of it in three of seven milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("tilewright.runtime.host.benchmark.time.perf_counter", lambda: self.now)

    def call(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds * (2 if self.now * 1000 % 7 < 3 else 1)

        return run


@pytest.mark.parametrize("seconds", [3e-6, 5e-5, 2e-3])
def test_what_takes_turns_does_not_depend_on_the_speed_of_the_machine(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    ratios = time_beside(machine.call(1.2 * seconds), machine.call(seconds), Timing(fewest=9))
    assert len(ratios) >= 9
    assert statistics.median(ratios) == pytest.approx(1.2, rel=0.03)


def test_a_steady_ratio_takes_as_long_as_the_fewest_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    timing = Timing(warmup=0.0, batch=0.001, fewest=4, most=40, turn=0.0001)
    time_beside(machine.call(1e-5), machine.call(1e-5), timing)
    assert 0.004 <= machine.now < 0.006


def test_calls_that_are_slow_after_another_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loop on several threads is, whose workers fell asleep in the meantime."""
    machine, since = Machine(monkeypatch), [0.0]

    def alone() -> None:
        machine.now += 1e-5
        since[0] = machine.now

    def woken() -> None:
        machine.now += 1e-5 if machine.now - since[0] > 4e-5 else 2e-5

    assert statistics.median(time_beside(woken, alone)) == pytest.approx(1.0, rel=0.01)


def test_what_is_never_steady_ends_with_the_most_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    calls = [0]

    def erratic() -> None:
        calls[0] += 1
        machine.now += 1e-5 * (1 + calls[0] * 7 % 40)

    timing = Timing(warmup=0.0, batch=0.001, fewest=4, most=40, error=0.001, turn=0.00002)
    ratios = time_beside(erratic, machine.call(1e-5), timing)
    assert len(ratios) > 40 and 0.04 <= machine.now < 0.05


def test_batches_until_the_median_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    steady = Timing(warmup=0.0, batch=0.0001, fewest=3, most=9)
    assert time_call(machine.call(1e-5), steady) == pytest.approx([2e-5] * 3)


def test_calls_that_take_long_are_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert len(time_call(machine.call(1.0), Timing(longest=2.0))) == 1
    begin = machine.now
    ratios = time_beside(machine.call(1.0), machine.call(1.0), Timing(longest=2.0))
    assert len(ratios) == 2 and machine.now - begin < 13.0
    assert len(time_call(machine.call(1e-3), Timing(longest=2.0))) >= 5


def test_several_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    short = time_in_turns([machine.call(n * 1e-5) for n in (1.0, 1.2, 2.0)], 3, Timing(fewest=4))
    assert len(short) > 3 and 0.012 < machine.now < 0.03
    medians = [statistics.median(row[n] / row[0] for row in short) for n in range(3)]
    assert medians == pytest.approx([1.0, 1.2, 2.0], rel=0.06)
    assert len(time_in_turns([machine.call(0.04)] * 3, 3)) == 3
    begin = machine.now
    assert len(time_in_turns([machine.call(1.0)] * 2, 3, Timing(longest=2.0))) == 1 and machine.now - begin <= 8.0


def test_rests_are_between_rounds_and_in_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, slept = Machine(monkeypatch), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        machine.now += seconds

    monkeypatch.setattr("tilewright.runtime.host.benchmark.give_way", sleep)
    timing = Timing(warmup=0.0, batch=0.001, fewest=4, most=40, turn=0.0001)
    time_beside(machine.call(1e-5), machine.call(1e-5), timing)
    worked, rested = machine.now, Timing(warmup=0.0, batch=0.001, fewest=4, most=40, turn=0.0001, rest=4.0)
    assert not slept
    ratios = time_beside(machine.call(1.2e-5), machine.call(1e-5), rested)
    assert len(slept) == 2 + len(ratios) - 1 and statistics.median(ratios) == pytest.approx(1.2, rel=0.03)
    assert sum(slept) > 3.0 * worked and machine.now > 4.0 * worked
    slept.clear()
    time_call(machine.call(1.0), Timing(fewest=2, longest=9.0, rest=4.0))
    assert slept and set(slept) == {0.2}  # a rest is short where a call is long


def test_a_slice_waits_for_calls_of_others_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, running = list[float](), [1]
    monkeypatch.setattr("tilewright.runtime.host.giving_way.running_tasks", lambda: running[0])
    monkeypatch.setattr("tilewright.runtime.host.giving_way.os.cpu_count", lambda: 4)
    assert give_way(0.01, slept.append) == 0.01 == sum(slept)
    running[0] = 3  # this one, and two others on four cores
    assert 0.11 <= give_way(0.01, slept.append) == sum(slept[1:]) < 0.15

    slept.clear()
    assert give_way(0.01, slept.append, times=4.0) < 0.15 and slept[0] == 0.04

    def ends(seconds: float) -> None:
        slept.append(seconds)
        running[0] = 2

    assert give_way(0.01, ends) == 0.01
    running[0], asked = 3, iter((False, False, True))
    assert 0.01 < give_way(0.01, lambda seconds: next(asked)) < 0.02 and next(asked, None) is None
    assert running_tasks() >= 1


def test_the_work_of_others_is_told_from_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now, busy, own = [0.0], [100.0], [3.0]
    monkeypatch.setattr("tilewright.runtime.host.giving_way.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tilewright.runtime.host.giving_way.busy_seconds", lambda: busy[0])
    others = Others(lambda: own[0])
    others.look()
    assert others.cores == float("inf")  # it is not known yet
    now[0], busy[0], own[0] = 2.0, 101.5, 3.5
    others.look()
    assert others.cores == pytest.approx(0.5)
    now[0], busy[0], own[0] = 2.1, 109.0, 3.5  # too short a time to tell
    others.look()
    assert others.cores == pytest.approx(0.5)
    now[0] = 4.0
    others.look()
    assert others.cores == pytest.approx(7.5 / 2.0)


def test_a_machine_at_work_is_busy() -> None:
    before, begin = busy_seconds(), time.process_time()
    while time.process_time() < begin + 0.1:
        pass
    assert busy_seconds() - before >= 0.08
