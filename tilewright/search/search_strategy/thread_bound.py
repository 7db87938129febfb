"""From how much work on the default kernel takes less time on all threads than on one: that depends on how fast this machine
hands a loop to another core, so it is measured.

Shapes near the usual bound are tried on one thread and on all, up or down from it by steps, then between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.threads import SMALL, effort, small_of
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select
from tilewright.search.database.records import TuningRecord, cells
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task

_FARTHEST = 8  # times and parts of the usual bound
_STEP, _NEAR = 1.4, 1.5
_MOST = 5  # shapes


class Compared(NamedTuple):
    """A shape of so much work. ratio: its time on one thread over that on all."""

    effort: int
    ratio: float
    shape: Dims


def thread_bound(task: Task, threads: int, records: Sequence[TuningRecord]) -> int:
    """The effort up to which one thread runs the default kernel: where the measurements lose least, between two of them where
    their ratios cross 1."""
    known = compared(task, threads, records)
    usual_bound = small_of(task.limits)
    if not known:
        return usual_bound
    lost = [sum(max(np.log(c.ratio), 0.0) for c in known[:n]) + sum(max(-np.log(c.ratio), 0.0) for c in known[n:])
            for n in range(len(known) + 1)]
    usual = sum(c.effort <= usual_bound for c in known)
    best = min(range(len(lost)), key=lambda n: (lost[n], abs(n - usual)))
    if best == 0:
        return min(usual_bound, known[0].effort - 1)
    if best == len(known):
        return max(usual_bound, known[-1].effort)
    below, above = known[best - 1], known[best]
    slower, faster = max(-np.log(below.ratio), 0.0), max(np.log(above.ratio), 0.0)
    share = slower / (slower + faster) if slower + faster else 0.5
    return int(below.effort * (above.effort / below.effort) ** min(share, 0.999))


def next_compared(task: Task, shapes: Sequence[Dims], threads: int, records: Sequence[TuningRecord]) -> int | None:
    """Position of the shape to compare next; None when the bound is known well enough, or no shape is near it."""
    known = compared(task, threads, records)
    if threads == 1 or len(known) >= _MOST or not isinstance(task.limits, HostLimits):
        return None
    work = effort(task.workload)
    efforts = np.array([work.evaluate(dict(s)) for s in shapes], float)
    free = (efforts >= SMALL / _FARTHEST) & (efforts <= SMALL * _FARTHEST)
    slower, faster = [c.effort for c in known if c.ratio <= 1], [c.effort for c in known if c.ratio > 1]
    wish = float(SMALL)
    if slower and faster:
        low, high = max(slower), min(faster)
        free &= (efforts > low) & (efforts < high) & (high > low * _NEAR)
        wish = (low * high) ** 0.5
    elif slower:
        wish = max(slower) * _STEP
        free &= efforts >= wish
    elif faster:
        wish = min(faster) / _STEP
        free &= efforts <= wish
    return int(np.where(free, np.abs(np.log(np.maximum(efforts, 1) / wish)), np.inf).argmin()) if free.any() else None


def near_bound(task: Task, threads: int, records: Sequence[TuningRecord]) -> list[Dims]:
    """The shapes by which the bound was found."""
    if not isinstance(task.limits, HostLimits):
        return []
    return [c.shape for c in compared(task, threads, records) if SMALL / _FARTHEST <= c.effort <= SMALL * _FARTHEST]


def compared(task: Task, threads: int, records: Sequence[TuningRecord]) -> list[Compared]:
    """Of the shapes at which the default kernel was measured on one thread and on all, least work first."""
    configs, root = task.untuned()
    texts = [config_text(c) for c in configs]
    times = {(c.config, c.shape, c.threads): c.seconds for c in cells(r for r in records if r.threads in (1, threads))}
    work, found = effort(task.workload), []
    for shape in {shape for _, shape, count in times if count == threads != 1}:
        dims = dict(shape)
        text = texts[select(root, dims).kernel]
        alone, together = times.get((text, shape, 1)), times.get((text, shape, threads))
        if alone is not None and together is not None:
            found.append(Compared(work.evaluate(dims), alone / together, shape))
    return sorted(found)
