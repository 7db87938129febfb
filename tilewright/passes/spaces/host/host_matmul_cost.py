"""KernelCost of `host_matmul` configurations. MLIR-free."""

from __future__ import annotations

from tilewright.passes.spaces.host.host_matmul import TAP_COST, TILE_ROWS, Extents, HostMatmulConfig, Pack
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.padding import padded_windows, padding_share, tap_depth
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import LINE, HostLimits
from tilewright.runtime.shape import Expr

_LEAST = 1.0  # cycles of a block for one step of k; sums are few enough to keep several sets of them, which hides latency
_LOADS = 2.0  # a cycle
_NEXT_CACHE = 48.0  # bytes a cycle from the second cache


def extents(workload: Workload) -> dict[str, Expr]:
    """Rows stream, columns lie along the vectors, depth is summed over, each batch is work of its own.

    tap: the part of the depth that one place of a window over zero padding takes.
    """
    seen = Extents.of(workload)
    named = {"batch": workload.size("b"), "rows": seen.rows, "columns": seen.columns, "depth": seen.depth}
    return named | ({"tap": tap_depth(workload)} if padded_windows(workload) else {})


def kernel_cost(config: HostMatmulConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    seen = (Extents.turned(workload) if config.turned else None) or Extents.of(workload)
    rows, columns = ("columns", "rows") if config.turned else ("rows", "columns")
    size = seen.element_bytes
    factor = 4 // config.side if config.side > 1 else size  # bytes of a value of k
    sums = config.mr * config.nv
    chunk = config.mc // config.mr
    coordinates = {**fields_of(config), "mc": float(chunk)}
    del coordinates["tiles"]  # which the height of a block tells
    if not (limits.bf16_tiles or limits.tiles):
        del coordinates["by_block"]
    if not padded_windows(workload):
        del coordinates["taps"]
    registers = sums + config.nv + 1
    copies = config.pack is Pack.PANEL
    along = "tap" if config.taps else "depth"
    cycles, floor = _cycles(config, seen, limits)
    share = sums / 2 / cycles * min(1.0, config.lanes * size / limits.vector_bytes)
    return KernelCost(
        coordinates=coordinates,
        tiles={rows: 1 if config.turned else config.mr, columns: config.columns},
        pads={columns: config.lanes},
        least={rows: max(1, round(floor / cycles * config.mr))},
        halved={rows: 0 if config.exact_tails or config.tiles else 1},
        units={"batch": 1, rows: config.mc, columns: config.columns * config.panels},
        partial={columns: _partial(config) / (cycles / config.nv)},
        rate=share * _taps_gain(config, workload),
        copied=Footprint(config.columns * factor, "depth") if copies or seen.transposed else None,
        footprints={
            "panel": Footprint(config.columns * factor, along),
            "row_block": Footprint(config.mr * factor, along),
            "chunk": Footprint(max(config.mc, config.mr) * factor, along),
        },
        features={
            "sums": sums,
            "fmas_per_load": sums / (config.mr + config.nv),
            "column_loads_per_fma": 1 / config.mr,
            "peak_share": share,
            "register_share": registers / limits.vector_registers,
            "vector_share": config.lanes * size / limits.vector_bytes,
            "block_columns": config.columns,
            "pack_bytes_a_row": config.columns * factor if copies else 0,
            "prefetch_bytes": config.prefetch * config.columns * factor,
            "carried_bytes": config.mc * config.columns * config.panels * size if config.kc or config.taps else 0,
        },
    )


def _taps_gain(config: HostMatmulConfig, workload: Workload) -> float:
    """How much faster the products with padding left out are, sums loaded and stored for each tap included."""
    if not config.taps:
        return 1.0
    kept = 1.0 - padding_share(workload, padded_windows(workload))
    depth = tap_depth(workload).constant or 1024
    return depth / (depth + TAP_COST) / max(kept, 0.1)


def _partial(config: HostMatmulConfig) -> float:
    """Cycles of a vector of columns for one step of k, as the last panel is done."""
    vectors = 2 if config.nv > 2 else 1
    return max(config.mr * vectors / 2, (config.mr + vectors) / _LOADS, _LEAST) / vectors


def _cycles(config: HostMatmulConfig, seen: Extents, limits: HostLimits) -> tuple[float, float]:
    """Cycles of the register block for one step of k, a value or a word; the part that fewer rows would not shorten."""
    depth = seen.depth.constant
    factor = 4 // config.side if config.side > 1 else seen.element_bytes
    beyond = depth is None or depth * config.columns * factor > limits.l1
    if config.tiles:
        high = config.mr // TILE_ROWS
        lines = config.nv + high
        return max(high * config.nv, lines * LINE / _NEXT_CACHE), max(config.nv, (config.nv + 1) * LINE / _NEXT_CACHE)
    floor = max(_LEAST, config.nv * config.lanes * seen.element_bytes / _NEXT_CACHE if beyond else 0.0)
    loads = config.nv * (1 + config.mr / config.stream) if config.stream else config.mr + config.nv
    return max(config.mr * config.nv / 2, loads / _LOADS, floor), floor
