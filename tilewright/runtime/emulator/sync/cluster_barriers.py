"""barrier.cluster: the barrier of all threads of a cluster (PTX ISA, section 9.7.13)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, ControlBuilder, OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import BLOCKED, EXITED, RUNNING, Array, Geometry
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction
from tilewright.runtime.limits import WARP


class ClusterBarriers:
    """One barrier for each cluster of a batch: which lanes have arrived and not yet waited, and who waits.

    A relaxed arrival orders nothing but the initialisation of mbarriers that a fence precedes: `met` holds, for each warp, up to
    which clock of each other it has met it, whatever way.
    """

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        lanes, group = blocks * geometry.warps * WARP, geometry.group
        clusters = -(-blocks // geometry.blocks_of_cluster)
        self.arrived = np.zeros(lanes, dtype=bool)
        self.passed = np.zeros(lanes, dtype=bool)
        self.clocks = np.zeros((clusters, group), dtype=np.int64)
        self.done = np.zeros((clusters, group), dtype=np.int64)
        self.arrivals = np.zeros((clusters, group), dtype=np.int64)
        self.meeting = np.zeros((clusters, group), dtype=np.int64)
        self.met = np.zeros((lanes // WARP, group), dtype=np.int64)
        self.waiting = np.zeros(lanes, dtype=bool)
        self.sites: dict[int, PtxSite] = {}

    def arrive(self, machine: Machine, site: PtxSite, lanes: Array, orders: bool) -> None:
        """orders: what these lanes did before is seen by whoever waits."""
        again = self.arrived[lanes] | self.passed[lanes]
        if again.any():
            lane = int(lanes[np.argmax(again)])
            machine.found(KernelCheck.BARRIER, site, "arrives at the cluster's barrier twice with no wait between", lane)
        self.arrived[lanes] = True
        if machine.shared.races is not None:
            warps = np.unique(machine.warp_of[lanes])
            clusters, own = machine.cluster_of[warps * WARP], warps % self.arrivals.shape[1]
            seen = machine.shared.races.release(warps, meet=orders)
            np.maximum.at(self.arrivals, (clusters, own), seen[np.arange(len(warps)), own])
            if orders:
                np.maximum.at(self.clocks, clusters, seen)
        self.settle(machine)

    def wait(self, machine: Machine, site: PtxSite, lanes: Array) -> bool:
        """False: some lanes have to wait."""
        bare = ~(self.arrived[lanes] | self.passed[lanes])
        if bare.any():
            message = "waits at the cluster's barrier and has not arrived"
            machine.found(KernelCheck.BARRIER, site, message, int(lanes[np.argmax(bare)]))
            self.passed[lanes[bare]] = True
        ready = lanes[self.passed[lanes]]
        self._leave(machine, ready)
        late = lanes[~np.isin(lanes, ready)]
        self.waiting[late] = True
        machine.status[late] = BLOCKED
        for lane in late.tolist():
            self.sites[lane] = site
        return not len(late)

    def settle(self, machine: Machine) -> bool:
        """Completes the barrier of clusters all of whose threads have arrived or exited; did any?"""
        missing = machine.live & (machine.status != EXITED) & ~self.arrived
        found = False
        for cluster in np.unique(machine.cluster_of[self.arrived]).tolist():
            mine = machine.cluster_of == cluster
            if missing[mine].any():
                continue
            found = True
            lanes = np.flatnonzero(mine & self.arrived)
            self.arrived[lanes], self.passed[lanes] = False, True
            self.done[cluster] = np.maximum(self.done[cluster], self.clocks[cluster])
            self.meeting[cluster] = np.maximum(self.meeting[cluster], self.arrivals[cluster])
            waiting = lanes[self.waiting[lanes]]
            self._leave(machine, waiting)
            machine.status[waiting] = RUNNING
            if machine.rng is not None and len(waiting):
                warps = np.unique(machine.warp_of[waiting])
                machine.level[warps] = machine.rng.integers(0, 4, len(warps))
        return found

    def _leave(self, machine: Machine, lanes: Array) -> None:
        self.passed[lanes] = self.waiting[lanes] = False
        if len(lanes) and machine.shared.races is not None:
            warps = np.unique(machine.warp_of[lanes])
            clusters = machine.cluster_of[warps * WARP]
            machine.shared.races.acquire(warps, self.done[clusters])
            self.met[warps] = np.maximum(self.met[warps], self.meeting[clusters])

    def explain(self, machine: Machine) -> None:
        """Nobody can run: say what a waiting thread waits for."""
        for lane in np.flatnonzero(self.waiting).tolist()[:1]:
            mine = machine.live & (machine.cluster_of == machine.cluster_of[lane])
            missing = int((mine & (machine.status != EXITED) & ~self.arrived).sum())
            message = f"waits at the cluster's barrier for {missing} more threads"
            machine.found(KernelCheck.DEADLOCK, self.sites[lane], message, lane)


def _build_arrive(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """barrier.cluster.arrive{.release|.relaxed}{.aligned}."""
    site, orders = cx.site(inst), not inst.has("relaxed")
    return lambda machine: machine.unit(ClusterBarriers).arrive(machine, site, machine.lane_indices(), orders)


def _build_wait(inst: Instruction, cx: BuildContext) -> Continuation:
    """barrier.cluster.wait{.acquire}{.aligned}."""
    site, following = cx.site(inst), cx.following

    def run(machine: Machine) -> int | None:
        lanes = machine.lane_indices()
        if machine.unit(ClusterBarriers).wait(machine, site, lanes):
            return following
        machine.pc[lanes] = following
        return None

    return run


CLUSTER_ARRIVALS: Mapping[str, OrdinaryBuilder] = {"barrier.cluster.arrive": _build_arrive}
CLUSTER_WAITS: Mapping[str, ControlBuilder] = {"barrier.cluster.wait": _build_wait}
