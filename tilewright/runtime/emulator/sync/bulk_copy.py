"""cp.async.bulk.tensor: boxes of tensors copied by the asynchronous proxy (PTX ISA, section 9.7.9.27.5).

A load completes bytes at an mbarrier, a store is waited for by its bulk group. Without a seed loads land when no thread can go on
without them and stores read at their wait; with one both happen at a random time before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, LaneSource, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import EmulatorError, KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import EXITED, Array, Geometry
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import PARAM_WINDOW, SHARED_BASE
from tilewright.runtime.emulator.memory.access import Access, AccessTarget, report_race
from tilewright.runtime.emulator.memory.cluster_addresses import place_of
from tilewright.runtime.emulator.memory.tensor_maps import box_addresses, decode, swizzled
from tilewright.runtime.emulator.ptx.ptx_syntax import Address, Immediate, Instruction
from tilewright.runtime.emulator.sync.async_proxy import AsyncProxy
from tilewright.runtime.emulator.sync.mbarrier import Mbarrier, Mbarriers
from tilewright.runtime.limits import WARP
from tilewright.runtime.program.tensor_map import MAP_BYTES, TensorMap

_ROW = 16  # bytes that stay together
_ALIGNMENT = 128
_LANDS = 0.3


@dataclass(eq=False)
class BoxCopy:
    """A box in flight: bytes of shared memory by chunk of 16, addresses and which elements are inside, and who issued it.

    barrier: of a load. block: that it is brought to, in the batch; one of several by multicast reads memory `again`. group: of a
    store, how many groups its thread had committed. stamps, seen: see RaceTracker.start_bulk.
    """

    access: Access
    lane: int
    kind: TensorMap
    offsets: Array
    addresses: Array
    inside: Array
    barrier: Mbarrier | None
    group: int
    block: int = 0
    again: bool = False
    stamps: Array | None = None
    seen: Array | None = None


class BulkCopies:
    """Bulk copies in flight of a batch, in order, and the bulk groups that each lane has committed."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self.committed = np.zeros(blocks * geometry.warps * WARP, dtype=np.int64)
        self.flights: list[BoxCopy] = []

    def issue(self, machine: Machine, flight: BoxCopy) -> None:
        races = machine.shared.races
        if flight.barrier is not None and races is not None:
            granules = machine.shared.granules(flight.offsets, _ROW)
            lanes = np.full(len(granules), flight.lane)
            warps, threads, line = machine.warp_of[lanes], machine.group_thread_of[lanes], flight.access.site.line
            race, stamps, flight.seen = races.start_bulk(granules, warps, threads, line)
            flight.stamps = stamps
            report_race(machine, flight.access, AccessTarget(machine.shared, lanes, flight.offsets, None), race, "copies into")
        self.flights.append(flight)

    def drift(self, machine: Machine) -> None:
        """Let some copies happen now, chosen by the batch's random generator."""
        if machine.rng is None or not self.flights:
            return
        now = machine.rng.random(len(self.flights)) < _LANDS
        chosen = [f for f, go in zip(self.flights, now, strict=True) if go]
        self.flights = [f for f, go in zip(self.flights, now, strict=True) if not go]
        for flight in chosen:
            self._land(machine, flight)

    def land_all(self, machine: Machine) -> bool:
        """Let every copy happen; were there any?"""
        chosen, self.flights = self.flights, []
        for flight in chosen:
            self._land(machine, flight)
        return bool(chosen)

    def finish(self, machine: Machine) -> None:
        """All threads have exited, without having waited for the stores that are still in flight."""
        for flight in self.flights:
            if flight.barrier is None:
                message = "the block exits while the copy may still read its shared memory: wanted cp.async.bulk.wait_group"
                machine.found(KernelCheck.UNFINISHED, flight.access.site, message, flight.lane)
        self.land_all(machine)

    def wait(self, machine: Machine, lane: int, pending: int) -> None:
        """Finish the stores of a lane but for its latest `pending` groups."""
        limit = int(self.committed[lane]) - pending
        due = [f for f in self.flights if f.barrier is None and f.lane == lane and f.group < limit]
        self.flights = [f for f in self.flights if f not in due]
        for flight in due:
            self._land(machine, flight)

    def _land(self, machine: Machine, flight: BoxCopy) -> None:
        if flight.barrier is None:
            _write_out(machine, flight)
            return
        mine = machine.block_of == flight.block
        if not (machine.live[mine] & (machine.status[mine] != EXITED)).any():
            message = "copies into the shared memory of a block that has exited"
            machine.found(KernelCheck.BOUNDS, flight.access.site, message, flight.lane)
        element = flight.kind.dtype.bytes
        words = np.zeros(flight.addresses.shape, dtype=f"u{element}")
        inside = np.nonzero(flight.inside)
        if len(inside[0]):
            words[inside] = _gather(machine, flight, flight.addresses[inside], element)
        machine.shared.scatter(flight.offsets, np.ascontiguousarray(words).view(np.uint8).reshape(-1, _ROW))
        races = machine.shared.races
        if flight.stamps is not None and races is not None:
            granules = machine.shared.granules(flight.offsets, _ROW)
            races.finish_bulk(granules, flight.stamps)
            machine.unit(AsyncProxy).landed(races, granules)
        machine.unit(Mbarriers).complete(machine, flight.barrier, words.size * element, flight.seen)


