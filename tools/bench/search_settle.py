"""Doubts of tools/bench/search.py, settled: a choice that seems to miss the best may have been disturbed when it was measured.

Every choice of the replay of a log that seems slower than the best at a shape is timed again, in turns with what seemed faster,
the final choice and the untuned one, and these times replace those of before. So it is until no doubt is left that was not
settled; what is really slower stays so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runtime.cpu import HostDevice
from search.host_runner import HostRunner
from search.records import TuningLog, TuningRecord
from search.shapes import Dims
from tools.bench.search import Tuning
from tools.bench.search_oracle import RETIMED, Problem, Sweep, Variant, built_kernels, write_records
from tools.bench.search_replay import Choices, Replay, choices

DOUBT = 0.05  # regret from which a choice is timed again
PASSES, TURNS = 6, 15

Doubts = Mapping[Dims, list[Variant]]  # the choices in question and what seemed faster


def settle(folder: Path, threads: int) -> None:
    """Rewrites oracle.jsonl."""
    started = time.time()
    problem = Problem.of(folder)
    tuning = msgspec.json.decode((folder / "tuning.json").read_bytes(), type=Tuning)
    taken = [r for r in problem.log.of(problem.workload.key) if r.dims]
    made, kernels = choices(problem, tuning, taken), built_kernels(folder)
    settled: set[tuple[str, Dims, int]] = set()
    shapes: set[Dims] = set()
    for _ in range(PASSES):
        records = TuningLog(folder / "oracle.jsonl").records
        found = {shape: [v for v in variants if v[0] in kernels]
                 for shape, variants in doubts(Replay(problem, tuning, taken, records), made).items()}
        new = {shape: variants for shape, variants in found.items() if any((c, shape, t) not in settled for c, t in variants)}
        if not new:
            break
        sweep = Sweep(problem, kernels, HostRunner(HostDevice()), threads)
        for shape, variants in new.items():
            local = dict(shape)
            usual = [sweep.variant(table, local) for table in (problem.tuned, problem.default)]
            sweep.keep(sweep.turns(list(dict.fromkeys([*variants, *usual])), local, TURNS), local)
        again = {_cell(r) for r in sweep.records}
        write_records(folder, [*(r for r in records if _cell(r) not in again), *sweep.records])
        settled |= again
        shapes |= set(new)
    print(f"{len(settled)} times at {len(shapes)} shapes settled in {time.time() - started:.1f} s")


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
