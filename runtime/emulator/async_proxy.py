"""What the asynchronous proxy of a batch does: mbarriers, bulk tensor copies and wgmma in flight, and fences between proxies.

A write of a thread is seen by the asynchronous proxy only after a fence of that thread. A fence is held as the clock of its warp:
writes with a later clock are not covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runtime.emulator.access import Access, Target, report_race
from runtime.emulator.bulk_copy import BulkCopies
from runtime.emulator.findings import Check
from runtime.emulator.formats import Array
from runtime.emulator.mbarrier import Mbarriers
from runtime.emulator.memory import SHARED_BASE
from runtime.emulator.register_pool import RegisterPool
from runtime.emulator.wgmma import WgmmaQueue

if TYPE_CHECKING:
    from runtime.emulator.batch import Batch, Geometry


class AsyncProxy:
    """Of one batch of blocks."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        warps = geometry.warps
        self.barriers = Mbarriers(geometry.group)
        self.copies = BulkCopies(blocks * warps * 32)
        self.products = WgmmaQueue(blocks * warps)
        self.registers = RegisterPool(blocks, warps)
        self._fenced = np.zeros(blocks * warps, dtype=np.int64)
        self._landed: Array | None = None

    def fence(self, s: Batch, warps: Array) -> None:
        """fence.proxy.async by these warps."""
        races = s.shared.races
        if races is not None:
            self._fenced[warps] = races.clock[warps]
            races.release(warps, meet=False)
        for made in self.barriers.objects.values():
            if made.made[0] in warps:
                made.fenced = True

    def read(self, s: Batch, access: Access, offsets: Array, lanes: Array) -> None:
        """The proxy reads shared memory at byte `offsets` on behalf of `lanes`: races, missing fences, unwritten bytes."""
        if s.report.wants(Check.UNINITIALISED):
            written = s.shared.written(offsets, access.size)
            if written is not None:
                at = int(np.argmin(written))
                where = SHARED_BASE + int(offsets[at]) % s.shared.stride
                message = f"reads {access.size} bytes of shared memory that were not all written"
                s.found(Check.UNINITIALISED, access.site, message, int(lanes[at]), where)
        races = s.shared.races
        if races is None:
            return
        granules = s.shared.granules(offsets, access.size)
        target = Target(s.shared, lanes, offsets, None)
        report_race(s, access, target, races.read(granules, s.warp_of[lanes], s.group_thread_of[lanes]), "reads")
        clock, thread = races.last_write(granules)
        first = (granules // (s.shared.stride // races.granule_bytes)) // s.geometry.blocks_of_cluster * s.geometry.group
        ours = (clock > 0) & ~self._by_proxy(s)[granules]
        bare = ours & (clock > self._fenced[first + np.maximum(thread, 0) // 32])
        if bare.any():
            row, column = (int(i[0]) for i in np.nonzero(bare))
            other = s.geometry.thread_index(int(thread[row, column]) % (s.geometry.warps * 32))
            message = f"reads what thread {other} has written with no fence.proxy.async after it"
            s.found(Check.PROXY, access.site, message, int(lanes[row]), SHARED_BASE + int(offsets[row]) % s.shared.stride)

    def _by_proxy(self, s: Batch) -> Array:
        """Granules that the proxy itself wrote last."""
        assert s.shared.races is not None
        if self._landed is None:
            self._landed = np.zeros(s.shared.races.granules, dtype=np.int64)
        return np.asarray((self._landed != 0) & (self._landed == s.shared.races.stamps))

    def landed(self, s: Batch, granules: Array) -> None:
        """The proxy has written these granules."""
        self._by_proxy(s)
        assert self._landed is not None and s.shared.races is not None
        self._landed[granules] = s.shared.races.stamps[granules]

    # Progress

    def drift(self, s: Batch) -> None:
        """With a seed: let something that is in flight happen now."""
        self.copies.drift(s)

    def progress(self, s: Batch) -> bool:
        """Nobody can run: let copies in flight happen. False when there are none; then waiting threads are reported."""
        if self.copies.land_all(s) or s.cluster_barriers.settle(s):
            return True
        s.cluster_barriers.explain(s)
        self.registers.explain(s)
        self.barriers.explain(s)
        return False

    def finish(self, s: Batch) -> None:
        """All threads have exited: what is still in flight is a finding."""
        self.copies.finish(s)
        self.products.finish(s)
