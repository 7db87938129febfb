"""KernelCost of `host_pools` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.host_pools import TILED, VECTOR, HostPoolsConfig, PoolFormat, extents_of, pixels_of
from tilewright.passes.spaces.host.pool_plane import PlaneShape
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr

_LOADS = 3.0  # a cycle: an index, a place of a table
_ADDS = 2.0  # vectors a cycle
_DOTTED, _TILED = 128, 1024  # products of bytes a cycle, of words and of tiles
_DECODED = 0.4  # cycles to put the bytes that an index names in place


def extents(workload: Workload) -> dict[str, Expr]:
    """Rows by columns, depth summed over."""
    seen = extents_of(workload)
    return {"batch": workload.size("b"), "rows": seen.rows, "columns": seen.columns, "depth": seen.depth}


def kernel_cost(config: HostPoolsConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    """Each vector along the sum is multiplied by all of the pool once a block of rows and unit of columns; then a column adds one
    vector of rows for it, which stands for `vector` multiply-adds a row."""
    form = PoolFormat.of(workload)
    assert form is not None
    rows, books, pixels = config.rows, form.books, pixels_of(workload) if config.window else None
    shared = 1 if pixels is None else pixels[1] * pixels[2]  # places of a window that a table serves
    plane = PlaneShape.of(workload) if config.by_strips else None
    wide = pixels[0] if pixels is not None else 1
    if plane is not None:
        shared, wide = plane.taps[0] * plane.taps[1], plane.width
    looked_up = books * max(2 / _LOADS, 1 / _ADDS) + (1 + 2 / _LOADS) / config.groups
    made = books * form.padded * (VECTOR if rows > 1 else 1) / _ADDS
    cycles = looked_up + made / config.columns / shared  # of a vector of rows, for one vector of the pool
    if config.decoded:
        pixels_of_strip = config.mc * wide
        cycles = rows * VECTOR / (_TILED if config.decoded == TILED else _DOTTED) + books * rows * _DECODED / pixels_of_strip
    return KernelCost(
        coordinates={**fields_of(config), "mc": float(config.mc // rows)},
        tiles={"rows": rows, "columns": 32},
        pads={"rows": rows},
        least={"rows": rows},
        units={"batch": 1, "rows": config.mc * wide, "columns": config.columns},
        rate=min(1.0, rows * VECTOR / (2 * VECTOR * cycles) / VECTOR),
        copied=Footprint(round(form.padded * rows * books / VECTOR * 4), "depth"),
        footprints={"indices": Footprint(config.columns * books // VECTOR or 1, "depth"),
                    "sums": Footprint(config.columns * rows * 4, "batch")},
        features={"cycles": cycles, "entries": form.entries, "books": books,
                  "table": config.groups * form.padded * rows * books * 4},
    )
