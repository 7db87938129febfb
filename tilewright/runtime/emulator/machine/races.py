"""Shared-memory races: who touched each granule last, and what every warp knows of the others (vector clocks per warp).

A warp's clock advances when it arrives at a barrier; leaving the barrier, it has seen the clocks of all that arrived.
Two accesses are ordered when the later warp has seen a clock above the earlier access's. Within a warp, threads are
ordered by bar.warp.sync and block barriers only. The scheme is that of FastTrack (Flanagan and Freund, PLDI 2009), with
warps as its threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.runtime.emulator.machine.lanes import Array, Geometry

_THREAD = 0xFFF
_SEVERAL = 0xFFF
_ATOMIC = 1 << 12
_FLIGHT = 1 << 13
_CLOCK = 14
"""A stamp is clock << 14 | flight << 13 | atomic << 12 | thread + 1; clocks start at 1, so that 0 means never."""


@dataclass(frozen=True)
class Race:
    """The accessing lane's position in the request, its granule, the other thread, what that one did, and where."""

    position: int
    granule: int
    other: int
    action: str
    line: int


class RaceTracker:
    """Granules of `bytes` bytes of the shared memory of `blocks` blocks.

    Arguments: `granules` [lane, n] counts from the batch's first block; `warp` is the warp in the batch, `thread` in the cluster.
    """

    def __init__(self, blocks: int, geometry: Geometry, granules: int, granule_bytes: int) -> None:
        total, warps = blocks * granules, geometry.group
        self.granule_bytes = granule_bytes
        self.warps = warps
        self._writes = np.zeros(total, dtype=np.int64)
        self._lines = np.zeros(total, dtype=np.int32)
        self._reads = np.zeros(total * warps, dtype=np.int64)
        self.clock = np.ones(blocks * geometry.warps, dtype=np.int64)
        self.seen = np.ones((blocks * geometry.warps, warps), dtype=np.int64)

    # Order

    def release(self, warps: Array, meet: bool = True) -> Array:
        """Advance the clocks of these warps of the batch and return what each has seen, [warp, warps].

        meet: the threads of each warp wait for each other; else they are ordered with other warps alone.
        """
        own = warps % self.warps
        self.clock[warps] += 1
        if meet:
            self.seen[warps, own] = self.clock[warps]
        seen: Array = self.seen[warps]
        seen[np.arange(len(warps)), own] = self.clock[warps]
        return seen

    def acquire(self, warps: Array, clocks: Array, own: Array | None = None) -> None:
        """These warps now know `clocks` ([warp, warps]); own: what each knows of its own threads, if not the same."""
        known = np.maximum(self.seen[warps], clocks)
        if own is not None:
            row, column = np.arange(len(warps)), warps % self.warps
            known[row, column] = np.maximum(self.seen[warps, column], own)
        self.seen[warps] = known

    # Accesses

    def read(self, granules: Array, warp: Array, thread: Array) -> Race | None:
        """Record reads; the first race found."""
        race = self._after_write(granules, warp, thread, False)
        keys = granules * self.warps + (warp % self.warps)[:, None]
        stamp = ((self.clock[warp] << _CLOCK) | (thread + 1))[:, None]
        now, old = stamp, self._reads[keys]
        again = (old >> _CLOCK) == (stamp >> _CLOCK)
        if np.count_nonzero(again):
            now = np.where(again & (old != stamp), stamp | _SEVERAL, stamp)
        self._reads[keys] = now
        clash = self._reads[keys] != now
        if np.count_nonzero(clash):
            self._reads[keys[clash]] = np.broadcast_to(now, keys.shape)[clash] | _SEVERAL
        return race

    def write(self, granules: Array, warp: Array, thread: Array, line: int, atomic: bool = False) -> Race | None:
        """Record writes or atomic updates; the first race found."""
        race = self._before_write(granules, warp, thread, atomic)
        stamp = self._stamp(granules, warp, thread) | (_ATOMIC if atomic else 0)
        self._writes[granules] = stamp
        self._lines[granules] = line
        if race is None and not atomic:
            left = self._writes[granules]
            if (left != stamp).any():
                race = self._race(left != stamp, granules, left)
        return race

    def _stamp(self, granules: Array, warp: Array, thread: Array) -> Array:
        stamp = (self.clock[warp] << _CLOCK) | (thread + 1)
        return np.broadcast_to(stamp[:, None], granules.shape)

    def _after_write(self, granules: Array, warp: Array, thread: Array, atomic: bool) -> Race | None:
        """A race with the last write of a granule, or with a copy into it that is still in flight."""
        last = self._writes[granules]
        other = (last & _THREAD) - 1
        known = self.seen.reshape(-1)[(warp * self.warps)[:, None] + (np.maximum(other, 0) >> 5)]
        bad = (known <= last >> _CLOCK) & (last != 0)
        if np.count_nonzero(bad):
            bad &= (other != thread[:, None]) | (last & _FLIGHT != 0)
            if atomic:
                bad &= last & _ATOMIC == 0
            if bad.any():
                return self._race(bad, granules, last)
        return None

    def _before_write(self, granules: Array, warp: Array, thread: Array, atomic: bool) -> Race | None:
        race = self._after_write(granules, warp, thread, atomic)
        if race is not None:
            return race
        columns = np.arange(self.warps)
        reads = self._reads[granules[:, :, None] * self.warps + columns]
        unordered = reads >> _CLOCK >= self.seen[warp][:, None, :]
        if np.count_nonzero(unordered):
            own = (columns == (warp % self.warps)[:, None, None]) & (reads & _THREAD == (thread + 1)[:, None, None])
            unordered &= ~own
            if unordered.any():
                position, column, other_warp = (int(i[0]) for i in np.nonzero(unordered))
                reader = int(reads[position, column, other_warp]) & _THREAD
                other = other_warp * 32 if reader == _SEVERAL else reader - 1
                return Race(position, int(granules[position, column]), other, "read", 0)
        return None

    def _race(self, bad: Array, granules: Array, stamps: Array) -> Race:
        position, column = (int(i[0]) for i in np.nonzero(bad))
        granule, stamp = int(granules[position, column]), int(stamps[position, column])
        action = "being copied asynchronously" if stamp & _FLIGHT else "written"
        return Race(position, granule, (stamp & _THREAD) - 1, action, int(self._lines[granule]))

    # Asynchronous copies

    def start_copy(self, granules: Array, warp: Array, thread: Array, line: int) -> Race | None:
        """A copy by `thread` into these granules is in flight; any access until `finish_copy` is a race."""
        race = self._before_write(granules, warp, thread, False)
        never_seen = np.int64(1) << 48
        self._writes[granules] = (never_seen << _CLOCK) | _FLIGHT | (thread + 1)[:, None]
        self._lines[granules] = line
        return race

    def finish_copy(self, granules: Array, warp: Array, thread: Array) -> None:
        """The issuing thread waited for its copy: from here it counts as a write of that thread."""
        self._writes[granules] = self._stamp(granules, warp, thread)

    # The asynchronous proxy

    @property
    def granules(self) -> int:
        return len(self._writes)

    @property
    def stamps(self) -> Array:
        """The stamp of the last write of each granule."""
        return self._writes

    def last_write(self, granules: Array) -> tuple[Array, Array]:
        """(clock, 0 for never or for a copy in flight; thread in the block) of the last write of each granule."""
        last = self._writes[granules]
        return np.where(last & _FLIGHT, 0, last >> _CLOCK), (last & _THREAD) - 1

    def start_bulk(self, granules: Array, warp: Array, thread: Array, line: int) -> tuple[Race | None, Array, Array]:
        """A copy by the asynchronous proxy, issued by one thread, is in flight: (race, stamp that it leaves, what whoever
        learns of its end has seen)."""
        stamp = self._stamp(granules, warp, thread).copy()
        race = self.start_copy(granules, warp, thread, line)
        return race, stamp, self.release(np.unique(warp), meet=False)[0]

    def finish_bulk(self, granules: Array, stamps: Array) -> None:
        """The copy has landed."""
        self._writes[granules] = stamps
