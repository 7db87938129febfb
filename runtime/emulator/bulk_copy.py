"""cp.async.bulk.tensor: boxes of tensors copied by the asynchronous proxy (PTX ISA, section 9.7.9.27.5).

A load completes bytes at an mbarrier, a store is waited for by its bulk group. Without a seed loads land when no thread can go on
without them and stores read at their wait; with one both happen at a random time before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from runtime.emulator.access import Access, Target, report_race
from runtime.emulator.batch import EXITED
from runtime.emulator.findings import Check, EmulatorError, Site
from runtime.emulator.formats import Array
from runtime.emulator.mbarrier import Mbarrier, place_of
from runtime.emulator.memory import PARAM_WINDOW, SHARED_BASE
from runtime.emulator.operands import BuildContext, Source, over_lanes
from runtime.emulator.ptx import Address, Immediate, Instruction
from runtime.emulator.tensor_maps import box_addresses, decode, swizzled
from runtime.tensor_map import MAP_BYTES, TensorMap

if TYPE_CHECKING:
    from runtime.emulator.batch import Batch, Runner
    from runtime.emulator.table import Builder

_ROW = 16  # bytes that stay together
_ALIGNMENT = 128
_LANDS = 0.3


@dataclass
class Flight:
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

    def __init__(self, lanes: int) -> None:
        self.committed = np.zeros(lanes, dtype=np.int64)
        self.flights: list[Flight] = []

    def issue(self, s: Batch, flight: Flight) -> None:
        races = s.shared.races
        if flight.barrier is not None and races is not None:
            granules = s.shared.granules(flight.offsets, _ROW)
            lanes = np.full(len(granules), flight.lane)
            warps, threads, line = s.warp_of[lanes], s.group_thread_of[lanes], flight.access.site.line
            race, stamps, flight.seen = races.start_bulk(granules, warps, threads, line)
            flight.stamps = stamps
            report_race(s, flight.access, Target(s.shared, lanes, flight.offsets, None), race, "copies into")
        self.flights.append(flight)

    def drift(self, s: Batch) -> None:
        """Let some copies happen now, chosen by the batch's random generator."""
        if s.rng is None or not self.flights:
            return
        now = s.rng.random(len(self.flights)) < _LANDS
        chosen = [f for f, go in zip(self.flights, now, strict=True) if go]
        self.flights = [f for f, go in zip(self.flights, now, strict=True) if not go]
        for flight in chosen:
            self._land(s, flight)

    def land_all(self, s: Batch) -> bool:
        """Let every copy happen; were there any?"""
        chosen, self.flights = self.flights, []
        for flight in chosen:
            self._land(s, flight)
        return bool(chosen)

    def finish(self, s: Batch) -> None:
        """All threads have exited, without having waited for the stores that are still in flight."""
        for flight in self.flights:
            if flight.barrier is None:
                message = "the block exits while the copy may still read its shared memory: wanted cp.async.bulk.wait_group"
                s.found(Check.UNFINISHED, flight.access.site, message, flight.lane)
        self.land_all(s)

    def wait(self, s: Batch, lane: int, pending: int) -> None:
        """Finish the stores of a lane but for its latest `pending` groups."""
        limit = int(self.committed[lane]) - pending
        due = [f for f in self.flights if f.barrier is None and f.lane == lane and f.group < limit]
        self.flights = [f for f in self.flights if f not in due]
        for flight in due:
            self._land(s, flight)

    def _land(self, s: Batch, flight: Flight) -> None:
        if flight.barrier is None:
            _write_out(s, flight)
            return
        mine = s.block_of == flight.block
        if not (s.live[mine] & (s.status[mine] != EXITED)).any():
            s.found(Check.BOUNDS, flight.access.site, "copies into the shared memory of a block that has exited", flight.lane)
        element = flight.kind.dtype.bytes
        words = np.zeros(flight.addresses.shape, dtype=f"u{element}")
        inside = np.nonzero(flight.inside)
        if len(inside[0]):
            words[inside] = _gather(s, flight, flight.addresses[inside], element)
        s.shared.scatter(flight.offsets, np.ascontiguousarray(words).view(np.uint8).reshape(-1, _ROW))
        if flight.stamps is not None and s.shared.races is not None:
            granules = s.shared.granules(flight.offsets, _ROW)
            s.shared.races.finish_bulk(granules, flight.stamps)
            s.proxy.landed(s, granules)
        s.proxy.barriers.complete(s, flight.barrier, words.size * element, flight.seen)


