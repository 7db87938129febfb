"""One path for every load, store, atomic and copy: resolve the space, check the rules, then touch the memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.machine.races import Race
from tilewright.runtime.emulator.machine.storage import (
    LOCAL_BASE,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_BASE,
    SHARED_WINDOW,
    Storage,
)
from tilewright.runtime.emulator.memory.cluster_addresses import owner_of
from tilewright.runtime.emulator.memory.profile import count_sectors, count_wavefronts


@dataclass(frozen=True)
class Access:
    """What an instruction does to memory: `count` neighbouring words of `width` bytes in `space`, at an instruction's site."""

    site: PtxSite
    space: str
    width: int
    count: int = 1

    @property
    def size(self) -> int:
        return self.width * self.count


@dataclass
class AccessTarget:
    """Where an access lands: lanes that may proceed (`kept`: their positions in the request, None for all) and offsets."""

    storage: Storage
    lanes: Array
    offsets: Array
    kept: Array | None


def space_windows(addresses: Array) -> list[tuple[str, Array | None, int]]:
    """Split generic addresses: (space, positions or None for all, what to subtract)."""
    low, high = int(addresses.min()), int(addresses.max())
    if high < LOCAL_WINDOW and low >= 0:
        return [("global", None, 0)]
    parts: list[tuple[str, Array | None, int]] = []
    edges = [("local", LOCAL_WINDOW, PARAM_WINDOW), ("param", PARAM_WINDOW, SHARED_WINDOW), ("shared", SHARED_WINDOW, 1 << 62)]
    rest = np.ones(len(addresses), dtype=bool)
    for space, begin, end in edges:
        inside = (addresses >= begin) & (addresses < end)
        if inside.any():
            parts.append((space, np.flatnonzero(inside), begin))
            rest &= ~inside
    if rest.any():
        parts.append(("global", np.flatnonzero(rest), 0))
    return parts


def resolve(machine: Machine, access: Access, addresses: Array, lanes: Array) -> AccessTarget:
    """Check bounds and alignment; lanes that break a rule are reported and left out."""
    size = access.size
    inside: Array | None
    if access.space == "global":
        storage: Storage = machine.memory
        offsets, inside = machine.memory.locate(addresses, size)
    elif access.space == "shared":
        storage = machine.shared
        offsets, owners = owner_of(machine, access.site, addresses - SHARED_BASE, lanes)
        inside = (offsets >= 0) & (offsets + size <= machine.shared.size)
    else:
        storage = machine.local
        offsets = addresses - LOCAL_BASE
        inside = (offsets >= 0) & (offsets + size <= machine.local.size)
    aligned = addresses & (size - 1) == 0
    good = aligned if inside is None else aligned & inside
    kept = None
    if np.count_nonzero(good) != len(good):
        _report_address(machine, access, addresses, lanes, inside, aligned)
        kept = np.flatnonzero(good)
        lanes, offsets = lanes[kept], offsets[kept]
    if access.space == "shared":
        offsets = offsets + (owners if kept is None else owners[kept]) * machine.shared.stride
    elif access.space == "local":
        offsets = offsets + lanes * machine.local.stride
    return AccessTarget(storage, lanes, offsets, kept)


def _report_address(
    machine: Machine, access: Access, addresses: Array, lanes: Array, inside: Array | None, aligned: Array
) -> None:
    if inside is not None and not inside.all():
        at = int(np.argmin(inside))
        address = int(addresses[at])
        if access.space == "global":
            near = machine.memory.nearest(address)
        else:
            room = machine.shared.size if access.space == "shared" else machine.local.size
            base = SHARED_BASE if access.space == "shared" else LOCAL_BASE
            near = f"byte {address - base} of {room} bytes of {access.space} memory"
        message = f"{access.size} bytes of {access.space} memory: {near}"
        machine.found(KernelCheck.BOUNDS, access.site, message, int(lanes[at]), address)
    if not aligned.all():
        at = int(np.argmin(aligned))
        message = f"the address is not a multiple of {access.size}, the size of the access"
        machine.found(KernelCheck.ALIGNMENT, access.site, message, int(lanes[at]), int(addresses[at]))


def report_race(machine: Machine, access: Access, target: AccessTarget, race: Race | None, verb: str) -> None:
    """Turn a race that the tracker found into a finding."""
    if race is None:
        return
    assert machine.shared.races is not None
    lane = int(target.lanes[race.position])
    other = machine.geometry.thread_index(race.other % (machine.geometry.warps * 32))
    per_block = machine.shared.stride // machine.shared.races.granule_bytes
    address = race.granule % per_block * machine.shared.races.granule_bytes + SHARED_BASE
    where = f" at line {race.line}" if race.line else ""
    message = f"{verb} what thread {other} has {race.action}{where} with no barrier between"
    if race.action.startswith("being"):
        message = f"{verb} what a copy of thread {other}{where} may still be writing"
    machine.found(KernelCheck.RACE, access.site, message, lane, address)


