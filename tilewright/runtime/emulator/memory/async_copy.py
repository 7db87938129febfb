"""cp.async: copies from global to shared memory that land late (PTX ISA, section 9.7.9.25.3).

A copy lands when its thread waits for its group; with a seed, at a random time between the two. Until the wait, and for other
threads until a barrier after it, touching its bytes is a race.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import SHARED_WINDOW
from tilewright.runtime.emulator.memory.access import Access, report_race, resolve
from tilewright.runtime.emulator.memory.profile import count_sectors, count_wavefronts
from tilewright.runtime.emulator.ptx.ptx_syntax import Immediate, Instruction
from tilewright.runtime.limits import WARP


@dataclass
class LateCopy:
    """One instruction's copies: per lane where from (bytes into global memory), where to, bytes to read, group, and progress."""

    size: int
    lanes: Array
    targets: Array
    sources: Array
    counts: Array
    group: Array
    landed: Array
    waited: Array


class CopyQueue:
    """Copies in flight of a batch, and how many groups each lane has committed."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self.committed = np.zeros(blocks * geometry.warps * WARP, dtype=np.int64)
        self.flights: list[LateCopy] = []

    def issue(self, flight: LateCopy) -> None:
        self.flights.append(flight)

    def commit(self, lanes: Array) -> None:
        self.committed[lanes] += 1

    def wait(self, machine: Machine, lanes: Array, pending: Array) -> None:
        """Finish, for these lanes, all groups but the latest `pending` committed ones; -1 finishes uncommitted copies too."""
        limit = np.full(machine.lanes, -1, dtype=np.int64)
        limit[lanes] = self.committed[lanes] - 1 - pending
        for flight in self.flights:
            chosen = ~flight.waited & (flight.group <= limit[flight.lanes])
            if chosen.any():
                self._land(machine, flight, chosen & ~flight.landed)
                flight.waited |= chosen
                if machine.shared.races is not None:
                    granules = machine.shared.granules(flight.targets[chosen], flight.size)
                    owners = flight.lanes[chosen]
                    machine.shared.races.finish_copy(granules, machine.warp_of[owners], machine.group_thread_of[owners])
        self.flights = [flight for flight in self.flights if not flight.waited.all()]

    def drift(self, machine: Machine) -> None:
        """Land some copies early, chosen by the batch's random generator."""
        if machine.rng is None or not self.flights:
            return
        for index in machine.rng.integers(0, len(self.flights), 2):
            flight = self.flights[int(index)]
            chosen = ~flight.landed
            if machine.rng.random() < 0.5:
                chosen &= machine.rng.random(len(flight.lanes)) < 0.5
            if chosen.any():
                self._land(machine, flight, chosen)

    @staticmethod
    def _land(machine: Machine, flight: LateCopy, chosen: Array) -> None:
        flight.landed |= chosen
        for count in np.unique(flight.counts[chosen]):
            part = chosen & (flight.counts == count)
            words = np.zeros((int(part.sum()), flight.size), dtype=np.uint8)
            if count == flight.size:
                words = machine.memory.gather(flight.sources[part], 1, flight.size)
            elif count:
                words[:, :count] = machine.memory.data[flight.sources[part][:, None] + np.arange(count)]
            machine.shared.scatter(flight.targets[part], words)


