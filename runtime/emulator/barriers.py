"""Block barriers (PTX ISA, section 9.7.13.1): arrival, release, and what went wrong when nobody can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from runtime.emulator.findings import Check, Site
from runtime.emulator.formats import Array

if TYPE_CHECKING:
    from runtime.emulator.batch import Batch, Geometry

BARRIERS = 16
_WARP, _RUNNING, _BLOCKED, _EXITED = 32, 0, 2, 3


class Barriers:
    """The 16 barriers of each block of a batch.

    A lane counts as one arrival; a warp that is not full counts as 32. `expected` is 0 until someone arrives. A waiting lane's
    pc is already that of the next segment; `sites` maps it to the barrier instruction.
    """

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        warps = geometry.warps
        self.arrived = np.zeros((blocks, BARRIERS), dtype=np.int64)
        self.expected = np.zeros((blocks, BARRIERS), dtype=np.int64)
        self.clocks = np.zeros((blocks, BARRIERS, geometry.group), dtype=np.int64)
        self.waits_for = np.full(blocks * warps * _WARP, -1, dtype=np.int64)
        self.values = np.zeros(blocks * warps * _WARP, dtype=bool)
        self.sites: dict[int, tuple[Site, bool]] = {}
        self.results: dict[int, Callable[[Batch, Array], None]] = {}
        self._full = warps * _WARP
        self._passed = np.zeros(blocks, dtype=np.int64)
        self._weight = np.ones(blocks * warps * _WARP, dtype=np.int64)
        self._weight[(warps - 1) * _WARP :: warps * _WARP] += self._full - geometry.threads

    def arrive(self, s: Batch, site: Site, lanes: Array, ids: Array, counts: Array | None, waits: bool) -> None:
        """Lanes arrive; those that wait are blocked until the barrier completes."""
        if ((ids < 0) | (ids >= BARRIERS)).any():
            at = int(np.argmax((ids < 0) | (ids >= BARRIERS)))
            s.found(Check.BARRIER, site, f"barrier {int(ids[at])} does not exist; there are {BARRIERS}", int(lanes[at]))
            ids = ids % BARRIERS
        blocks = s.block_of[lanes]
        wanted = np.full(len(lanes), self._full) if counts is None else counts
        known = self.expected[blocks, ids]
        clash = (known != 0) & (known != wanted)
        if clash.any():
            at = int(np.argmax(clash))
            message = f"barrier {int(ids[at])} is waited for by {int(known[at])} and by {int(wanted[at])} threads"
            s.found(Check.BARRIER, site, message, int(lanes[at]))
        self.expected[blocks, ids] = wanted
        np.add.at(self.arrived, (blocks, ids), self._weight[lanes])
        if s.shared.races is not None:
            first = np.unique(s.warp_of[lanes] * BARRIERS + ids)
            warps, barriers = first // BARRIERS, first % BARRIERS
            seen = s.shared.races.release(warps)
            np.maximum.at(self.clocks, (warps // s.geometry.warps, barriers), seen)
        if waits:
            s.status[lanes] = _BLOCKED
            self.waits_for[lanes] = ids
        for key in np.unique(blocks * BARRIERS + ids):
            block, barrier = int(key) // BARRIERS, int(key) % BARRIERS
            if self.arrived[block, barrier] >= self.expected[block, barrier]:
                self._complete(s, block, barrier)

    def all_at_once(self, s: Batch) -> None:
        """Every thread of every block passes one barrier together."""
        s.statistics.barriers += len(s.blocks)
        if s.shared.races is not None:
            races, warps = s.shared.races, s.geometry.warps
            seen = races.release(np.arange(len(s.blocks) * warps))
            joined = seen.reshape(-1, warps, s.geometry.group).max(axis=1)
            races.acquire(np.arange(len(s.blocks) * warps), np.repeat(joined, warps, axis=0))

    def _complete(self, s: Batch, block: int, barrier: int) -> None:
        s.statistics.barriers += 1
        self.arrived[block, barrier] = self.expected[block, barrier] = 0
        span = slice(block * self._full, (block + 1) * self._full)
        lanes = np.flatnonzero((s.status[span] == _BLOCKED) & (self.waits_for[span] == barrier)) + block * self._full
        self._check_warps(s, lanes)
        self._reduce(s, lanes)
        s.status[lanes] = _RUNNING
        self.waits_for[lanes] = -1
        if s.shared.races is not None:
            s.shared.races.acquire(np.unique(s.warp_of[lanes]), self.clocks[block, barrier])
            self.clocks[block, barrier] = 0
        if s.rng is not None and len(lanes):
            warps = np.unique(s.warp_of[lanes])
            s.level[warps] = s.order[self._passed[block] % len(s.order), warps % s.geometry.warps]
            self._passed[block] += 1

    def _check_warps(self, s: Batch, lanes: Array) -> None:
        """bar.sync and barrier.sync.aligned want the whole warp at one instruction."""
        live = s.live.reshape(-1, _WARP).sum(axis=1)
        for warp in np.unique(s.warp_of[lanes]):
            mine = lanes[s.warp_of[lanes] == warp]
            places = np.unique(s.pc[mine])
            site, aligned = self.sites[int(places[0])]
            if aligned and (len(places) > 1 or len(mine) != live[warp]):
                message = f"{len(mine)} of {int(live[warp])} threads of the warp arrived here"
                s.found(Check.BARRIER, site, message, int(mine[0]))

    def _reduce(self, s: Batch, lanes: Array) -> None:
        for place in np.unique(s.pc[lanes]):
            put = self.results.get(int(place))
            if put is not None:
                with s.only(_mask(s, lanes[s.pc[lanes] == place])):
                    put(s, self.values[lanes])

    def explain(self, s: Batch) -> bool:
        """Nobody can run: report blocks whose threads exited or wait at different barriers, and let them go. False if none."""
        blocked = np.flatnonzero(s.status == _BLOCKED)
        blocked = blocked[self.waits_for[blocked] >= 0]
        for block in np.unique(s.block_of[blocked]):
            mine = blocked[s.block_of[blocked] == block]
            barrier = int(self.waits_for[mine].min())
            lane = int(mine[np.argmin(self.waits_for[mine])])
            site, _ = self.sites[int(s.pc[lane])]
            others = mine[self.waits_for[mine] != barrier]
            span = np.arange(block * self._full, (block + 1) * self._full)
            gone = span[(s.status[span] == _EXITED) & (s.thread_of[span] < s.geometry.threads)]
            missing = int(self.expected[block, barrier] - self.arrived[block, barrier])
            if len(others):
                other, _ = self.sites[int(s.pc[others[0]])]
                thread = s.geometry.thread_index(int(s.thread_of[others[0]]))
                message = (f"waits at barrier {barrier} for {missing} more threads, "
                           f"thread {thread} waits at barrier {int(self.waits_for[others[0]])}, line {other.line}")  # fmt: skip
            elif len(gone):
                thread = s.geometry.thread_index(int(s.thread_of[gone[0]]))
                message = f"waits at barrier {barrier} for {missing} more threads, but thread {thread} has exited"
            else:
                message = f"waits at barrier {barrier} for {missing} more threads that never arrive"
            s.found(Check.BARRIER, site, message, lane)
            self._complete(s, int(block), barrier)
        return len(blocked) > 0


def _mask(s: Batch, lanes: Array) -> Array:
    mask = np.zeros(s.lanes, dtype=bool)
    mask[lanes] = True
    return mask