def _gather(s: Batch, flight: Flight, addresses: Array, element: int) -> Array:
    offsets = _locate(s, flight, addresses, element)
    written = s.memory.written(offsets, element) if s.report.wants(Check.UNINITIALISED) else None
    if written is not None:
        at = int(addresses[int(np.argmin(written))])
        s.found(Check.UNINITIALISED, flight.access.site, "copies global memory that was not all written", flight.lane, at)
    s.statistics.bytes_read["global"] += 0 if flight.again else len(addresses) * element
    return s.memory.gather(offsets, element, 1)[:, 0]


def _write_out(s: Batch, flight: Flight) -> None:
    element = flight.kind.dtype.bytes
    used = flight.offsets[flight.inside.reshape(-1, _ROW // element).any(axis=1)]
    s.proxy.read(s, flight.access, used, np.full(len(used), flight.lane))
    words = s.shared.gather(flight.offsets, element, _ROW // element).reshape(flight.addresses.shape)
    inside = np.nonzero(flight.inside)
    if len(inside[0]):
        s.memory.scatter(_locate(s, flight, flight.addresses[inside], element), words[inside][:, None])
    s.statistics.bytes_written["global"] += len(inside[0]) * element


def _locate(s: Batch, flight: Flight, addresses: Array, element: int) -> Array:
    offsets, inside = s.memory.locate(addresses, element)
    if inside is not None:
        at = int(addresses[int(np.argmin(inside))])
        message = f"the tensor map leaves its allocation: {s.memory.nearest(at)}"
        s.found(Check.BOUNDS, flight.access.site, message, flight.lane, at)
        offsets = np.where(inside, offsets, 0)
    return np.asarray(offsets)


# Instructions


def _map_of(s: Batch, site: Site, address: int) -> TensorMap:
    at = address - PARAM_WINDOW if address >= PARAM_WINDOW else address
    if not 0 <= at <= len(s.parameters) - MAP_BYTES:
        raise EmulatorError(f"{site}: the tensor map at 0x{address:x} is no parameter of the kernel")
    return decode(s.parameters[at : at + MAP_BYTES].tobytes())


def _offsets(s: Batch, site: Site, kind: TensorMap, lane: int, address: int, block: int) -> Array:
    """Bytes in the batch's shared memory of each chunk of a box at `address` of a block."""
    lanes = np.array([lane])
    first = int(place_of(s, np.array([address]), lanes)[0]) - int(s.block_of[lane]) * s.shared.stride
    size = int(np.prod(kind.box)) * kind.dtype.bytes
    if first % _ALIGNMENT:
        s.found(Check.ALIGNMENT, site, f"the box begins at byte {first} of shared memory, no multiple of {_ALIGNMENT}", lane)
    if first < 0 or first + size > s.shared.size:
        message = f"a box of {size} bytes at byte {first} of {s.shared.size} bytes of shared memory"
        s.found(Check.BOUNDS, site, message, lane, SHARED_BASE + first)
        first = 0
    within = swizzled(first + SHARED_BASE + np.arange(0, size, _ROW), kind.swizzle) - SHARED_BASE
    return np.asarray(within + block * s.shared.stride)


def _build_tensor(inst: Instruction, cx: BuildContext) -> Runner:
    """cp.async.bulk.tensor.Nd.shared::cluster.global... [to], [map, {coordinates}], [mbarrier]; the other way for stores."""
    spaces = [p.split("::")[0] for p in inst.parts]
    loads = spaces.index("shared") < spaces.index("global")
    if inst.has("im2col"):
        raise cx.refuse(inst, "only tiles are modelled")
    shared, tensor = inst.operands[:2] if loads else (inst.operands[1], inst.operands[0])
    if not isinstance(tensor, Address):
        raise cx.refuse(inst, f"expected a tensor map with coordinates, found {tensor}")
    coordinates: list[Source] = [cx.source(inst, c, "s32") for c in tensor.coordinates]
    map_address, address = cx.address(inst, Address(tensor.base, tensor.offset)), cx.address(inst, shared)
    barrier = cx.address(inst, inst.operands[2]) if loads else None
    mask = cx.source(inst, inst.operands[3], "u16") if inst.has("multicast::cluster") else None
    site = cx.site(inst)
    access = Access(site, "shared", 4, 4)

    def run(s: Batch) -> None:
        lanes = s.lane_indices()
        at = np.stack([over_lanes(s, c(s), lanes) for c in coordinates], axis=1).tolist()
        maps, targets = over_lanes(s, map_address(s), lanes).tolist(), over_lanes(s, address(s), lanes).tolist()
        places = [0] * len(lanes) if barrier is None else place_of(s, over_lanes(s, barrier(s), lanes), lanes).tolist()
        masks = None if mask is None else over_lanes(s, mask(s), lanes).tolist()
        for i, lane in enumerate(lanes.tolist()):
            kind = _map_of(s, site, maps[i])
            if len(kind.sizes) != len(coordinates):
                raise cx.refuse(inst, f"{len(coordinates)} coordinates of a tensor of {len(kind.sizes)} axes")
            addresses, inside = box_addresses(kind, tuple(at[i]))
            mine = int(s.block_of[lane])
            blocks = [mine] if masks is None else _blocks(s, site, lane, masks[i])
            for block in blocks:
                found = None
                if barrier is not None:
                    found = s.proxy.barriers.find(s, site, lane, places[i] + (block - mine) * s.shared.stride)
                    if found is None:
                        continue
                    if not found.fenced:
                        s.found(Check.PROXY, site, "no fence makes the mbarrier's initialisation visible to copies", lane)
                offsets = _offsets(s, site, kind, lane, targets[i], block)
                group = int(s.proxy.copies.committed[lane])
                flight = Flight(access, lane, kind, offsets, addresses, inside, found, group, block, block != blocks[0])
                s.proxy.copies.issue(s, flight)

    return run


def _blocks(s: Batch, site: Site, lane: int, mask: int) -> list[int]:
    """Blocks of the batch that a multicast reaches."""
    count = s.geometry.blocks_of_cluster
    if not mask or mask >> count:
        s.found(Check.BOUNDS, site, f"a multicast to blocks of mask {mask:#x} of a cluster of {count}", lane)
    first = int(s.block_of[lane]) // count * count
    return [first + rank for rank in range(count) if mask >> rank & 1]


def _build_commit(inst: Instruction, cx: BuildContext) -> Runner:
    def run(s: Batch) -> None:
        s.proxy.copies.committed[s.lane_indices()] += 1

    return run


def _build_wait(inst: Instruction, cx: BuildContext) -> Runner:
    pending = inst.operands[0]
    if not isinstance(pending, Immediate):
        raise cx.refuse(inst, "the number of groups is a constant")

    def run(s: Batch) -> None:
        for lane in s.lane_indices().tolist():
            s.proxy.copies.wait(s, lane, pending.value)

    return run


def _build_proxy_fence(inst: Instruction, cx: BuildContext) -> Runner:
    return lambda s: s.proxy.fence(s, np.unique(s.warp_of[s.lane_indices()]))


def _build_init_fence(inst: Instruction, cx: BuildContext) -> Runner:
    """fence.mbarrier_init: initialisations by these warps are visible to copies."""

    def run(s: Batch) -> None:
        warps = np.unique(s.warp_of[s.lane_indices()])
        for made in s.proxy.barriers.objects.values():
            made.fenced |= made.made[0] in warps

    return run


BULK_COPY: Mapping[str, Builder] = {
    "cp.async.bulk.tensor": _build_tensor,
    "cp.async.bulk.commit_group": _build_commit,
    "cp.async.bulk.wait_group": _build_wait,
    "fence.proxy.async": _build_proxy_fence,
    "fence.mbarrier_init": _build_init_fence,
}
