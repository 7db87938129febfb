"""One path for every load, store, atomic and copy: resolve the space, check the rules, then touch the memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.emulator.batch import Batch
from runtime.emulator.cluster import owner_of
from runtime.emulator.findings import Check, Site
from runtime.emulator.formats import Array
from runtime.emulator.memory import LOCAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_BASE, SHARED_WINDOW, Storage
from runtime.emulator.profile import count_sectors, count_wavefronts
from runtime.emulator.races import Race


@dataclass(frozen=True)
class Access:
    """What an instruction does to memory: `count` neighbouring words of `width` bytes in `space`, at an instruction's site."""

    site: Site
    space: str
    width: int
    count: int = 1

    @property
    def size(self) -> int:
        return self.width * self.count


@dataclass
class Target:
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


def resolve(s: Batch, access: Access, addresses: Array, lanes: Array) -> Target:
    """Check bounds and alignment; lanes that break a rule are reported and left out."""
    size = access.size
    inside: Array | None
    if access.space == "global":
        storage: Storage = s.memory
        offsets, inside = s.memory.locate(addresses, size)
    elif access.space == "shared":
        storage = s.shared
        offsets, owners = owner_of(s, access.site, addresses - SHARED_BASE, lanes)
        inside = (offsets >= 0) & (offsets + size <= s.shared.size)
    else:
        storage = s.local
        offsets = addresses - LOCAL_BASE
        inside = (offsets >= 0) & (offsets + size <= s.local.size)
    aligned = addresses & (size - 1) == 0
    good = aligned if inside is None else aligned & inside
    kept = None
    if not good.all():
        _report_address(s, access, addresses, lanes, inside, aligned)
        kept = np.flatnonzero(good)
        lanes, offsets = lanes[kept], offsets[kept]
    if access.space == "shared":
        offsets = offsets + (owners if kept is None else owners[kept]) * s.shared.stride
    elif access.space == "local":
        offsets = offsets + lanes * s.local.stride
    return Target(storage, lanes, offsets, kept)


def _report_address(s: Batch, access: Access, addresses: Array, lanes: Array, inside: Array | None, aligned: Array) -> None:
    if inside is not None and not inside.all():
        at = int(np.argmin(inside))
        address = int(addresses[at])
        if access.space == "global":
            near = s.memory.nearest(address)
        else:
            room = s.shared.size if access.space == "shared" else s.local.size
            base = SHARED_BASE if access.space == "shared" else LOCAL_BASE
            near = f"byte {address - base} of {room} bytes of {access.space} memory"
        s.found(Check.BOUNDS, access.site, f"{access.size} bytes of {access.space} memory: {near}", int(lanes[at]), address)
    if not aligned.all():
        at = int(np.argmin(aligned))
        message = f"the address is not a multiple of {access.size}, the size of the access"
        s.found(Check.ALIGNMENT, access.site, message, int(lanes[at]), int(addresses[at]))


def report_race(s: Batch, access: Access, target: Target, race: Race | None, verb: str) -> None:
    """Turn a race that the tracker found into a finding."""
    if race is None:
        return
    assert s.shared.races is not None
    lane = int(target.lanes[race.position])
    other = s.geometry.thread_index(race.other % (s.geometry.warps * 32))
    per_block = s.shared.stride // s.shared.races.granule_bytes
    address = race.granule % per_block * s.shared.races.granule_bytes + SHARED_BASE
    where = f" at line {race.line}" if race.line else ""
    message = f"{verb} what thread {other} has {race.action}{where} with no barrier between"
    if race.action.startswith("being"):
        message = f"{verb} what a copy of thread {other}{where} may still be writing"
    s.found(Check.RACE, access.site, message, lane, address)


