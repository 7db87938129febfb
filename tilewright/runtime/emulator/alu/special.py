"""Special registers: %tid, %ctaid, %laneid and others (PTX ISA, section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.machine import Machine

_BASES = (
    "tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "clock", "clock_hi", "clock64",
    "globaltimer", "globaltimer_lo", "globaltimer_hi", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge",
    "lanemask_gt", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid", "cluster_ctarank", "cluster_nctarank",
    "is_explicit_cluster", "dynamic_smem_size", "total_smem_size", "aggr_smem_size",
)  # fmt: skip
_MULTIPROCESSORS = 132


class SpecialRegisters:
    """Those of a batch that do not change, over lanes, by name; computed when they are first read."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self.values: dict[str, Array] = {}


def is_special(name: str) -> bool:
    return name.startswith("%") and name[1:].split(".")[0] in _BASES


def special_register(name: str) -> Callable[[Machine], Array]:
    """Reads a special register over lanes as uint32 or uint64. Values that do not change are computed once per batch."""
    base, _, axis = name[1:].partition(".")
    if base.startswith(("clock", "globaltimer")):
        return lambda machine: np.full(machine.lanes, machine.steps >> (32 if base.endswith("_hi") else 0), dtype=np.uint64)

    def get(machine: Machine) -> Array:
        values = machine.unit(SpecialRegisters).values
        found = values.get(name)
        if found is None:
            wide = _value(machine, base, axis)
            found = values[name] = np.broadcast_to(np.asarray(wide), (machine.lanes,)).astype(np.uint64)
        return found

    return get


def _value(machine: Machine, base: str, axis: str) -> Any:
    g = machine.geometry
    i = "xyz".find(axis) if axis else 0
    lane = machine.all_lanes % 32
    block = machine.blocks[machine.block_of]
    index = (block % g.grid[0], block // g.grid[0] % g.grid[1], block // (g.grid[0] * g.grid[1]))
    rank = tuple(index[k] % g.cluster[k] for k in range(3))
    thread = machine.thread_of
    match base:
        case "tid":
            return (thread % g.block[0], thread // g.block[0] % g.block[1], thread // (g.block[0] * g.block[1]))[i]
        case "ntid":
            return g.block[i]
        case "ctaid":
            return index[i]
        case "nctaid":
            return g.grid[i]
        case "laneid":
            return lane
        case "warpid":
            return machine.warp_of % g.warps
        case "nwarpid":
            return g.warps
        case "smid":
            return block % _MULTIPROCESSORS
        case "nsmid":
            return _MULTIPROCESSORS
        case "gridid" | "aggr_smem_size":
            return 0
        case "lanemask_eq":
            return 1 << lane
        case "lanemask_lt":
            return (1 << lane) - 1
        case "lanemask_le":
            return (2 << lane) - 1
        case "lanemask_gt":
            return 0xFFFFFFFF & ~((2 << lane) - 1)
        case "lanemask_ge":
            return 0xFFFFFFFF & ~((1 << lane) - 1)
        case "clusterid":
            return index[i] // g.cluster[i]
        case "nclusterid":
            return g.grid[i] // g.cluster[i]
        case "cluster_ctaid":
            return rank[i]
        case "cluster_nctaid":
            return g.cluster[i]
        case "cluster_ctarank":
            return rank[0] + g.cluster[0] * (rank[1] + g.cluster[1] * rank[2])
        case "cluster_nctarank":
            return g.cluster[0] * g.cluster[1] * g.cluster[2]
        case "is_explicit_cluster":
            return int(g.cluster != (1, 1, 1))
        case "dynamic_smem_size":
            return machine.dynamic_shared
        case "total_smem_size":
            return machine.shared.size
    raise EmulatorError(f"special register %{base} is not modelled")
