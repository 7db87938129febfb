"""Runs the blocks of a batch: picks lanes at one place of the program, executes a segment for them, until all have exited.

Lanes at the lowest place run first, so that diverged lanes meet again where the compiler laid out the join. With a seed,
warps get random levels at barriers and the lowest level runs first: some warps run as far ahead as the program's barriers
let them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tilewright.runtime.emulator.alu.warp import packed
from tilewright.runtime.emulator.batch import Batch
from tilewright.runtime.emulator.launch_budget import LaunchBudget
from tilewright.runtime.emulator.machine.findings import EmulatorError, KernelCheck
from tilewright.runtime.emulator.machine.lanes import PARKED, RUNNING, Array
from tilewright.runtime.emulator.memory.async_copy import CopyQueue
from tilewright.runtime.emulator.ptx_program import MISFITS, PtxProgram, Segment
from tilewright.runtime.emulator.sync.barriers import Barriers
from tilewright.runtime.emulator.sync.bulk_copy import BulkCopies
from tilewright.runtime.emulator.sync.cluster_barriers import ClusterBarriers
from tilewright.runtime.emulator.sync.mbarrier import Mbarriers
from tilewright.runtime.emulator.sync.register_pool import RegisterPool
from tilewright.runtime.emulator.sync.warpgroup_mma import WgmmaQueue
from tilewright.runtime.limits import WARP

_PATIENCE = 256
"""Segments that one group may execute while others wait, before it yields."""
_LEVEL = 1 << 32
_EVERY = 4096
"""Instructions between two looks at the clock."""


class Engine:
    """One batch of blocks executing one program, within a budget."""

    def __init__(self, program: PtxProgram, batch: Batch, budget: LaunchBudget) -> None:
        self._program = program
        self._machine = batch
        self._budget = budget
        self._look = min(_EVERY, budget.instructions)
        self._visits = np.zeros(len(program.segments), dtype=np.int64)
        self._streak = 0
        self._copies, self._bulk_copies = batch.unit(CopyQueue), batch.unit(BulkCopies)

    def run(self) -> None:
        """Execute until every thread has exited. Raises EmulatorError on a fatal finding."""
        machine = self._machine
        segments = self._program.segments
        picked = self._pick()
        while picked is not None:
            index, group, whole = picked
            machine.enter(None if whole and bool(machine.live.all()) else group)
            warps = self._count_warps(group)
            while True:
                target = self._execute(segments[index], group, whole, warps)
                if target is None:
                    break
                self._streak += 1
                if not whole or machine.rng is not None:
                    machine.pc[group] = target
                    break
                index = target
            picked = self._pick()
        self._bulk_copies.finish(machine)
        machine.unit(WgmmaQueue).finish(machine)
        self._settle()

    def _execute(self, segment: Segment, group: Array, whole: bool, warps: int) -> int | None:
        machine = self._machine
        if segment.head is not None and not whole:
            ready = self._ready(segment, group)
            if not ready.all():
                machine.pc[group] = segment.index
                waiting = group & ~ready
                machine.status[waiting] = PARKED
                group = group & ready
                if not group.any():
                    return None
                warps = self._count_warps(group)
                machine.status[group] = RUNNING
                machine.enter(group)
                target = self._body(segment, warps)
                if target is not None:
                    machine.pc[group] = target
                return None
        if segment.head is not None:
            machine.status[group] = RUNNING  # whoever was waiting for the rest
        return self._body(segment, warps)

    def _body(self, segment: Segment, warps: int) -> int | None:
        machine = self._machine
        machine.steps += segment.count
        if machine.steps > self._look:
            spent = self._budget.spent(machine.steps)
            if spent:
                message = f"{spent}; a loop does not end, or the budget is too small (EmulatorDevice: budget=, seconds=)"
                machine.found(KernelCheck.BUDGET, segment.site, message, int(machine.lane_indices()[0]))
            self._look = min(machine.steps + _EVERY, self._budget.instructions)
        self._visits[segment.index] += warps
        try:
            for run in segment.body:
                run(machine)
            return segment.index + 1 if segment.end is None else segment.end(machine)
        except MISFITS as error:
            raise EmulatorError(f"{segment.site}: the form of an instruction from here on is not modelled ({error!r})") from error

    def _ready(self, segment: Segment, group: Array) -> Array:
        """Lanes of the group whose partners are all here; lanes that skip the instruction are."""
        machine = self._machine
        assert segment.head is not None
        taking = group
        if segment.head_predicate is not None:
            row, negated = segment.head_predicate
            taking = group & (machine.registers["pred"][row] ^ negated)
        here = np.repeat(packed(taking), WARP)
        wanted = np.repeat(packed(machine.live), WARP)
        if segment.head.members is not None:
            wanted = wanted & segment.head.members(machine)
        ready = (wanted & ~here) == 0
        result: Array = np.where(group, ready | ~taking, True)
        return result

    def _pick(self) -> tuple[int, Array, bool] | None:
        """The next segment and the lanes that execute it; None when no lane is left."""
        machine = self._machine
        while True:
            running = machine.status == RUNNING
            if np.count_nonzero(running):
                break
            if not machine.live.any():
                return None
            self._stuck()
        if machine.rng is not None:
            self._copies.drift(machine)
            self._bulk_copies.drift(machine)
            if machine.rng.random() < 0.1:
                warps = machine.geometry.warps
                machine.level[int(machine.rng.integers(warps)) :: warps] = machine.rng.integers(0, 4)
        if self._streak > _PATIENCE:
            self._streak = 0
            if machine.mask is not None and (running & ~machine.mask).any():
                machine.level[np.unique(machine.warp_of[machine.mask & running])] += 1
        if not machine.level.any():
            index = int(machine.pc[running].min())
            group = (machine.pc == index) & (running | (machine.status == PARKED))
        else:
            level = machine.level[machine.warp_of]
            key = level * _LEVEL + machine.pc
            lowest = int(key[running].min())
            index = lowest % _LEVEL
            group = (key == lowest) & (running | (machine.status == PARKED))
        return index, group, np.count_nonzero(group) == np.count_nonzero(machine.live)

    def _stuck(self) -> None:
        """Every live lane waits: let copies in flight land, else explain, and let someone go if findings are collected."""
        machine = self._machine
        clusters = machine.unit(ClusterBarriers)
        if self._bulk_copies.land_all(machine) or clusters.settle(machine):
            return
        clusters.explain(machine)
        machine.unit(RegisterPool).explain(machine)
        machine.unit(Mbarriers).explain(machine)
        if machine.unit(Barriers).explain(machine):
            return
        lane = int(np.flatnonzero(machine.live)[0])
        parked = np.flatnonzero(machine.status == PARKED)
        lane = int(parked[0]) if len(parked) else lane
        segment = self._program.segments[int(machine.pc[lane])]
        message = "waits for threads of its warp that never arrive"
        machine.found(KernelCheck.DEADLOCK, segment.site, message, lane)

    def _count_warps(self, group: Array) -> int:
        return int(np.count_nonzero(group.reshape(-1, WARP).any(axis=1)))

    def _settle(self) -> None:
        """Add what was executed to the launch's statistics."""
        total: Counter[str] = self._machine.statistics.instructions
        for segment, visits in zip(self._program.segments, self._visits, strict=True):
            if visits:
                for name, count in segment.classes.items():
                    total[name] += count * int(visits)
