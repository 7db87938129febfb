"""The asynchronous proxy of a batch: what bulk copies and wgmma read and write of shared memory, and fences before they do.

A write of a thread is seen by the asynchronous proxy only after a fence of that thread. A fence is held as the clock of its warp:
writes with a later clock are not covered.
"""

from __future__ import annotations

import numpy as np

from tilewright.runtime.emulator.machine.findings import KernelCheck
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.emulator.machine.races import RaceTracker
from tilewright.runtime.emulator.machine.storage import SHARED_BASE
from tilewright.runtime.emulator.memory.access import Access, AccessTarget, report_race
from tilewright.runtime.emulator.sync.mbarrier import Mbarriers
from tilewright.runtime.limits import WARP


class AsyncProxy:
    """Of one batch of blocks."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self._fenced = np.zeros(blocks * geometry.warps, dtype=np.int64)
        self._landed: Array | None = None

    def fence(self, machine: Machine, warps: Array) -> None:
        """fence.proxy.async by these warps."""
        races = machine.shared.races
        if races is not None:
            self._fenced[warps] = races.clock[warps]
            races.release(warps, meet=False)
        for made in machine.unit(Mbarriers).objects.values():
            if made.made[0] in warps:
                made.fenced = True

    def read(self, machine: Machine, access: Access, offsets: Array, lanes: Array) -> None:
        """The proxy reads shared memory at byte `offsets` on behalf of `lanes`: races, missing fences, unwritten bytes."""
        if machine.wants(KernelCheck.UNINITIALISED):
            written = machine.shared.written(offsets, access.size)
            if written is not None:
                at = int(np.argmin(written))
                where = SHARED_BASE + int(offsets[at]) % machine.shared.stride
                message = f"reads {access.size} bytes of shared memory that were not all written"
                machine.found(KernelCheck.UNINITIALISED, access.site, message, int(lanes[at]), where)
        races = machine.shared.races
        if races is None:
            return
        granules = machine.shared.granules(offsets, access.size)
        target = AccessTarget(machine.shared, lanes, offsets, None)
        race = races.read(granules, machine.warp_of[lanes], machine.group_thread_of[lanes])
        report_race(machine, access, target, race, "reads")
        clock, thread = races.last_write(granules)
        geometry, per_block = machine.geometry, machine.shared.stride // races.granule_bytes
        first = granules // per_block // geometry.blocks_of_cluster * geometry.group
        ours = (clock > 0) & ~self._by_proxy(races, granules)
        bare = ours & (clock > self._fenced[first + np.maximum(thread, 0) // WARP])
        if bare.any():
            row, column = (int(i[0]) for i in np.nonzero(bare))
            other = geometry.thread_index(int(thread[row, column]) % (geometry.warps * WARP))
            message = f"reads what thread {other} has written with no fence.proxy.async after it"
            where = SHARED_BASE + int(offsets[row]) % machine.shared.stride
            machine.found(KernelCheck.PROXY, access.site, message, int(lanes[row]), where)

    def _by_proxy(self, races: RaceTracker, granules: Array) -> Array:
        """Of these granules, those that the proxy itself wrote last."""
        if self._landed is None:
            return np.zeros(granules.shape, dtype=bool)
        landed = self._landed[granules]
        return np.asarray((landed != 0) & (landed == races.stamps[granules]))

    def landed(self, races: RaceTracker, granules: Array) -> None:
        """The proxy has written these granules."""
        if self._landed is None:
            self._landed = np.zeros(races.granules, dtype=np.int64)
        self._landed[granules] = races.stamps[granules]
