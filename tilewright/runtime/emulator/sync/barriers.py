"""Block barriers (PTX ISA, section 9.7.13.1): arrival, release, and what went wrong when nobody can go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, ControlBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import BLOCKED, EXITED, RUNNING, Array, Geometry
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.limits import WARP

_BARRIERS = 16


class Barriers:
    """The 16 barriers of each block of a batch.

    A lane counts as one arrival; a warp that is not full counts as 32. `expected` is 0 until someone arrives. A waiting lane's
    pc is already that of the next segment; `sites` maps it to the barrier instruction.
    """

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        warps = geometry.warps
        self.arrived = np.zeros((blocks, _BARRIERS), dtype=np.int64)
        self.expected = np.zeros((blocks, _BARRIERS), dtype=np.int64)
        self.clocks = np.zeros((blocks, _BARRIERS, geometry.group), dtype=np.int64)
        self.waits_for = np.full(blocks * warps * WARP, -1, dtype=np.int64)
        self.values = np.zeros(blocks * warps * WARP, dtype=bool)
        self.sites: dict[int, tuple[PtxSite, bool]] = {}
        self.results: dict[int, Callable[[Machine, Array], None]] = {}
        self._full = warps * WARP
        self._passed = np.zeros(blocks, dtype=np.int64)
        self._weight = np.ones(blocks * warps * WARP, dtype=np.int64)
        self._weight[(warps - 1) * WARP :: warps * WARP] += self._full - geometry.threads

    def arrive(self, machine: Machine, site: PtxSite, lanes: Array, ids: Array, counts: Array | None, waits: bool) -> None:
        """Lanes arrive; those that wait are blocked until the barrier completes."""
        if ((ids < 0) | (ids >= _BARRIERS)).any():
            at = int(np.argmax((ids < 0) | (ids >= _BARRIERS)))
            message = f"barrier {int(ids[at])} does not exist; there are {_BARRIERS}"
            machine.found(KernelCheck.BARRIER, site, message, int(lanes[at]))
            ids = ids % _BARRIERS
        blocks = machine.block_of[lanes]
        wanted = np.full(len(lanes), self._full) if counts is None else counts
        known = self.expected[blocks, ids]
        clash = (known != 0) & (known != wanted)
        if clash.any():
            at = int(np.argmax(clash))
            message = f"barrier {int(ids[at])} is waited for by {int(known[at])} and by {int(wanted[at])} threads"
            machine.found(KernelCheck.BARRIER, site, message, int(lanes[at]))
        self.expected[blocks, ids] = wanted
        np.add.at(self.arrived, (blocks, ids), self._weight[lanes])
        if machine.shared.races is not None:
            first = np.unique(machine.warp_of[lanes] * _BARRIERS + ids)
            warps, barriers = first // _BARRIERS, first % _BARRIERS
            seen = machine.shared.races.release(warps)
            np.maximum.at(self.clocks, (warps // machine.geometry.warps, barriers), seen)
        if waits:
            machine.status[lanes] = BLOCKED
            self.waits_for[lanes] = ids
        for key in np.unique(blocks * _BARRIERS + ids):
            block, barrier = int(key) // _BARRIERS, int(key) % _BARRIERS
            if self.arrived[block, barrier] >= self.expected[block, barrier]:
                self._complete(machine, block, barrier)

    def all_at_once(self, machine: Machine) -> None:
        """Every thread of every block passes one barrier together."""
        machine.statistics.barriers += len(machine.blocks)
        if machine.shared.races is not None:
            races, warps = machine.shared.races, machine.geometry.warps
            seen = races.release(np.arange(len(machine.blocks) * warps))
            joined = seen.reshape(-1, warps, machine.geometry.group).max(axis=1)
            races.acquire(np.arange(len(machine.blocks) * warps), np.repeat(joined, warps, axis=0))

    def _complete(self, machine: Machine, block: int, barrier: int) -> None:
        machine.statistics.barriers += 1
        self.arrived[block, barrier] = self.expected[block, barrier] = 0
        span = slice(block * self._full, (block + 1) * self._full)
        lanes = np.flatnonzero((machine.status[span] == BLOCKED) & (self.waits_for[span] == barrier)) + block * self._full
        self._check_warps(machine, lanes)
        self._reduce(machine, lanes)
        machine.status[lanes] = RUNNING
        self.waits_for[lanes] = -1
        if machine.shared.races is not None:
            machine.shared.races.acquire(np.unique(machine.warp_of[lanes]), self.clocks[block, barrier])
            self.clocks[block, barrier] = 0
        if machine.rng is not None and len(lanes):
            warps = np.unique(machine.warp_of[lanes])
            machine.level[warps] = machine.order[self._passed[block] % len(machine.order), warps % machine.geometry.warps]
            self._passed[block] += 1

    def _check_warps(self, machine: Machine, lanes: Array) -> None:
        """bar.sync and barrier.sync.aligned want the whole warp at one instruction."""
        live = machine.live.reshape(-1, WARP).sum(axis=1)
        for warp in np.unique(machine.warp_of[lanes]):
            mine = lanes[machine.warp_of[lanes] == warp]
            places = np.unique(machine.pc[mine])
            site, aligned = self.sites[int(places[0])]
            if aligned and (len(places) > 1 or len(mine) != live[warp]):
                message = f"{len(mine)} of {int(live[warp])} threads of the warp arrived here"
                machine.found(KernelCheck.BARRIER, site, message, int(mine[0]))

    def _reduce(self, machine: Machine, lanes: Array) -> None:
        for place in np.unique(machine.pc[lanes]):
            put = self.results.get(int(place))
            if put is not None:
                with machine.only(_mask(machine, lanes[machine.pc[lanes] == place])):
                    put(machine, self.values[lanes])

    def explain(self, machine: Machine) -> bool:
        """Nobody can run: report blocks whose threads exited or wait at different barriers, and let them go. False if none."""
        blocked = np.flatnonzero(machine.status == BLOCKED)
        blocked = blocked[self.waits_for[blocked] >= 0]
        for block in np.unique(machine.block_of[blocked]):
            mine = blocked[machine.block_of[blocked] == block]
            barrier = int(self.waits_for[mine].min())
            lane = int(mine[np.argmin(self.waits_for[mine])])
            site, _ = self.sites[int(machine.pc[lane])]
            others = mine[self.waits_for[mine] != barrier]
            span = np.arange(block * self._full, (block + 1) * self._full)
            gone = span[(machine.status[span] == EXITED) & (machine.thread_of[span] < machine.geometry.threads)]
            missing = int(self.expected[block, barrier] - self.arrived[block, barrier])
            if len(others):
                other, _ = self.sites[int(machine.pc[others[0]])]
                thread = machine.geometry.thread_index(int(machine.thread_of[others[0]]))
                message = (f"waits at barrier {barrier} for {missing} more threads, "
                           f"thread {thread} waits at barrier {int(self.waits_for[others[0]])}, line {other.line}")  # fmt: skip
            elif len(gone):
                thread = machine.geometry.thread_index(int(machine.thread_of[gone[0]]))
                message = f"waits at barrier {barrier} for {missing} more threads, but thread {thread} has exited"
            else:
                message = f"waits at barrier {barrier} for {missing} more threads that never arrive"
            machine.found(KernelCheck.BARRIER, site, message, lane)
            self._complete(machine, int(block), barrier)
        return len(blocked) > 0


def _mask(machine: Machine, lanes: Array) -> Array:
    mask = np.zeros(machine.lanes, dtype=bool)
    mask[lanes] = True
    return mask


def _build_barrier(inst: Instruction, cx: BuildContext) -> Continuation:
    """bar.sync a{, b}; bar.arrive a, b; bar.red.op d, a{, b}, {!}p; `barrier.` likewise."""
    reduces, waits = inst.has("red"), not inst.has("arrive")
    aligned = inst.parts[0] == "bar" or inst.has("aligned")
    operands = inst.operands[1:-1] if reduces else inst.operands
    identity = cx.source(inst, operands[0], "s32")
    count = cx.source(inst, operands[1], "s32") if len(operands) > 1 else None
    predicate = cx.source(inst, inst.operands[-1], "pred") if reduces else None
    site, following = cx.site(inst), cx.following
    result = _reduction(inst, cx) if reduces else None
    plain = count is None and waits and not reduces

    def run(machine: Machine) -> int | None:
        barriers = machine.unit(Barriers)
        together = plain and machine.mask is None and machine.rng is None and not barriers.arrived.any()
        if together and len(np.unique(identity(machine))) == 1:
            barriers.all_at_once(machine)
            return following
        lanes = machine.lane_indices()
        machine.pc[lanes] = following
        barriers.sites[following] = site, aligned
        if result is not None and predicate is not None:
            barriers.results[following] = result
            barriers.values[lanes] = over_lanes(machine, predicate(machine), lanes)
        ids = over_lanes(machine, identity(machine), lanes).astype(np.int64)
        counts = None if count is None else over_lanes(machine, count(machine), lanes).astype(np.int64)
        barriers.arrive(machine, site, lanes, ids, counts, waits)
        return None

    return run


def _reduction(inst: Instruction, cx: BuildContext) -> Callable[[Machine, Array], None]:
    popc, every = inst.has("popc"), inst.has("and")
    put = cx.sink(inst, inst.operands[0], "u32" if popc else "pred")

    def write(machine: Machine, values: Array) -> None:
        if popc:
            put(machine, np.array([values.sum()], dtype=np.uint32))
        else:
            put(machine, np.array([values.all() if every else values.any()]))

    return write


BLOCK_BARRIERS: Mapping[str, ControlBuilder] = {
    "bar.sync": _build_barrier,
    "bar.arrive": _build_barrier,
    "bar.red": _build_barrier,
    "bar.cta": _build_barrier,
    "barrier.sync": _build_barrier,
    "barrier.arrive": _build_barrier,
    "barrier.red": _build_barrier,
    "barrier.cta": _build_barrier,
}
