"""Addresses in the shared memory of the blocks of a cluster, and mapa that makes them (PTX ISA, section 9.7.9).

Clusters lie along x, so that their blocks are neighbours in a batch. An address in the shared memory of the block of rank r of a
cluster is that of the block's own plus (r + 1) times a step above any block's size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.runtime.emulator.alu.build_context import BuildContext, over_lanes
from tilewright.runtime.emulator.alu.instruction_kinds import OrdinaryBuilder
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import EXITED, Array
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import SHARED_BASE, SHARED_WINDOW
from tilewright.runtime.emulator.ptx.ptx_syntax import Instruction

_STEP = 1 << 24


def owner_of(machine: Machine, site: PtxSite | None, inside: Array, lanes: Array) -> tuple[Array, Array]:
    """Bytes within a block's shared memory, and the block in the batch, of offsets that lanes use."""
    step = inside // _STEP
    blocks = machine.block_of[lanes]
    remote = step > 0
    if not remote.any():
        return inside, blocks
    count = machine.geometry.blocks_of_cluster
    target = np.where(remote, blocks // count * count + step - 1, blocks)
    wrong = remote & (step > count)
    if wrong.any():
        lane = int(lanes[np.argmax(wrong)])
        if site is not None:
            message = f"the shared memory of block {int(step.max()) - 1} of a cluster of {count}"
            machine.found(KernelCheck.BOUNDS, site, message, lane)
        target = np.where(wrong, blocks, target)
    if site is not None:
        alive = (machine.live & (machine.status != EXITED)).reshape(len(machine.blocks), -1).any(axis=1)
        gone = remote & ~alive[target]
        if gone.any():
            lane = int(lanes[np.argmax(gone)])
            machine.found(KernelCheck.BOUNDS, site, "the shared memory of a block of the cluster that has exited", lane)
    return inside % _STEP, target


def place_of(machine: Machine, addresses: Array, lanes: Array, site: PtxSite | None = None) -> Array:
    """Bytes in the batch's shared memory of addresses in the shared space, of the own block or of one of the cluster, or in its
    window. site: of an instruction that must not reach into a block that has exited."""
    inside = np.where(addresses >= SHARED_WINDOW, addresses - SHARED_WINDOW, addresses).astype(np.int64) - SHARED_BASE
    within, blocks = owner_of(machine, site, inside, lanes)
    return np.asarray(within + blocks * machine.shared.stride)


def _build_mapa(inst: Instruction, cx: BuildContext) -> InstructionRunner:
    """mapa{.shared::cluster}.type d, a, b: a generic address, or one of the shared space, in block b of the cluster."""
    kind = inst.parts[-1]
    put = cx.sink(inst, inst.operands[0], kind)
    source, rank = cx.source(inst, inst.operands[1], kind), cx.source(inst, inst.operands[2], "u32")
    site = cx.site(inst)

    def run(machine: Machine) -> None:
        lanes = machine.lane_indices()
        ranks = over_lanes(machine, rank(machine), lanes).astype(np.int64)
        if (ranks >= machine.geometry.blocks_of_cluster).any():
            lane = int(lanes[np.argmax(ranks >= machine.geometry.blocks_of_cluster)])
            message = f"rank {int(ranks.max())} of a cluster of {machine.geometry.blocks_of_cluster}"
            machine.found(KernelCheck.BOUNDS, site, message, lane)
        base = over_lanes(machine, source(machine), lanes).astype(np.int64)
        window = np.where(base >= SHARED_WINDOW, SHARED_WINDOW, 0) + SHARED_BASE
        found = np.zeros(machine.lanes, dtype=f"u{8 if kind.endswith('64') else 4}")
        found[lanes] = (base - window) % _STEP + window + (ranks + 1) * _STEP
        put(machine, found)

    return run


CLUSTER_ADDRESSES: Mapping[str, OrdinaryBuilder] = {"mapa": _build_mapa}