def load(s: Batch, access: Access, addresses: Array, lanes: Array) -> Array:
    """[lane, element] unsigned words; 0 for lanes that broke a rule (where findings are collected)."""
    if access.space == "generic":
        return _generic_load(s, access, addresses, lanes)
    if access.space == "param":
        return _parameter_words(s, access, addresses, lanes)
    target = resolve(s, access, addresses, lanes)
    s.statistics.bytes_read[access.space] += len(lanes) * access.size
    if s.statistics.profile:
        _profile(s, access, target)
    _check_read(s, access, target, addresses)
    words = target.storage.gather(target.offsets, access.width, access.count)
    if target.kept is None:
        return words
    full = np.zeros((len(lanes), access.count), dtype=words.dtype)
    full[target.kept] = words
    return full


def _check_read(s: Batch, access: Access, target: Target, addresses: Array) -> None:
    if access.space == "shared" and s.shared.races is not None and len(target.lanes):
        lanes = target.lanes
        granules = s.shared.granules(target.offsets, access.size)
        report_race(s, access, target, s.shared.races.read(granules, s.warp_of[lanes], s.group_thread_of[lanes]), "reads")
    if s.report.wants(Check.UNINITIALISED):
        written = target.storage.written(target.offsets, access.size)
        if written is not None:
            at = int(np.argmin(written))
            origin = at if target.kept is None else int(target.kept[at])
            s.found(
                Check.UNINITIALISED, access.site, f"reads {access.size} bytes of {access.space} memory that were not all written",
                int(target.lanes[at]), int(addresses[origin]),
            )  # fmt: skip


def store(s: Batch, access: Access, addresses: Array, lanes: Array, values: Array) -> None:
    """Write [lane, element] unsigned words."""
    if access.space == "generic":
        for space, positions, shift in space_windows(addresses):
            part = Access(access.site, space, access.width, access.count)
            if positions is None:
                store(s, part, addresses, lanes, values)
            else:
                store(s, part, addresses[positions] - shift, lanes[positions], values[positions])
        return
    target = resolve(s, access, addresses, lanes)
    s.statistics.bytes_written[access.space] += len(lanes) * access.size
    if s.statistics.profile:
        _profile(s, access, target)
    if access.space == "shared" and s.shared.races is not None and len(target.lanes):
        granules = s.shared.granules(target.offsets, access.size)
        warp, thread = s.warp_of[target.lanes], s.group_thread_of[target.lanes]
        report_race(s, access, target, s.shared.races.write(granules, warp, thread, access.site.line), "writes")
    target.storage.scatter(target.offsets, values if target.kept is None else values[target.kept])


def _generic_load(s: Batch, access: Access, addresses: Array, lanes: Array) -> Array:
    parts = space_windows(addresses)
    result = np.zeros((len(lanes), access.count), dtype=f"u{access.width}")
    for space, positions, shift in parts:
        part = Access(access.site, space, access.width, access.count)
        if positions is None:
            return load(s, part, addresses, lanes)
        result[positions] = load(s, part, addresses[positions] - shift, lanes[positions])
    return result


def _parameter_words(s: Batch, access: Access, addresses: Array, lanes: Array) -> Array:
    size = access.size
    inside = (addresses >= 0) & (addresses + size <= len(s.parameters))
    if not inside.all():
        at = int(np.argmin(inside))
        message = f"{size} bytes past the {len(s.parameters)} bytes of parameters"
        s.found(Check.BOUNDS, access.site, message, int(lanes[at]), int(addresses[at]))
    offsets = np.where(inside, addresses, 0)
    raw = s.parameters[offsets[:, None] + np.arange(size)]
    return np.ascontiguousarray(raw).view(f"u{access.width}").reshape(-1, access.count)


def _profile(s: Batch, access: Access, target: Target) -> None:
    if access.space == "global":
        s.statistics.sectors += count_sectors(s.warp_of[target.lanes], target.offsets, access.size)
    elif access.space == "shared":
        actual, ideal = count_wavefronts(s.warp_of[target.lanes], target.lanes % 32, target.offsets, access.size)
        s.statistics.shared_wavefronts += actual
        s.statistics.shared_ideal += ideal
