"""mbarrier objects (PTX ISA, section 9.7.13.15): arrivals and bytes awaited, phases, and threads that wait for a phase.

A thread that waits is suspended until the phase completes; with a seed a wait may also time out, as on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, LaneSink, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, ControlBuilder, OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import BLOCKED, RUNNING, Array, Geometry
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import SHARED_BASE
from tilewright.runtime.emulator.memory.cluster_addresses import place_of
from tilewright.runtime.emulator.ptx.ptx_syntax import SINK, Instruction, Register
from tilewright.runtime.emulator.sync.cluster_barriers import ClusterBarriers
from tilewright.runtime.limits import WARP

_SIZE = 8
_MOST = (1 << 20) - 1
_TIMEOUT = 0.1


@dataclass
class Mbarrier:
    """count: arrivals of a phase; pending: still missing; bytes: announced and not yet written; phase: completed ones.

    clocks: what the arrivals of this phase had seen; done: of completed phases. arrived: arrivals of each warp in this phase;
    brought: what the threads that issued its copies had seen. own: what a completed phase tells each warp of its own threads,
    which is nothing unless all of them arrived or one of them issued a copy. made: warp and clock of the initialisation.
    """

    count: int
    pending: int
    clocks: Array
    done: Array
    arrived: Array
    brought: Array
    own: Array
    made: tuple[int, int]
    bytes: int = 0
    phase: int = 0
    fenced: bool = False
    waiting: list[tuple[int, int, PtxSite]] = field(default_factory=list)


class Mbarriers:
    """Those of a batch, by byte in its shared memory."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self.warps = geometry.group
        self.objects: dict[int, Mbarrier] = {}

    def find(self, machine: Machine, site: PtxSite, lane: int, offset: int) -> Mbarrier | None:
        """The object that a lane uses; None and a finding where there is none, or nobody told the thread of it."""
        found = self.objects.get(offset)
        address = SHARED_BASE + offset % machine.shared.stride
        if found is None:
            machine.found(KernelCheck.UNINITIALISED, site, "no mbarrier was initialised here", lane, address)
            return None
        warp, clock = found.made
        races = machine.shared.races
        mine = int(machine.warp_of[lane])
        told = found.fenced and machine.unit(ClusterBarriers).met[mine, warp % self.warps] > clock
        if races is not None and warp != mine and races.seen[mine, warp % self.warps] <= clock and not told:
            message = "uses an mbarrier that another warp initialised, with no barrier between"
            machine.found(KernelCheck.RACE, site, message, lane, address)
        return found

    def arrive(self, machine: Machine, site: PtxSite, lane: int, offset: int, count: int, announced: int = 0) -> int:
        """`count` arrivals, after announcing bytes. Returns the state before, whose lowest bit is the phase."""
        found = self.find(machine, site, lane, offset)
        if found is None:
            return 0
        state = found.phase & 1
        found.bytes += announced
        if count > found.pending:
            message = f"{count} arrivals at an mbarrier that waits for {found.pending} more in this phase"
            machine.found(KernelCheck.BARRIER, site, message, lane, SHARED_BASE + offset % machine.shared.stride)
        found.pending = max(0, found.pending - count)
        if count and machine.shared.races is not None:
            warp = int(machine.warp_of[lane])
            seen = machine.shared.races.release(np.array([warp]), meet=False)[0]
            np.maximum(found.clocks, seen, out=found.clocks)
            found.arrived[warp % self.warps] += 1
        self.settle(machine, found)
        return state

    def complete(self, machine: Machine, found: Mbarrier, size: int, seen: Array | None) -> None:
        """`size` bytes were written by a copy whose thread had seen `seen`."""
        found.bytes -= size
        if seen is not None:
            np.maximum(found.clocks, seen, out=found.clocks)
            np.maximum(found.brought, seen, out=found.brought)
        self.settle(machine, found)

    def settle(self, machine: Machine, found: Mbarrier) -> None:
        """Completes the phase when nothing is missing."""
        if found.pending or found.bytes:
            return
        found.phase += 1
        found.pending = found.count
        np.maximum(found.done, found.clocks, out=found.done)
        found.own = np.maximum(found.own, np.where(found.arrived >= WARP, found.done, found.brought))
        found.arrived[:] = 0
        ready = [w for w in found.waiting if found.phase & 1 != w[1]]
        found.waiting = [w for w in found.waiting if found.phase & 1 == w[1]]
        lanes = np.array([lane for lane, _, _ in ready], dtype=np.int64)
        if not len(lanes):
            return
        machine.status[lanes] = RUNNING
        self.acquire(machine, found, lanes)
        if machine.rng is not None:
            warps = np.unique(machine.warp_of[lanes])
            machine.level[warps] = machine.rng.integers(0, 4, len(warps))

    @staticmethod
    def acquire(machine: Machine, found: Mbarrier, lanes: Array) -> None:
        if machine.shared.races is not None:
            warps = np.unique(machine.warp_of[lanes])
            machine.shared.races.acquire(warps, found.done, found.own[warps % len(found.own)])

    def explain(self, machine: Machine) -> None:
        """Nobody can run: say what a waiting thread waits for."""
        for offset, found in self.objects.items():
            for lane, parity, site in found.waiting:
                if machine.status[lane] == BLOCKED:
                    missing = f"{found.pending} of {found.count} arrivals and {found.bytes} bytes in phase {found.phase}"
                    message = f"waits for the phase of parity {parity} of an mbarrier that lacks {missing}"
                    machine.found(KernelCheck.DEADLOCK, site, message, lane, SHARED_BASE + offset % machine.shared.stride)


