"""Shared-memory races: who touched each granule last, and what every warp knows of the others (vector clocks per warp).

A warp's clock advances when it arrives at a barrier; leaving the barrier, it has seen the clocks of all that arrived. Two accesses
are ordered when the later warp has seen a clock above the earlier access's. Within a warp, threads are ordered by bar.warp.sync
and block barriers only. The scheme is that of FastTrack (Flanagan and Freund, PLDI 2009), with warps as its threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.emulator.formats import Array


@dataclass(frozen=True)
class Race:
    """The accessing lane's position in the request, its granule, the other thread, what that one did, and where."""

    position: int
    granule: int
    other: int
    action: str
    line: int


class RaceTracker:
    """Granules of `bytes` bytes of the shared memory of `blocks` blocks of `warps` warps each.

    Arguments: `granules` [lane, n] counts from the batch's first block; `warp` is the warp in the batch, `thread` in the block.
    """

    def __init__(self, blocks: int, warps: int, granules: int, granule_bytes: int) -> None:
        total = blocks * granules
        self.granule_bytes = granule_bytes
        self.warps = warps
        self._writer = np.full(total, -1, dtype=np.int32)
        self._write_clock = np.zeros(total, dtype=np.int32)
        self._write_atomic = np.zeros(total, dtype=bool)
        self._write_line = np.zeros(total, dtype=np.int32)
        self._read_clock = np.full((total, warps), -1, dtype=np.int32)
        self._reader = np.full((total, warps), -1, dtype=np.int32)
        self._flight = np.zeros(total, dtype=np.int32)
        self.clock = np.zeros(blocks * warps, dtype=np.int32)
        self.seen = np.zeros((blocks * warps, warps), dtype=np.int32)

    # Order

    def release(self, warps: Array) -> Array:
        """Advance the clocks of these warps of the batch and return what each has seen, [warp, warps]."""
        self.clock[warps] += 1
        self.seen[warps, warps % self.warps] = self.clock[warps]
        return self.seen[warps]

    def acquire(self, warps: Array, clocks: Array) -> None:
        """These warps now know `clocks` ([warp, warps])."""
        self.seen[warps] = np.maximum(self.seen[warps], clocks)

    # Accesses

    def _writes(self, granules: Array, warp: Array, thread: Array, atomic: bool) -> Array:
        writer = self._writer[granules]
        suspect = (writer >= 0) & (writer != thread[:, None])
        if atomic:
            suspect &= ~self._write_atomic[granules]
        if not suspect.any():
            return suspect
        known = self.seen[warp[:, None], np.maximum(writer, 0) >> 5]
        return suspect & (known <= self._write_clock[granules])

    def _race(self, bad: Array, granules: Array, other: Array, action: str) -> Race:
        position, column = (int(i[0]) for i in np.nonzero(bad))
        granule = int(granules[position, column])
        line = int(self._write_line[granule]) if action == "written" else 0
        return Race(position, granule, int(other[position, column]), action, line)

    def _in_flight(self, granules: Array) -> Race | None:
        flight = self._flight[granules]
        if flight.any():
            return self._race(flight > 0, granules, flight - 1, "being copied asynchronously")
        return None

    def read(self, granules: Array, warp: Array, thread: Array) -> Race | None:
        """Record reads; the first race found."""
        bad = self._writes(granules, warp, thread, False)
        race = self._race(bad, granules, self._writer[granules], "written") if bad.any() else self._in_flight(granules)
        local, me, now = (warp % self.warps)[:, None], thread[:, None], self.clock[warp][:, None]
        fresh = self._read_clock[granules, local] != now
        known = self._reader[granules, local]
        others = ~fresh & (known != me)
        self._reader[granules, local] = np.where(others, -2, me)
        self._read_clock[granules, local] = now
        several = self._reader[granules, local] != np.where(others, -2, me)
        if several.any():
            rows = np.broadcast_to(local, granules.shape)
            self._reader[granules[several], rows[several]] = -2
        return race

    def write(self, granules: Array, warp: Array, thread: Array, line: int, atomic: bool = False) -> Race | None:
        """Record writes or atomic updates; the first race found."""
        race = self._check_write(granules, warp, thread, atomic)
        self._writer[granules] = thread[:, None]
        self._write_clock[granules] = self.clock[warp][:, None]
        self._write_atomic[granules] = atomic
        self._write_line[granules] = line
        if race is None and not atomic:
            clash = self._writer[granules] != thread[:, None]
            if clash.any():
                race = self._race(clash, granules, self._writer[granules], "written")
        return race

    def _check_write(self, granules: Array, warp: Array, thread: Array, atomic: bool) -> Race | None:
        bad = self._writes(granules, warp, thread, atomic)
        if bad.any():
            return self._race(bad, granules, self._writer[granules], "written")
        race = self._in_flight(granules)
        if race is not None:
            return race
        reads = self._read_clock[granules]
        unordered = reads >= self.seen[warp][:, None, :]
        if unordered.any():
            local = warp % self.warps
            own = self._reader[granules, local[:, None]] == thread[:, None]
            lanes, columns = np.nonzero(own)
            unordered[lanes, columns, local[lanes]] = False
            bad = unordered.any(axis=2)
            if bad.any():
                position, column = (int(i[0]) for i in np.nonzero(bad))
                granule, other_warp = int(granules[position, column]), int(np.argmax(unordered[position, column]))
                reader = int(self._reader[granule, other_warp])
                return Race(position, granule, reader if reader >= 0 else other_warp * 32, "read", 0)
        return None

    # Asynchronous copies

    def start_copy(self, granules: Array, warp: Array, thread: Array, line: int) -> Race | None:
        """A copy by `thread` into these granules is in flight; any access until `finish_copy` is a race."""
        race = self._check_write(granules, warp, thread, False)
        self._flight[granules] = thread[:, None] + 1
        self._write_line[granules] = line
        return race

    def finish_copy(self, granules: Array, warp: Array, thread: Array) -> None:
        """The issuing thread waited for its copy: from here it counts as a write of that thread."""
        self._flight[granules] = 0
        self._writer[granules] = thread[:, None]
        self._write_clock[granules] = self.clock[warp][:, None]
        self._write_atomic[granules] = False
