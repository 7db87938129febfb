"""KernelCost of `gpu_rows` configurations. MLIR-free."""

from __future__ import annotations

import math

from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load, fields_of
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.shape import Expr

_PREAMBLE, _LOOP, _AN_ACCESS = 150.0, 12.0, 6.0  # instructions of a warp
_JOIN, _BARRIER = 3.0, 40.0  # instructions of a shuffle step; cycles of a barrier
_WAIT = 600.0  # cycles of a round of loads that nothing hides
_AN_OPERATION = {True: 2.0, False: 3.0}  # instructions, of a row in registers, of one that every sweep computes again
_MIDDLE = 64  # value of a dim where an operator's arithmetic is counted


def extents(workload: Workload) -> dict[str, Expr]:
    """Columns are what is reduced; contractions of one operand reduce k."""
    if workload.kind is Kind.ROWS:
        return {"rows": workload.size("row"), "columns": workload.size("col")}
    return {"rows": workload.size("b") * workload.size("m") * workload.size("n"), "columns": workload.size("k")}


def kernel_cost(config: GpuRowsConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c, kept = config, config.vectors_in_registers
    sweeps = max(1, workload.reductions) + 1
    rows, passes = c.threads // c.per_row, max(1, workload.part_rows)
    loads = 1 if kept else sweeps
    accesses = sum(len(o.dims) > 1 for o in workload.inputs) * loads + sum(len(o.dims) > 1 for o in workload.outputs)
    size = max((o.dtype.bytes for o in (*workload.inputs, *workload.outputs)), default=4)
    unroll = kept or c.unroll
    elements = c.vec * unroll
    warps = c.threads / WARP
    arithmetic = flops_an_element(workload) * _AN_OPERATION[bool(kept)] * (1 if kept else sweeps)
    work = elements * arithmetic + unroll * accesses * _AN_ACCESS + (0 if kept else sweeps * _LOOP)
    joins = sweeps * math.log2(max(c.per_row, 1)) * _JOIN + (sweeps * _BARRIER if c.per_row > WARP else 0.0)
    moved = float(c.threads * elements * accesses * size)
    together = min(1.0, c.per_row * c.vec * size / 32) if c.per_row > 1 else 1.0  # of a sector that one row's threads use
    block = GpuBlock(
        threads=c.threads,
        registers=min(limits.thread_registers, 32 * (c.index // 32) + kept * c.vec * max(1, size // 4) + 2 * c.vec),
        shared_bytes=4 * c.threads // WARP if c.per_row > WARP else 0,
        step=Load(warps * work * passes, 0.0, moved * passes / together),
        once=Load(warps * (_PREAMBLE + joins * passes), 0.0, 0.0),
        along="columns",
        depth=c.per_row * elements,
        chain=_WAIT * loads * passes,
        parts=c.blocks,
        launches=sweeps if c.blocks > 1 else 1,
    )
    return KernelCost(
        coordinates=fields_of(c),
        tiles={"rows": rows * passes, "columns": c.per_row * c.vec},
        pads={"rows": rows * passes, "columns": c.per_row * c.vec},
        units={"rows": rows * passes, "columns": 0},
        most={"columns": c.columns_in_registers} if kept else {},
        block=block,
        features={
            "rows_a_block": rows,
            "elements_a_round": elements,
            "bytes_an_access": c.vec * size,
            "sweeps": sweeps,
            "reads": loads,
            "blocks_a_row": c.blocks,
            "across_warps": float(c.per_row > WARP),
            "register_share": block.registers * c.threads / limits.registers,
        },
    )


def flops_an_element(workload: Workload) -> float:
    """Scalar operations for each point of the loops, at middling dims."""
    dims = dict.fromkeys(workload.dims, _MIDDLE)
    points = math.prod(max(1, loop.extent.evaluate(dims)) for loop in workload.loops)
    return workload.flops.evaluate(dims) / max(1, points)