def _build_copy(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    to, source, size_operand = inst.operands[:3]
    if not isinstance(size_operand, Immediate) or size_operand.value not in (4, 8, 16):
        raise cx.refuse(inst, "the size of cp.async is 4, 8 or 16")
    if inst.has("cg") and size_operand.value != 16:
        raise cx.refuse(inst, "cp.async.cg copies 16 bytes")
    size, site = size_operand.value, cx.site(inst)
    to_address, from_address = cx.address(inst, to), cx.address(inst, source)
    count, ignore = None, None
    if len(inst.operands) > 3:
        slot = cx.slot(inst.operands[3])
        if slot is not None and slot.bits == 1:
            ignore = cx.source(inst, inst.operands[3], "pred")
        elif slot is None or slot.bits == 32:
            count = cx.source(inst, inst.operands[3], "u32")
    writing, reading = Access(site, "shared", size), Access(site, "global", size)

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        targets = over_lanes(machine, to_address(machine), lanes)
        targets = np.where(targets >= SHARED_WINDOW, targets - SHARED_WINDOW, targets)
        sources = over_lanes(machine, from_address(machine), lanes)
        counts = np.full(len(lanes), size, dtype=np.int64)
        if count is not None:
            counts = over_lanes(machine, count(machine), lanes).astype(np.int64)
        elif ignore is not None:
            counts = np.where(over_lanes(machine, ignore(machine), lanes), 0, size)
        target = resolve(machine, writing, targets, lanes)
        keep = np.ones(len(lanes), dtype=bool)
        if target.kept is not None:
            keep[:] = False
            keep[target.kept] = True
        places, readable = _check_source(machine, reading, sources, lanes, counts)
        keep &= readable
        offsets = np.zeros(len(lanes), dtype=np.int64)
        offsets[target.kept if target.kept is not None else slice(None)] = target.offsets
        lanes, offsets, sources, counts = lanes[keep], offsets[keep], places[keep], counts[keep]
        machine.statistics.bytes_read["global"] += int(counts.sum())
        machine.statistics.bytes_written["shared"] += size * len(lanes)
        if machine.statistics.profile:
            read = counts > 0
            machine.statistics.sectors += count_sectors(machine.warp_of[lanes[read]], sources[read], size)
            actual, ideal = count_wavefronts(machine.warp_of[lanes], lanes % WARP, offsets, size)
            machine.statistics.shared_wavefronts += actual
            machine.statistics.shared_ideal += ideal
        if machine.shared.races is not None and len(lanes):
            granules = machine.shared.granules(offsets, size)
            race = machine.shared.races.start_copy(granules, machine.warp_of[lanes], machine.group_thread_of[lanes], site.line)
            target.lanes = lanes
            report_race(machine, writing, target, race, "copies over")
        none = np.zeros(len(lanes), dtype=bool)
        queue = machine.unit(CopyQueue)
        queue.issue(LateCopy(size, lanes, offsets, sources, counts, queue.committed[lanes], none, none.copy()))

    return run


def _check_source(machine: Machine, access: Access, sources: Array, lanes: Array, counts: Array) -> tuple[Array, Array]:
    """Check the bytes that are read; a source of no bytes may point anywhere. Storage offsets, and lanes that may proceed."""
    keep = np.ones(len(lanes), dtype=bool)
    places = np.zeros(len(lanes), dtype=np.int64)
    if (counts < 0).any() or (counts > access.size).any():
        at = int(np.argmax((counts < 0) | (counts > access.size)))
        message = f"src-size {int(counts[at])} is above cp-size {access.size}"
        machine.found(KernelCheck.BOUNDS, access.site, message, int(lanes[at]))
        np.clip(counts, 0, access.size, out=counts)
    used = counts > 0
    misplaced = used & (sources & (access.size - 1) != 0)
    if misplaced.any():
        at = int(np.argmax(misplaced))
        message = f"the source is not a multiple of {access.size}, the size of the copy"
        machine.found(KernelCheck.ALIGNMENT, access.site, message, int(lanes[at]), int(sources[at]))
        keep &= ~misplaced
    for count in np.unique(counts[used & keep]):
        part = np.flatnonzero((counts == count) & keep)
        offsets, inside = machine.memory.locate(sources[part], int(count))
        places[part] = offsets
        if inside is not None:
            at = int(part[int(np.argmin(inside))])
            near = machine.memory.nearest(int(sources[at]))
            message = f"{count} bytes of global memory: {near}"
            machine.found(KernelCheck.BOUNDS, access.site, message, int(lanes[at]), int(sources[at]))
            keep[part[~inside]] = False
            part, offsets = part[inside], offsets[inside]
        if machine.wants(KernelCheck.UNINITIALISED) and len(part):
            written = machine.memory.valid[offsets[:, None] + np.arange(int(count))].all(axis=1)
            if not written.all():
                at = int(part[int(np.argmin(written))])
                message = f"copies {count} bytes of global memory that were not all written"
                machine.found(KernelCheck.UNINITIALISED, access.site, message, int(lanes[at]), int(sources[at]))
    return places, keep


def _build_commit(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    return lambda machine: machine.unit(CopyQueue).commit(machine.lane_indices())


def _build_wait(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    if inst.parts[2] == "wait_all":
        return lambda machine: machine.unit(CopyQueue).wait(machine, machine.lane_indices(), np.array([-1]))
    pending = cx.source(inst, inst.operands[0], "s32")

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        machine.unit(CopyQueue).wait(machine, lanes, over_lanes(machine, pending(machine), lanes).astype(np.int64))

    return run


ASYNC_COPY: Mapping[str, OrdinaryBuilder] = {
    "cp.async.ca": _build_copy,
    "cp.async.cg": _build_copy,
    "cp.async.commit_group": _build_commit,
    "cp.async.wait_group": _build_wait,
    "cp.async.wait_all": _build_wait,
}
