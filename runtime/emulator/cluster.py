"""Clusters of blocks: addresses in each other's shared memory (mapa) and barrier.cluster (PTX ISA 9.7.9, 9.7.13).

Clusters lie along x, so that their blocks are neighbours in a batch. An address in the shared memory of the block of rank r of a
cluster is that of the block's own plus (r + 1) times a step above any block's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from runtime.emulator.batch import BLOCKED, EXITED, RUNNING, Runner
from runtime.emulator.findings import Check, Site
from runtime.emulator.formats import Array
from runtime.emulator.memory import SHARED_BASE, SHARED_WINDOW
from runtime.emulator.operands import BuildContext, over_lanes
from runtime.emulator.ptx import Instruction
from runtime.emulator.table import Builder, Continuation, ControlBuilder

if TYPE_CHECKING:
    from runtime.emulator.batch import Batch

_STEP = 1 << 24


class ClusterBarriers:
    """One barrier for each cluster of a batch: which lanes have arrived and not yet waited, and who waits."""

    def __init__(self, lanes: int, clusters: int, group: int) -> None:
        self.arrived = np.zeros(lanes, dtype=bool)
        self.passed = np.zeros(lanes, dtype=bool)
        self.clocks = np.zeros((clusters, group), dtype=np.int64)
        self.done = np.zeros((clusters, group), dtype=np.int64)
        self.waiting = np.zeros(lanes, dtype=bool)
        self.sites: dict[int, Site] = {}

    def arrive(self, s: Batch, site: Site, lanes: Array, orders: bool) -> None:
        """orders: what these lanes did before is seen by whoever waits."""
        again = self.arrived[lanes] | self.passed[lanes]
        if again.any():
            lane = int(lanes[np.argmax(again)])
            s.found(Check.BARRIER, site, "arrives at the cluster's barrier twice with no wait between", lane)
        self.arrived[lanes] = True
        if orders and s.shared.races is not None:
            warps = np.unique(s.warp_of[lanes])
            np.maximum.at(self.clocks, s.cluster_of[warps * 32], s.shared.races.release(warps))
        self.settle(s)

    def wait(self, s: Batch, site: Site, lanes: Array) -> bool:
        """False: some lanes have to wait."""
        bare = ~(self.arrived[lanes] | self.passed[lanes])
        if bare.any():
            s.found(Check.BARRIER, site, "waits at the cluster's barrier and has not arrived", int(lanes[np.argmax(bare)]))
            self.passed[lanes[bare]] = True
        ready = lanes[self.passed[lanes]]
        self._leave(s, ready)
        late = lanes[~np.isin(lanes, ready)]
        self.waiting[late] = True
        s.status[late] = BLOCKED
        for lane in late.tolist():
            self.sites[lane] = site
        return not len(late)

    def settle(self, s: Batch) -> bool:
        """Completes the barrier of clusters all of whose threads have arrived or exited; did any?"""
        missing = s.live & (s.status != EXITED) & ~self.arrived
        found = False
        for cluster in np.unique(s.cluster_of[self.arrived]).tolist():
            mine = s.cluster_of == cluster
            if missing[mine].any():
                continue
            found = True
            lanes = np.flatnonzero(mine & self.arrived)
            self.arrived[lanes], self.passed[lanes] = False, True
            self.done[cluster] = np.maximum(self.done[cluster], self.clocks[cluster])
            waiting = lanes[self.waiting[lanes]]
            self._leave(s, waiting)
            s.status[waiting] = RUNNING
            if s.rng is not None and len(waiting):
                warps = np.unique(s.warp_of[waiting])
                s.level[warps] = s.rng.integers(0, 4, len(warps))
        return found

    def _leave(self, s: Batch, lanes: Array) -> None:
        self.passed[lanes] = self.waiting[lanes] = False
        if len(lanes) and s.shared.races is not None:
            warps = np.unique(s.warp_of[lanes])
            s.shared.races.acquire(warps, self.done[s.cluster_of[warps * 32]])

    def explain(self, s: Batch) -> None:
        """Nobody can run: say what a waiting thread waits for."""
        for lane in np.flatnonzero(self.waiting).tolist()[:1]:
            missing = int((s.live & (s.status != EXITED) & ~self.arrived & (s.cluster_of == s.cluster_of[lane])).sum())
            s.found(Check.DEADLOCK, self.sites[lane], f"waits at the cluster's barrier for {missing} more threads", lane)


def owner_of(s: Batch, site: Site | None, inside: Array, lanes: Array) -> tuple[Array, Array]:
    """Bytes within a block's shared memory, and the block in the batch, of offsets that lanes use."""
    step = inside // _STEP
    blocks = s.block_of[lanes]
    remote = step > 0
    if not remote.any():
        return inside, blocks
    count = s.geometry.blocks_of_cluster
    target = np.where(remote, blocks // count * count + step - 1, blocks)
    wrong = remote & (step > count)
    if wrong.any():
        lane = int(lanes[np.argmax(wrong)])
        if site is not None:
            s.found(Check.BOUNDS, site, f"the shared memory of block {int(step.max()) - 1} of a cluster of {count}", lane)
        target = np.where(wrong, blocks, target)
    if site is not None:
        alive = (s.live & (s.status != EXITED)).reshape(len(s.blocks), -1).any(axis=1)
        gone = remote & ~alive[target]
        if gone.any():
            lane = int(lanes[np.argmax(gone)])
            s.found(Check.BOUNDS, site, "the shared memory of a block of the cluster that has exited", lane)
    return inside % _STEP, target


def _build_mapa(inst: Instruction, cx: BuildContext) -> Runner:
    """mapa{.shared::cluster}.type d, a, b: a generic address, or one of the shared space, in block b of the cluster."""
    kind = inst.parts[-1]
    put = cx.sink(inst, inst.operands[0], kind)
    source, rank = cx.source(inst, inst.operands[1], kind), cx.source(inst, inst.operands[2], "u32")
    site = cx.site(inst)

    def run(s: Batch) -> None:
        lanes = s.lane_indices()
        ranks = over_lanes(s, rank(s), lanes).astype(np.int64)
        if (ranks >= s.geometry.blocks_of_cluster).any():
            lane = int(lanes[np.argmax(ranks >= s.geometry.blocks_of_cluster)])
            s.found(Check.BOUNDS, site, f"rank {int(ranks.max())} of a cluster of {s.geometry.blocks_of_cluster}", lane)
        base = over_lanes(s, source(s), lanes).astype(np.int64)
        window = np.where(base >= SHARED_WINDOW, SHARED_WINDOW, 0) + SHARED_BASE
        found = np.zeros(s.lanes, dtype=f"u{8 if kind.endswith('64') else 4}")
        found[lanes] = (base - window) % _STEP + window + (ranks + 1) * _STEP
        put(s, found)

    return run


def _build_arrive(inst: Instruction, cx: BuildContext) -> Runner:
    """barrier.cluster.arrive{.release|.relaxed}{.aligned}."""
    site, orders = cx.site(inst), not inst.has("relaxed")
    return lambda s: s.cluster_barriers.arrive(s, site, s.lane_indices(), orders)


def _build_wait(inst: Instruction, cx: BuildContext) -> Continuation:
    """barrier.cluster.wait{.acquire}{.aligned}."""
    site, following = cx.site(inst), cx.following

    def run(s: Batch) -> int | None:
        lanes = s.lane_indices()
        if s.cluster_barriers.wait(s, site, lanes):
            return following
        s.pc[lanes] = following
        return None

    return run


CLUSTER: Mapping[str, Builder] = {"mapa": _build_mapa, "barrier.cluster.arrive": _build_arrive}
CLUSTER_WAITS: Mapping[str, ControlBuilder] = {"barrier.cluster.wait": _build_wait}
