"""The bench's witness: reads of the second cache, and what their times say of a measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.harness.measure import Bench
from tools.bench.harness.quiet import Snapshot
from tools.bench.harness.witness import SLOW, Witness, reader, second_cache


def test_the_size_of_the_second_cache(tmp_path: Path) -> None:
    size = tmp_path / "size"
    assert second_cache(size) == 512 << 10
    size.write_text("1024K\n")
    assert second_cache(size) == 1 << 20
    size.write_text("what\n")
    assert second_cache(size) == 512 << 10
    assert 0 < reader()() < 1
    assert 0 < reader(2)() < 1


def test_times_are_over_the_least_of_the_run() -> None:
    witness = Witness()
    assert witness.slowdown({}) == witness.slowdown({"a": []}) == 1.0
    assert witness.slowdown({"a": [2.0, 2.0], "b": [5.0, 5.0]}) == 1.0
    assert witness.slowdown({"a": [1.0, 3.0, 4.0], "b": [5.0]}) == 3.0
    assert witness.slowdown({"b": [4.0], "a": [1.0]}) == 1.0


@pytest.mark.parametrize("states,turns,near", [([1.0, 2.0, 1.0], 3, 1.0), ([1.0, 2.0, 2.0, 2.0], 4, 2.0)])
def test_measured_again_while_caches_are_slow(states: list[float], turns: int, near: float, tmp_path: Path) -> None:
    state = iter(states)
    taken = []

    class Worker:
        def __init__(self) -> None:
            self.near: list[float] = []

        def turn(self, seconds: float) -> float:
            taken.append(seconds)
            self.near.append(next(state))
            return 1e-6

    class Team:
        def worker(self, system: str) -> Worker:
            return Worker()

        def processes(self) -> list[int]:
            return []

    bench = Bench("r", Team(), 0.1, 1, tmp_path, lambda _: Snapshot(0, 0, 0))  # type: ignore[arg-type]
    assert bench._measure(["a"])[2] == 1.0
    measured, _, found = bench._measure(["a"])
    assert (len(taken), found, measured) == (turns, near, {"a": [1e-6]})
    assert (found > SLOW) == (near > 1)
