"""KernelCost of `generic` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.generic import GenericConfig
from tilewright.passes.spaces.kernel_cost import KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr


def extents(workload: Workload) -> dict[str, Expr]:
    """Of the first result: the axis of unit stride is the columns, all others are rows."""
    out = workload.outputs[0]
    unit = out.unit_axis if out.unit_axis is not None else len(out.dims) - 1
    rows = Expr.of(1)
    for axis, extent in enumerate(out.dims):
        rows = rows if axis == unit else rows * extent
    return {"rows": rows, "columns": out.dims[unit] if out.dims else Expr.of(1)}


def kernel_cost(config: GenericConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    size = max(o.dtype.bytes for o in (*workload.inputs, *workload.outputs))
    return KernelCost(
        coordinates=fields_of(config),
        tiles={"columns": config.lanes},
        pads={"columns": config.lanes},
        units={"rows": 1, "columns": config.chunk},
        features={"vector_share": config.lanes * size / limits.vector_bytes, "chunk_bytes": config.chunk * size},
    )
