"""Doubts of a search, settled: a choice that seems to miss the best may have been disturbed when it was measured.

Every choice of the replay of a log that seems slower than the best at a shape is timed again, in turns with what seemed faster
and the untuned one. The ratios to the untuned one of all rounds of all passes make the new times, so that it does not matter
how fast the machine was in one of them. So it is until each in doubt had its turns; what is really slower stays so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tilewright.runtime.host.cpu import HostDevice
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims
from tools.bench.search.oracle import RETIMED, Problem, Sweep, Variant, built_kernels, write_records
from tools.bench.search.replay import Choices, Replay, choices
from tools.bench.search.tuning import Tuning

DOUBT = 0.05  # regret from which a choice is timed again
PASSES, ENOUGH = 24, 6  # at most, and those with turns of a variant after which it is settled
SECONDS = 0.03  # of each in the turns of a pass

Doubts = Mapping[Dims, list[Variant]]  # the choices in question and what seemed faster


def settle(folder: Path, threads: int) -> None:
    """Rewrites oracle.jsonl."""
    started = time.time()
    problem = Problem.of(folder, threads)
    tuning = Tuning.of(folder)
    taken = [r for r in problem.log.of(problem.workload.key) if r.dims]
    made, kernels, again = choices(problem, tuning, taken), built_kernels(folder), Again()
    for _ in range(PASSES):
        records = TuningLog(folder / "oracle.jsonl").records
        replay = Replay(problem, tuning, taken, records)
        found = {shape: [v for v in variants if v[0] in kernels] for shape, variants in doubts(replay, made).items()}
        new = {shape: variants for shape, variants in found.items() if not again.settled(shape, variants)}
        if not new:
            break
        sweep = Sweep(problem, kernels, HostRunner(HostDevice()), threads)
        for shape, variants in new.items():
            usual = sweep.variant(problem.default, dict(shape))
            rounds = sweep.rounds(list(dict.fromkeys([usual, *variants])), dict(shape), SECONDS)
            again.take(shape, usual, replay.swept[usual[0], shape, usual[1]], rounds)
            sweep.keep(again.seconds(shape), dict(shape))
        timed = {_cell(r) for r in sweep.records}
        write_records(folder, [*(r for r in records if _cell(r) not in timed), *sweep.records])
    print(f"{again} in {time.time() - started:.1f} s")


class Again:
    """Rounds of all passes, as ratios to the untuned variant, whose time stays what it was at first."""

    def __init__(self) -> None:
        self._level: dict[Dims, float] = {}
        self._ratios: dict[Dims, dict[Variant, list[Floats]]] = {}

    def take(self, shape: Dims, usual: Variant, level: float, rounds: Mapping[Variant, Floats]) -> None:
        """Rounds of one pass, among them those of the untuned variant, which took `level` seconds before."""
        self._level.setdefault(shape, level)
        ratios = self._ratios.setdefault(shape, {})
        for variant, seconds in rounds.items():
            ratios.setdefault(variant, []).append(seconds / rounds[usual])

    def seconds(self, shape: Dims) -> dict[Variant, float]:
        """Of each that had turns at a shape."""
        return {v: self._level[shape] * float(np.median(np.concatenate(parts))) for v, parts in self._ratios[shape].items()}

    def settled(self, shape: Dims, variants: Iterable[Variant]) -> bool:
        """Had all of them their turns?"""
        ratios = self._ratios.get(shape, {})
        return all(len(ratios.get(v, ())) >= ENOUGH for v in variants)

    def __str__(self) -> str:
        return f"{sum(map(len, self._ratios.values()))} times at {len(self._ratios)} shapes settled"


def doubts(replay: Replay, made: Choices) -> Doubts:
    """At each shape where a choice seems slower than the best by more than DOUBT: those choices, and the fastest kernels."""
    shapes = replay.problem.task.points.shapes
    found: dict[Dims, dict[Variant, None]] = {}
    for _, tuned in made:
        slow = replay.seconds(tuned) > (1 + DOUBT) * replay.best
        for shape, variant, doubted in zip(shapes, replay.variants(tuned), slow, strict=True):
            if doubted:
                found.setdefault(shape, {})[variant] = None
    return {shape: list(dict.fromkeys([*variants, *replay.fastest(shape, RETIMED)])) for shape, variants in found.items()}


def _cell(record: TuningRecord) -> tuple[str, Dims, int]:
    return record.config, record.shape, record.threads
