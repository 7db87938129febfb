"""KernelCost of `gpu_pointwise` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.gpu.gpu_pointwise import GpuPointwiseConfig, reads_across
from tilewright.passes.spaces.gpu.gpu_rows_cost import flops_an_element
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.shape import Expr

_PREAMBLE, _AN_ACCESS, _AROUND = 60.0, 8.0, 12.0  # instructions of a warp
_CHAIN = 700.0  # cycles of loads that nothing hides
_IN_FLIGHT = 4.0  # rounds of a loop whose loads overlap
_SECTOR = 32


def extents(workload: Workload) -> dict[str, Expr]:
    """Elements of the first result, and how many points of the loops each takes."""
    elements = Expr.of(1)
    for extent in workload.outputs[0].dims:
        elements = elements * extent
    return {"elements": elements, "depth": workload.size("k") * workload.size("e") * workload.size("r")}


def kernel_cost(config: GpuPointwiseConfig, workload: Workload, limits: GpuLimits) -> KernelCost:
    c = config
    size = max((o.dtype.bytes for o in (*workload.inputs, *workload.outputs)), default=4)
    each = c.vec * c.chunks
    warps = c.threads / WARP
    inputs, outputs = len(workload.inputs), len(workload.outputs)
    arithmetic = each * flops_an_element(workload) / 2
    crossing = _crossing(workload) and not c.tile
    accesses = c.chunks * inputs * _AN_ACCESS * (c.vec if crossing else 1)
    read = float(c.threads * each * inputs * (_SECTOR if crossing else size))
    tile = c.tile * (c.tile + 1) * size
    block = GpuBlock(
        threads=c.threads,
        registers=min(limits.thread_registers, 24 * (c.index // 32) + 4 * each),
        shared_bytes=tile,
        step=Load(warps * (arithmetic + accesses + _AROUND), 2 * tile / 128, read),
        once=Load(warps * (_PREAMBLE + c.chunks * outputs * _AN_ACCESS), 0.0, float(c.threads * each * outputs * size)),
        along="depth",
        chain=_CHAIN / _IN_FLIGHT,
    )
    return KernelCost(
        coordinates=fields_of(c),
        tiles={"elements": each},
        pads={"elements": each},
        units={"elements": c.threads * each, "depth": 0},
        block=block,
        features={
            "elements_a_thread": each,
            "bytes_an_access": c.vec * size,
            "crossing": float(crossing),
            "tiled": float(bool(c.tile)),
            "warps": warps,
        },
    )


def _crossing(workload: Workload) -> bool:
    """Is an operand read across the axis along which the result is contiguous?"""
    out = workload.outputs[0]
    full = [o for o in workload.inputs if len(o.dims) >= len(out.dims) > 1]
    return any(reads_across(o, out) for o in full)