def _build_init(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    address, count, site = cx.address(inst, inst.operands[0]), cx.source(inst, inst.operands[1], "u32"), cx.site(inst)

    def run(machine: Machine) -> None:
        lanes, barriers = machine.lane_indices(), machine.unit(Mbarriers)
        offsets = place_of(machine, over_lanes(machine, address(machine), lanes), lanes)
        counts = over_lanes(machine, count(machine), lanes)
        for lane, offset, wanted in zip(lanes.tolist(), offsets.tolist(), counts.tolist(), strict=True):
            if offset % _SIZE or not 0 < wanted <= _MOST:
                machine.found(KernelCheck.ALIGNMENT, site, f"an mbarrier of {wanted} arrivals at byte {offset}", lane)
            if offset in barriers.objects:
                message = "initialises an mbarrier that is in use: wanted mbarrier.inval before"
                machine.found(KernelCheck.BARRIER, site, message, lane, SHARED_BASE + offset % machine.shared.stride)
            warp = int(machine.warp_of[lane])
            clock = 0 if machine.shared.races is None else int(machine.shared.races.clock[warp])
            clocks, done, arrived, brought, own = np.zeros((5, machine.geometry.group), dtype=np.int64)
            barriers.objects[offset] = Mbarrier(wanted, wanted, clocks, done, arrived, brought, own, (warp, clock))

    return run


def _build_invalidate(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    address, site = cx.address(inst, inst.operands[0]), cx.site(inst)

    def run(machine: Machine) -> None:
        lanes, barriers = machine.lane_indices(), machine.unit(Mbarriers)
        offsets = place_of(machine, over_lanes(machine, address(machine), lanes), lanes)
        for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True):
            if barriers.find(machine, site, lane, offset) is not None:
                del barriers.objects[offset]

    return run


def _build_arrive(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """mbarrier.arrive{.expect_tx} state, [address]{, count}; mbarrier.expect_tx [address], bytes."""
    expects = inst.has("expect_tx")
    only = expects and not inst.has("arrive")
    operands = list(inst.operands)
    put: LaneSink | None = None
    if not only:
        state = operands.pop(0)
        put = None if isinstance(state, Register) and state.name == SINK else cx.sink(inst, state, "b64")
    address, site = cx.address(inst, operands[0]), cx.site(inst)
    number = cx.source(inst, operands[1], "u32") if len(operands) > 1 else None

    def run(machine: Machine) -> None:
        lanes, barriers = machine.lane_indices(), machine.unit(Mbarriers)
        offsets = place_of(machine, over_lanes(machine, address(machine), lanes), lanes, site).tolist()
        numbers = [1] * len(lanes) if number is None else over_lanes(machine, number(machine), lanes).tolist()
        states = np.zeros(machine.lanes, dtype=np.uint64)
        for lane, offset, n in zip(lanes.tolist(), offsets, numbers, strict=True):
            count, announced = (0 if only else 1, n) if expects else (n, 0)
            states[lane] = barriers.arrive(machine, site, lane, offset, count, announced)
        if put is not None:
            put(machine, states)

    return run


def _build_wait(inst: Instruction, cx: BuildContext) -> Continuation:
    """mbarrier.try_wait{.parity} p, [address], state-or-parity{, time}; test_wait does not suspend."""
    suspends = inst.has("try_wait")
    put, address = cx.sink(inst, inst.operands[0], "pred"), cx.address(inst, inst.operands[1])
    by_parity = inst.has("parity")
    wanted = cx.source(inst, inst.operands[2], "u32" if by_parity else "u64")
    site, following = cx.site(inst), cx.following

    def run(machine: Machine) -> int | None:
        lanes, barriers = machine.lane_indices(), machine.unit(Mbarriers)
        offsets = place_of(machine, over_lanes(machine, address(machine), lanes), lanes).tolist()
        parities = (over_lanes(machine, wanted(machine), lanes) & wanted(machine).dtype.type(1)).tolist()
        done = np.ones(machine.lanes, dtype=bool)
        blocked = False
        over: dict[int, list[int]] = {}
        expired = suspends and machine.rng is not None and machine.rng.random() < _TIMEOUT
        for lane, offset, parity in zip(lanes.tolist(), offsets, parities, strict=True):
            found = barriers.find(machine, site, lane, offset)
            if found is None:
                continue
            if found.phase & 1 != parity:
                over.setdefault(offset, []).append(lane)
            elif suspends and not expired:
                found.waiting.append((lane, parity, site))
                machine.status[lane] = BLOCKED
                blocked = True
            else:
                done[lane] = False
        for offset, through in over.items():
            barriers.acquire(machine, barriers.objects[offset], np.array(through))
        put(machine, done)
        if not done.all():
            machine.level[np.unique(machine.warp_of[lanes])] += 1
        if not blocked:
            return following
        machine.pc[lanes] = following
        return None

    return run


MBARRIER: Mapping[str, OrdinaryBuilder] = {
    "mbarrier.init": _build_init,
    "mbarrier.inval": _build_invalidate,
    "mbarrier.arrive": _build_arrive,
    "mbarrier.expect_tx": _build_arrive,
}
MBARRIER_WAITS: Mapping[str, ControlBuilder] = {
    "mbarrier.try_wait": _build_wait,
    "mbarrier.test_wait": _build_wait,
}
