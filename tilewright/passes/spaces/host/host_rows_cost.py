"""KernelCost of `host_rows` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.host_rows import HostRowsConfig
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr


def extents(workload: Workload) -> dict[str, Expr]:
    return {"rows": workload.size("row"), "columns": workload.size("col")}


def kernel_cost(config: HostRowsConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    size = max(4, *(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)))
    columns = bool(config.axis == "lane" and workload.part_rows)  # have a lane each
    across = config.axis == "lane" and not columns
    step = config.lanes * (config.vectors or config.unroll)
    rows_a_unit = config.block * (config.lanes if across else 1)
    return KernelCost(
        coordinates={**fields_of(config), "axis": float(config.axis == "lane")},
        tiles={"rows": config.lanes} if across else {"rows": config.rows, "columns": config.lanes},
        pads={"rows": config.lanes} if across else {"columns": config.lanes},
        units={"rows": 0, "columns": step} if columns else {"rows": rows_a_unit, "columns": 0},
        most={"columns": config.vectors * config.lanes} if config.vectors else {},
        footprints={"rows_kept": Footprint((config.lanes if across else config.rows) * size, "columns")},
        features={
            "rows_a_unit": rows_a_unit,
            "elements_a_step": step,
            "vector_share": config.lanes * size / limits.vector_bytes,
            "independent_sums": config.unroll * (1 if across else config.rows),
        },
    )