def load(machine: Machine, access: Access, addresses: Array, lanes: Array) -> Array:
    """[lane, element] unsigned words; 0 for lanes that broke a rule (where findings are collected)."""
    if access.space == "generic":
        return _generic_load(machine, access, addresses, lanes)
    if access.space == "param":
        return _parameter_words(machine, access, addresses, lanes)
    target = resolve(machine, access, addresses, lanes)
    machine.statistics.bytes_read[access.space] += len(lanes) * access.size
    if machine.statistics.profile:
        _profile(machine, access, target)
    _check_read(machine, access, target, addresses)
    words = target.storage.gather(target.offsets, access.width, access.count)
    if target.kept is None:
        return words
    full = np.zeros((len(lanes), access.count), dtype=words.dtype)
    full[target.kept] = words
    return full


def _check_read(machine: Machine, access: Access, target: AccessTarget, addresses: Array) -> None:
    if access.space == "shared" and machine.shared.races is not None and len(target.lanes):
        lanes = target.lanes
        granules = machine.shared.granules(target.offsets, access.size)
        race = machine.shared.races.read(granules, machine.warp_of[lanes], machine.group_thread_of[lanes])
        report_race(machine, access, target, race, "reads")
    if machine.wants(KernelCheck.UNINITIALISED):
        written = target.storage.written(target.offsets, access.size)
        if written is not None:
            at = int(np.argmin(written))
            origin = at if target.kept is None else int(target.kept[at])
            message = f"reads {access.size} bytes of {access.space} memory that were not all written"
            machine.found(KernelCheck.UNINITIALISED, access.site, message, int(target.lanes[at]), int(addresses[origin]))


def store(machine: Machine, access: Access, addresses: Array, lanes: Array, values: Array) -> None:
    """Write [lane, element] unsigned words."""
    if access.space == "generic":
        for space, positions, shift in space_windows(addresses):
            part = Access(access.site, space, access.width, access.count)
            if positions is None:
                store(machine, part, addresses, lanes, values)
            else:
                store(machine, part, addresses[positions] - shift, lanes[positions], values[positions])
        return
    target = resolve(machine, access, addresses, lanes)
    machine.statistics.bytes_written[access.space] += len(lanes) * access.size
    if machine.statistics.profile:
        _profile(machine, access, target)
    if access.space == "shared" and machine.shared.races is not None and len(target.lanes):
        granules = machine.shared.granules(target.offsets, access.size)
        warp, thread = machine.warp_of[target.lanes], machine.group_thread_of[target.lanes]
        report_race(machine, access, target, machine.shared.races.write(granules, warp, thread, access.site.line), "writes")
    target.storage.scatter(target.offsets, values if target.kept is None else values[target.kept])


def _generic_load(machine: Machine, access: Access, addresses: Array, lanes: Array) -> Array:
    parts = space_windows(addresses)
    result = np.zeros((len(lanes), access.count), dtype=f"u{access.width}")
    for space, positions, shift in parts:
        part = Access(access.site, space, access.width, access.count)
        if positions is None:
            return load(machine, part, addresses, lanes)
        result[positions] = load(machine, part, addresses[positions] - shift, lanes[positions])
    return result


def _parameter_words(machine: Machine, access: Access, addresses: Array, lanes: Array) -> Array:
    size = access.size
    inside = (addresses >= 0) & (addresses + size <= len(machine.parameters))
    if not inside.all():
        at = int(np.argmin(inside))
        message = f"{size} bytes past the {len(machine.parameters)} bytes of parameters"
        machine.found(KernelCheck.BOUNDS, access.site, message, int(lanes[at]), int(addresses[at]))
    offsets = np.where(inside, addresses, 0)
    raw = machine.parameters[offsets[:, None] + np.arange(size)]
    return np.ascontiguousarray(raw).view(f"u{access.width}").reshape(-1, access.count)


def _profile(machine: Machine, access: Access, target: AccessTarget) -> None:
    if access.space == "global":
        machine.statistics.sectors += count_sectors(machine.warp_of[target.lanes], target.offsets, access.size)
    elif access.space == "shared":
        actual, ideal = count_wavefronts(machine.warp_of[target.lanes], target.lanes % 32, target.offsets, access.size)
        machine.statistics.shared_wavefronts += actual
        machine.statistics.shared_ideal += ideal
