"""KernelCost of `host_attention` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.host_attention import ELEMENT, MOST_SUMS, HostAttentionConfig
from tilewright.passes.spaces.host.host_matmul import TILE_ROWS
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr


def extents(workload: Workload) -> dict[str, Expr]:
    """Queries are rows, keys columns, the head's elements depth; each batch point is work of its own."""
    return {"batch": workload.size("b"), "rows": workload.size("m"), "columns": workload.size("n"),
            "depth": workload.size("k"), "values": workload.size("e")}


def kernel_cost(config: HostAttentionConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    sums = config.mr * config.nv
    coordinates = {**fields_of(config), "mc": float(config.mc // config.mr), "keys": float(config.keys // config.panel)}
    del coordinates["pairs"], coordinates["tiles"]  # the element type and the height of a block tell
    registers = sums / TILE_ROWS / MOST_SUMS if config.tiles else (sums + config.nv + 1) / limits.vector_registers
    factor = ELEMENT // config.side
    return KernelCost(
        coordinates=coordinates,
        tiles={"rows": config.mr, "columns": config.lanes},
        units={"batch": 1, "rows": config.mc, "columns": 0},
        most={} if config.online else {"columns": config.keys},
        footprints={
            "keys": Footprint(config.keys * factor, "depth"),
            "values": Footprint(config.keys * factor, "values"),
            "scores": Footprint(config.mr * config.keys * ELEMENT, "batch"),
        },
        features={
            "sums": sums,
            "fmas_per_load": sums / (config.mr + config.nv),
            "register_share": registers,
            "vector_share": config.lanes * ELEMENT / limits.vector_bytes,
        },
    )
