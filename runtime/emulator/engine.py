"""Runs the blocks of a batch: picks lanes at one place of the program, executes a segment for them, until all have exited.

Lanes at the lowest place run first, so that diverged lanes meet again where the compiler laid out the join. With a seed,
warps get random levels at barriers and the lowest level runs first: some warps run as far ahead as the program's barriers
let them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from runtime.emulator.batch import PARKED, RUNNING, WARP, Batch
from runtime.emulator.findings import Check
from runtime.emulator.formats import Array
from runtime.emulator.program import Program, Segment
from runtime.emulator.warp import packed

_PATIENCE = 256
"""Segments that one group may execute while others wait, before it yields."""
_LEVEL = 1 << 32


class Engine:
    """One batch of blocks executing one program. `budget` bounds the instructions that any group executes."""

    def __init__(self, program: Program, batch: Batch, budget: int) -> None:
        self._program = program
        self._s = batch
        self._budget = budget
        self._visits = np.zeros(len(program.segments), dtype=np.int64)
        self._streak = 0

    def run(self) -> None:
        """Execute until every thread has exited. Raises EmulatorError on a fatal finding."""
        s = self._s
        segments = self._program.segments
        picked = self._pick()
        while picked is not None:
            index, group, whole = picked
            s.enter(None if whole and bool(s.live.all()) else group)
            warps = self._count_warps(group)
            while True:
                target = self._execute(segments[index], group, whole, warps)
                if target is None:
                    break
                self._streak += 1
                if not whole or s.rng is not None:
                    s.pc[group] = target
                    break
                index = target
            picked = self._pick()
        s.proxy.finish(s)
        self._settle()

    def _execute(self, segment: Segment, group: Array, whole: bool, warps: int) -> int | None:
        s = self._s
        if segment.head is not None and not whole:
            ready = self._ready(segment, group)
            if not ready.all():
                s.pc[group] = segment.index
                waiting = group & ~ready
                s.status[waiting] = PARKED
                group = group & ready
                if not group.any():
                    return None
                warps = self._count_warps(group)
                s.status[group] = RUNNING
                s.enter(group)
                target = self._body(segment, warps)
                if target is not None:
                    s.pc[group] = target
                return None
            s.status[group] = RUNNING
        return self._body(segment, warps)

    def _body(self, segment: Segment, warps: int) -> int | None:
        s = self._s
        s.steps += segment.count
        if s.steps > self._budget:
            message = f"more than {self._budget} instructions were executed; a loop does not end, or the budget is too small"
            s.found(Check.BUDGET, segment.site, message, int(s.lane_indices()[0]))
        self._visits[segment.index] += warps
        for run in segment.body:
            run(s)
        if segment.end is None:
            return segment.index + 1
        return segment.end(s)

    def _ready(self, segment: Segment, group: Array) -> Array:
        """Lanes of the group whose partners are all here; lanes that skip the instruction are."""
        s = self._s
        assert segment.head is not None
        taking = group
        if segment.head_predicate is not None:
            row, negated = segment.head_predicate
            taking = group & (s.registers["pred"][row] ^ negated)
        here = np.repeat(packed(taking), WARP)
        wanted = np.repeat(packed(s.live), WARP)
        if segment.head.members is not None:
            wanted = wanted & segment.head.members(s)
        ready = (wanted & ~here) == 0
        result: Array = np.where(group, ready | ~taking, True)
        return result

    def _pick(self) -> tuple[int, Array, bool] | None:
        """The next segment and the lanes that execute it; None when no lane is left."""
        s = self._s
        while True:
            running = s.status == RUNNING
            if running.any():
                break
            if not s.live.any():
                return None
            self._stuck()
        if s.rng is not None:
            s.copies.drift(s)
            s.proxy.drift(s)
            if s.rng.random() < 0.1:
                s.level[int(s.rng.integers(s.geometry.warps)) :: s.geometry.warps] = s.rng.integers(0, 4)
        if self._streak > _PATIENCE:
            self._streak = 0
            if s.mask is not None and (running & ~s.mask).any():
                s.level[np.unique(s.warp_of[s.mask & running])] += 1
        if not s.level.any():
            index = int(s.pc[running].min())
            group = (s.pc == index) & (running | (s.status == PARKED))
        else:
            level = s.level[s.warp_of]
            key = level * _LEVEL + s.pc
            lowest = int(key[running].min())
            index = lowest % _LEVEL
            group = (key == lowest) & (running | (s.status == PARKED))
        return index, group, bool(group.sum() == s.live.sum())

    def _stuck(self) -> None:
        """Every live lane waits: explain, and let someone go if findings are collected."""
        s = self._s
        if s.proxy.progress(s) or s.barriers.explain(s):
            return
        lane = int(np.flatnonzero(s.live)[0])
        parked = np.flatnonzero(s.status == PARKED)
        lane = int(parked[0]) if len(parked) else lane
        segment = self._program.segments[int(s.pc[lane])]
        message = "waits for threads of its warp that never arrive"
        s.found(Check.DEADLOCK, segment.site, message, lane)

    def _count_warps(self, group: Array) -> int:
        return int(np.count_nonzero(group.reshape(-1, WARP).any(axis=1)))

    def _settle(self) -> None:
        """Add what was executed to the launch's statistics."""
        total: Counter[str] = self._s.statistics.instructions
        for segment, visits in zip(self._program.segments, self._visits, strict=True):
            if visits:
                for name, count in segment.classes.items():
                    total[name] += count * int(visits)
