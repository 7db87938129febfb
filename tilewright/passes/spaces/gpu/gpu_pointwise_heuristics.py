"""Default configuration of `gpu_pointwise`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.gpu.gpu_pointwise import GpuPointwiseConfig, reads_across
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node


@dataclass(frozen=True)
class Thresholds:
    """None is measured: there was no GPU."""

    access_bytes: int = threshold(16, unit="bytes of one access", operator="layernorm_768",
                                  results="not measured: the widest access of a thread")
    access_elements: int = threshold(4, unit="elements of one access", operator="layernorm_768",
                                     results="not measured: wider elements of a thread add registers, not bytes in flight")
    tile: int = threshold(32, unit="edge of a tile in elements", operator="bert_layer",
                          results="not measured: a warp reads and writes one row of a tile")
    threads: int = threshold(256, unit="threads of a block", operator="layernorm_768",
                             results="not measured: by occupancy arithmetic, 8 blocks fill a multiprocessor of 2048 threads")
    reduction_threads: int = threshold(128, unit="threads of a block", operator="bert_layer",
                                       results="not measured: results of inline loops are few, smaller blocks spread further")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[GpuPointwiseConfig, ...], Node]:
    """Vectors, tiles where an operand is read across the result, single elements of what is reduced. The last has no guards."""
    t = thresholds
    widest = max((o.dtype.bytes for o in workload.outputs), default=4)
    safe = GpuPointwiseConfig(1, 1, t.threads, index=64)
    if workload.kind is not Kind.POINTWISE:
        return (GpuPointwiseConfig(1, 1, t.reduction_threads), safe), Leaf(0)
    if _may_cross(workload):
        return (GpuPointwiseConfig(1, 1, t.threads, t.tile), safe), Leaf(0)
    return (GpuPointwiseConfig(max(1, min(t.access_elements, t.access_bytes // widest)), threads=t.threads), safe), Leaf(0)


def _may_cross(workload: Workload) -> bool:
    """Is an operand as large as the result and contiguous along another axis?"""
    out = workload.outputs[0]
    alike = [o for o in workload.inputs if sorted(o.dims) == sorted(out.dims)]
    return len(out.dims) > 1 and any(reads_across(o, out) for o in alike)
