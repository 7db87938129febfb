"""Registers of whole warps as arrays [warp, lane, register]: what instructions of a warp together read and write."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.emulator.alu.build_context import LaneSink, LaneSource
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import Array
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.limits import WARP

LANE = np.arange(WARP)


def whole_warps(machine: Machine, site: PtxSite) -> Array:
    """Warps of the batch that execute; a warp of which some threads do not is a finding."""
    if machine.mask is None:
        return np.arange(machine.lanes // WARP)
    active = machine.mask.reshape(-1, WARP)
    some = active.any(axis=1)
    partial = some & ~active.all(axis=1)
    if partial.any():
        warp = int(np.argmax(partial))
        lane = int(np.argmax(active[warp])) + warp * WARP
        message = f"{int(active[warp].sum())} of 32 threads of the warp execute an aligned instruction"
        machine.found(KernelCheck.WARP, site, message, lane)
    return np.flatnonzero(some)


def read_warps(machine: Machine, gets: list[LaneSource], warps: Array) -> Array:
    """[warp, lane, register] of the chosen warps."""
    found = [get(machine) for get in gets]
    values = [(v if v.size == machine.lanes else np.broadcast_to(v, machine.lanes)).reshape(-1, WARP)[warps] for v in found]
    return np.stack(values, axis=-1)


def write_warps(machine: Machine, puts: list[LaneSink], warps: Array, values: Array) -> None:
    """Write [warp, lane, register]."""
    for i, put in enumerate(puts):
        full = np.zeros((machine.lanes // WARP, WARP), dtype=values.dtype)
        full[warps] = values[:, :, i]
        put(machine, full.reshape(-1))


def element_index(transposed: bool) -> tuple[Array, Array]:
    """(row, column) [lane, half] of an 8x8 matrix of 16-bit elements that each lane holds."""
    along, across = np.repeat(LANE[:, None] // 4, 2, axis=1), 2 * (LANE[:, None] % 4) + np.arange(2)
    return (across, along) if transposed else (along, across)
