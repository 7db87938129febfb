"""Anatomy of `host_matmul` configurations. MLIR-free."""

from __future__ import annotations

from passes.spaces.anatomy import Anatomy, Footprint, fields_of
from passes.spaces.host_matmul import Extents, HostMatmulConfig, Pack
from passes.workload import Workload
from runtime.limits import HostLimits
from runtime.shape import Expr

_LATENCY = 8  # independent sums that keep two units of four cycles latency busy


def extents(workload: Workload) -> dict[str, Expr]:
    """Rows stream, columns lie along the vectors, depth is summed over, each batch is work of its own."""
    seen = Extents.of(workload)
    return {"batch": workload.size("b"), "rows": seen.rows, "columns": seen.columns, "depth": seen.depth}


def anatomy(config: HostMatmulConfig, workload: Workload, limits: HostLimits) -> Anatomy:
    size = Extents.of(workload).element_bytes
    sums = config.mr * config.nv
    chunk = config.mc // config.mr
    coordinates = {**fields_of(config), "mc": float(chunk)}
    registers = sums + config.nv + 1
    copies = config.pack is Pack.PANEL
    return Anatomy(
        coordinates=coordinates,
        tiles={"rows": config.mr, "columns": config.columns},
        pads={"columns": config.lanes},
        units={"batch": 1, "rows": config.mc, "columns": config.columns},
        footprints={
            "panel": Footprint(config.columns * size, "depth"),
            "row_block": Footprint(config.mr * size, "depth"),
            "chunk": Footprint(max(config.mc, config.mr) * size, "depth"),
        },
        features={
            "sums": sums,
            "fmas_per_load": sums / (config.mr + config.nv),
            "column_loads_per_fma": 1 / config.mr,
            "latency_hidden": min(1.0, sums / _LATENCY),
            "register_share": registers / limits.vector_registers,
            "vector_share": config.lanes * size / limits.vector_bytes,
            "block_columns": config.columns,
            "pack_bytes_a_row": config.columns * size if copies else 0,
            "prefetch_bytes": config.prefetch * config.columns * size,
        },
    )
