"""KernelCost of `host_window` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.host_rows import widest_bytes
from tilewright.passes.spaces.host.host_window import HostWindowConfig, Layer
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr


def extents(workload: Workload) -> dict[str, Expr]:
    """Elements along the vectors, pixels of the pixel loop, and the other results, each row of pixels a unit of its own."""
    layer = Layer.of(workload)
    assert layer is not None
    pixel = layer.outer.row if layer.outer is not None else None
    rows = Expr.of(1)
    for d, loop in enumerate(workload.loops):
        if loop.role not in ("k", "r") and d not in (layer.along, pixel, *layer.free):
            rows = rows * loop.extent
    pixels = Expr.of(1) if pixel is None else workload.loops[pixel].extent
    return {"rows": rows, "pixels": pixels, "columns": workload.loops[layer.along].extent}


def kernel_cost(config: HostWindowConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    layer = Layer.of(workload)
    assert layer is not None
    size = widest_bytes(workload)
    across, along = layer.taps(workload)
    stride = layer.outer.stride if layer.outer is not None else 1
    read = (config.pixels - 1) * stride + across  # places that the pixels of a block read between them, a row of the window each
    joins = config.filters * config.pixels * config.nv * across * along
    return KernelCost(
        coordinates=fields_of(config),
        tiles={"pixels": config.pixels, "columns": config.nv * config.lanes},
        pads={"columns": config.lanes},
        units={"rows": 1, "pixels": config.chunk, "columns": 0},
        footprints={"rows_read": Footprint(across * size, "columns")},
        features={
            "sums": config.filters * config.pixels * config.nv,
            "joins_per_load": joins / (read * config.nv * along),
            "unrolled_joins": joins,
            "vector_share": config.lanes * size / limits.vector_bytes,
            "vectors_of_pixels": float(layer.inner is not None),
        },
    )