def _gather(machine: Machine, flight: BoxCopy, addresses: Array, element: int) -> Array:
    offsets = _locate(machine, flight, addresses, element)
    written = machine.memory.written(offsets, element) if machine.wants(KernelCheck.UNINITIALISED) else None
    if written is not None:
        at = int(addresses[int(np.argmin(written))])
        message = "copies global memory that was not all written"
        machine.found(KernelCheck.UNINITIALISED, flight.access.site, message, flight.lane, at)
    machine.statistics.bytes_read["global"] += 0 if flight.again else len(addresses) * element
    return machine.memory.gather(offsets, element, 1)[:, 0]


def _write_out(machine: Machine, flight: BoxCopy) -> None:
    element = flight.kind.dtype.bytes
    used = flight.offsets[flight.inside.reshape(-1, _ROW // element).any(axis=1)]
    machine.unit(AsyncProxy).read(machine, flight.access, used, np.full(len(used), flight.lane))
    words = machine.shared.gather(flight.offsets, element, _ROW // element).reshape(flight.addresses.shape)
    inside = np.nonzero(flight.inside)
    if len(inside[0]):
        machine.memory.scatter(_locate(machine, flight, flight.addresses[inside], element), words[inside][:, None])
    machine.statistics.bytes_written["global"] += len(inside[0]) * element


def _locate(machine: Machine, flight: BoxCopy, addresses: Array, element: int) -> Array:
    offsets, inside = machine.memory.locate(addresses, element)
    if inside is not None:
        at = int(addresses[int(np.argmin(inside))])
        message = f"the tensor map leaves its allocation: {machine.memory.nearest(at)}"
        machine.found(KernelCheck.BOUNDS, flight.access.site, message, flight.lane, at)
        offsets = np.where(inside, offsets, 0)
    return np.asarray(offsets)


# Instructions


def _map_of(machine: Machine, site: PtxSite, address: int) -> TensorMap:
    at = address - PARAM_WINDOW if address >= PARAM_WINDOW else address
    if not 0 <= at <= len(machine.parameters) - MAP_BYTES:
        raise EmulatorError(f"{site}: the tensor map at 0x{address:x} is no parameter of the kernel")
    return decode(machine.parameters[at : at + MAP_BYTES].tobytes())


def _offsets(machine: Machine, site: PtxSite, kind: TensorMap, lane: int, address: int, block: int) -> Array:
    """Bytes in the batch's shared memory of each chunk of a box at `address` of a block."""
    lanes = np.array([lane])
    first = int(place_of(machine, np.array([address]), lanes)[0]) - int(machine.block_of[lane]) * machine.shared.stride
    size = int(np.prod(kind.box)) * kind.dtype.bytes
    if first % _ALIGNMENT:
        message = f"the box begins at byte {first} of shared memory, no multiple of {_ALIGNMENT}"
        machine.found(KernelCheck.ALIGNMENT, site, message, lane)
    if first < 0 or first + size > machine.shared.size:
        message = f"a box of {size} bytes at byte {first} of {machine.shared.size} bytes of shared memory"
        machine.found(KernelCheck.BOUNDS, site, message, lane, SHARED_BASE + first)
        first = 0
    within = swizzled(first + SHARED_BASE + np.arange(0, size, _ROW), kind.swizzle) - SHARED_BASE
    return np.asarray(within + block * machine.shared.stride)


def _build_tensor(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """cp.async.bulk.tensor.Nd.shared::cluster.global... [to], [map, {coordinates}], [mbarrier]; the other way for stores."""
    spaces = [p.split("::")[0] for p in inst.parts]
    loads = spaces.index("shared") < spaces.index("global")
    if inst.has("im2col"):
        raise cx.refuse(inst, "only tiles are modelled")
    shared, tensor = inst.operands[:2] if loads else (inst.operands[1], inst.operands[0])
    if not isinstance(tensor, Address):
        raise cx.refuse(inst, f"expected a tensor map with coordinates, found {tensor}")
    coordinates: list[LaneSource] = [cx.source(inst, c, "s32") for c in tensor.coordinates]
    map_address, address = cx.address(inst, Address(tensor.base, tensor.offset)), cx.address(inst, shared)
    barrier = cx.address(inst, inst.operands[2]) if loads else None
    mask = cx.source(inst, inst.operands[3], "u16") if inst.has("multicast::cluster") else None
    site = cx.site(inst)
    access = Access(site, "shared", 4, 4)

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        barriers, copies = machine.unit(Mbarriers), machine.unit(BulkCopies)
        at = np.stack([over_lanes(machine, c(machine), lanes) for c in coordinates], axis=1).tolist()
        maps = over_lanes(machine, map_address(machine), lanes).tolist()
        targets = over_lanes(machine, address(machine), lanes).tolist()
        places = [0] * len(lanes)
        if barrier is not None:
            places = place_of(machine, over_lanes(machine, barrier(machine), lanes), lanes).tolist()
        masks = None if mask is None else over_lanes(machine, mask(machine), lanes).tolist()
        for i, lane in enumerate(lanes.tolist()):
            kind = _map_of(machine, site, maps[i])
            if len(kind.sizes) != len(coordinates):
                raise cx.refuse(inst, f"{len(coordinates)} coordinates of a tensor of {len(kind.sizes)} axes")
            addresses, inside = box_addresses(kind, tuple(at[i]))
            mine = int(machine.block_of[lane])
            blocks = [mine] if masks is None else _blocks(machine, site, lane, masks[i])
            for block in blocks:
                found = None
                if barrier is not None:
                    found = barriers.find(machine, site, lane, places[i] + (block - mine) * machine.shared.stride)
                    if found is None:
                        continue
                    if not found.fenced:
                        message = "no fence makes the mbarrier's initialisation visible to copies"
                        machine.found(KernelCheck.PROXY, site, message, lane)
                offsets = _offsets(machine, site, kind, lane, targets[i], block)
                group = int(copies.committed[lane])
                flight = BoxCopy(access, lane, kind, offsets, addresses, inside, found, group, block, block != blocks[0])
                copies.issue(machine, flight)

    return run


def _blocks(machine: Machine, site: PtxSite, lane: int, mask: int) -> list[int]:
    """Blocks of the batch that a multicast reaches."""
    count = machine.geometry.blocks_of_cluster
    if not mask or mask >> count:
        machine.found(KernelCheck.BOUNDS, site, f"a multicast to blocks of mask {mask:#x} of a cluster of {count}", lane)
    first = int(machine.block_of[lane]) // count * count
    return [first + rank for rank in range(count) if mask >> rank & 1]


def _build_commit(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    def run(machine: Machine) -> None:
        machine.unit(BulkCopies).committed[machine.lane_indices()] += 1

    return run


def _build_wait(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    pending = inst.operands[0]
    if not isinstance(pending, Immediate):
        raise cx.refuse(inst, "the number of groups is a constant")

    def run(machine: Machine) -> None:
        copies = machine.unit(BulkCopies)
        for lane in machine.lane_indices().tolist():
            copies.wait(machine, lane, pending.value)

    return run


def _build_proxy_fence(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    return lambda machine: machine.unit(AsyncProxy).fence(machine, np.unique(machine.warp_of[machine.lane_indices()]))


def _build_init_fence(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """fence.mbarrier_init: initialisations by these warps are visible to copies."""

    def run(machine: Machine) -> None:
        warps = np.unique(machine.warp_of[machine.lane_indices()])
        for made in machine.unit(Mbarriers).objects.values():
            made.fenced |= made.made[0] in warps

    return run


BULK_COPY: Mapping[str, OrdinaryBuilder] = {
    "cp.async.bulk.tensor": _build_tensor,
    "cp.async.bulk.commit_group": _build_commit,
    "cp.async.bulk.wait_group": _build_wait,
    "fence.proxy.async": _build_proxy_fence,
    "fence.mbarrier_init": _build_init_fence,
}
