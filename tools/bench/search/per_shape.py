"""Search for one shape at a time in the same space, as Ansor and MetaSchedule do, against one search for all shapes.

    python -m tools.bench per-shape dense_768x768 --folder work --seconds 20 [--shapes 8] [--json found.jsonl]

Needs the folder of `python -m tools.bench search` after its step `settle`. Every shape gets a compile of its own whose range is
that shape: its own empty log, cost model and kernel cache; the space, builder, runner and measurements are those of the joint
search. The clock of either runs from the start of its compile, when the compiler is imported. A machine that is shared has fast
and slow seconds, so the joint search is begun anew between the others: its time is the median until it had taken as many
measurements. A shape is done when its best measured kernel is within 10 % of the best that is known there, the joint search
when all its shapes are. Times of a search are taken at the speed at which the oracle timed what its first measurement timed,
the untuned kernel. For a range of 128 shapes the time is that of the measured ones times 128 over their number: an
extrapolation, and printed as one.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

import tilewright as tw
from tilewright.search.database.records import TuningLog, TuningRecord
from tools.bench import command
from tools.bench.operator_spec import Operator, Shape
from tools.bench.operators import operators
from tools.bench.ours import compiled
from tools.bench.search.oracle import Oracle, Problem
from tools.bench.search.replay import FEW, WORST, Reached, Replay, choices, lasting
from tools.bench.search.steps import import_compiler
from tools.bench.search.tuning import TABLE, Tuning

WHOLE = 128
AGAIN, BRIEF = 3, 32  # times that the joint search is begun anew, and measurements after which it is not


class At(NamedTuple):
    """A shape and what the oracle knows there: seconds of the best kernel and of the untuned one."""

    shape: Shape
    best: float
    untuned: float


class ShapeSearch(msgspec.Struct, frozen=True):
    """Of one shape. best: seconds of the best kernel known there; found: of the best that this search measured.

    reached: when that was within 10 % for the first time; None within the budget.
    """

    shape: dict[str, int]
    best: float
    found: float
    measurements: int
    took: float
    reached: Reached | None


class Comparison(msgspec.Struct, frozen=True):
    """few, joint: when the joint search was there at the same shapes, and at all. seconds: of the searches for the shapes until
    each reached the quality; those that did not count with their whole time."""

    operator: str
    threads: int
    few: Reached | None
    joint: Reached | None
    seconds: float
    missed: int
    searches: tuple[ShapeSearch, ...]

    def __str__(self) -> str:
        n = len(self.searches)
        whole = self.seconds * WHOLE / n
        lines = [f"  {s.shape}: {'not reached' if s.reached is None else f'{s.reached.seconds:.1f} s'} of {s.took:.1f} s, "
                 f"{s.measurements} measurements, best {s.best / s.found:.3f}" for s in self.searches]
        head = (f"{self.operator} t{self.threads}: by shape {self.seconds:.1f} s for {n} ({self.missed} not reached), "
                f"{whole:.0f} s for {WHOLE} (extrapolated)")
        ratios = [f"joint at {count}: not reached" if there is None else
                  f"joint at {count}: {there.seconds:.1f} s, {spent / there.seconds:.1f}x"
                  for count, there, spent in ((n, self.few, self.seconds), (WHOLE, self.joint, whole))]
        return "\n".join(["; ".join([head, *ratios]), *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("per-shape", __doc__)
    parser.add_argument("operator", choices=TABLE)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="budget of a shape")
    parser.add_argument("--shapes", type=int, default=FEW)
    parser.add_argument("--folder", type=Path, default=Path("search-bench"))
    parser.add_argument("--json", type=Path, help="JSON Lines file that the comparison is appended to")
    args = parser.parse_args(argv)
    folder = args.folder / f"{args.operator}-t{args.threads}"
    oracle = msgspec.json.decode((folder / "oracle.json").read_bytes(), type=Oracle)
    chosen = oracle.shapes[:: max(1, len(oracle.shapes) // args.shapes)][: args.shapes]
    operator, problem = next(o for o in operators() if o.name == args.operator), Problem.of(folder, args.threads)
    tuning = Tuning.of(folder)
    records = [r for r in problem.log.of(problem.workload.key) if r.dims]
    replay = Replay(problem, tuning, records, TuningLog(folder / "oracle.jsonl").records)
    curve, places = replay.curve(choices(problem, tuning, records)), replay.places([s.shape for s in chosen])
    few = lasting(curve, lambda s: float((s / replay.best)[places].max()) <= 1 + WORST)
    whole = lasting(curve, lambda s: float((s / replay.best).max()) <= 1 + WORST)
    until = max((r.measurements for r in (few, whole) if r is not None and r.measurements <= BRIEF), default=0)
    searches, untuned, begun = [], replay.table(problem.default), []
    import_compiler()
    for number, (s, place) in enumerate(zip(chosen, places, strict=True)):
        if until and number in np.linspace(0, len(chosen) - 1, AGAIN).astype(int):
            begun.append(joint(operator, problem.workload.key, tuning, until))
        at = At(s.shape, float(replay.best[place]), float(untuned[place]))
        searches.append(search(operator, problem.workload.key, at, args.threads, args.seconds))
        print(searches[-1], flush=True)
    few, whole = (r and usual(r, begun) for r in (few, whole))
    spent = [s.took if s.reached is None else s.reached.seconds for s in searches]
    missed = sum(s.reached is None for s in searches)
    found = Comparison(args.operator, args.threads, few, whole, sum(spent), missed, tuple(searches))
    print(found)
    if args.json:
        with args.json.open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")
    return 0


class _EnoughError(Exception):
    """Ends a compile whose log is good enough."""


def search(operator: Operator, workload: str, at: At, threads: int, seconds: float) -> ShapeSearch:
    """Tune for one shape until the quality of the workload, by its key, is reached or the budget is spent."""
    alone, good = replace(operator, ranges={n: (t, t) for n, t in at.shape.items()}), (1 + WORST) * at.best
    found = tuned(alone, workload, threads, seconds, lambda records: least(times(records, at.untuned)) <= good)
    taken = times(found.records, at.untuned)
    number = next((n for n, t in enumerate(taken) if t <= good), None)
    reached = None if number is None else Reached(number + 1, found.records[number].when - found.started)
    return ShapeSearch(dict(at.shape), at.best, least(taken), len(taken), found.took, reached)


def joint(operator: Operator, workload: str, tuning: Tuning, measurements: int) -> list[float]:
    """Seconds of the joint search, begun anew, until each of its first measurements of the workload."""
    found = tuned(operator, workload, tuning.threads, tuning.budget,
                  lambda records: sum(bool(r.dims) for r in records) >= measurements)
    return [r.when - found.started for r in found.records if r.dims]


class Search(NamedTuple):
    """Records of a compile that tuned from nothing, when it started, in seconds since 1970, and how long it took."""

    records: list[TuningRecord]
    started: float
    took: float


def tuned(operator: Operator, workload: str, threads: int, seconds: float,
          enough: Callable[[list[TuningRecord]], bool]) -> Search:
    """Compile with an empty log and kernel cache until the records of the workload, by its key, are enough."""
    constants = operator.constants()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"], path = folder, Path(folder) / "log.jsonl"

        def follow(state: object) -> None:
            if enough(list(TuningLog(path).of(workload))):
                raise _EnoughError

        started = time.time()
        with contextlib.suppress(_EnoughError):
            compiled(operator, constants, tw.CompileOptions(threads=threads, seconds=seconds, prior=False, log=path), follow)
        return Search(list(TuningLog(path).of(workload)), started, time.time() - started)


def usual(reached: Reached, begun: Sequence[Sequence[float]]) -> Reached:
    """When the joint search was there: the median of this and of others that were begun anew."""
    others = [taken[reached.measurements - 1] for taken in begun if len(taken) >= reached.measurements]
    return Reached(reached.measurements, statistics.median([reached.seconds, *others]))


def times(records: Iterable[TuningRecord], untuned: float) -> list[float]:
    """Seconds of the records of one shape, where the first good one, of the untuned kernel, takes `untuned`."""
    known = list(records)
    first = next((r.time for r in known if r.seconds), untuned)
    return [r.time * untuned / first for r in known]


def least(found: Iterable[float]) -> float:
    return min(found, default=float("inf"))
