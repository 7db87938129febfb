"""What `host_window` runs untuned. MLIR-free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from tilewright.passes.spaces.host import generic_heuristics
from tilewright.passes.spaces.host.host_rows import widest_bytes
from tilewright.passes.spaces.host.host_window import HostWindowConfig, Layer, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node

_LATENCY = 4  # cycles from a join to the next of the same result
_NONE = "not measured with other values: no operator of the bench pools or convolves each channel by itself"


@dataclass(frozen=True)
class Thresholds:
    """Sizes of register blocks and work units."""

    sums: int = threshold(12, unit="results of a block of filters in flight, from which it takes no more pixels or vectors",
                          operator="conv3x3_64x56_64_nchw",
                          results="not kept: 8, 12, 16 and 24 with 3x3 to 7x7 windows of 3 channels and in 4 and 16 groups, on "
                                  "AVX-512 and by its AVX2")
    few_sums: int = threshold(8, unit="the same of results of few products", operator="conv3x3_64x56_64_nchw",
                              results="not kept: the same with 3x3 windows of one channel")
    products: int = threshold(16, unit="products of a result, from which they are not few", operator="conv3x3_64x56_64_nchw",
                              results="not kept: results of 9 and 27 products")
    chunk: int = threshold(16, unit="rows of pixels whose image is copied at a time", operator="conv3x3_64x56_64_nchw",
                           results=_NONE)


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """The block with the fewest loads and joins for what it computes, of those whose registers hold it: vectors no wider than the
    columns, and pixels that leave few over. What is no reduction over windows is left to the family generic."""
    layer = Layer.of(workload)
    if layer is None:
        return generic_heuristics.default(workload, limits)
    columns = workload.loops[layer.along].extent.constant
    pixels = workload.loops[layer.outer.row].extent.constant if layer.outer is not None else 1
    lanes = limits.lanes(widest_bytes(workload))
    stepped = layer.inner is not None and layer.inner.stride > 1  # a masked load of places apart is a gather
    while columns is not None and lanes > 4 and (lanes if stepped else lanes // 2 + 1) > columns:
        lanes //= 2
    chunk = thresholds.chunk if layer.inner is not None and (pixels is None or pixels > thresholds.chunk) else 0
    most = layer.filters(workload)
    windows = [workload.loops[w.tap].extent.constant or 1 for w in (layer.outer, layer.inner) if w is not None]
    products = math.prod(windows) * (layer.depth(workload).constant or thresholds.products)
    sums = thresholds.sums if products >= thresholds.products else thresholds.few_sums
    best: tuple[float, HostWindowConfig] | None = None
    for filters in (n for n in range(1, min(most, limits.vector_registers // 2) + 1) if most % n == 0):
        for count, nv in product(range(1, 9), (1, 2, 3, 4)):
            config = HostWindowConfig(count, nv, lanes, chunk, filters)
            fewer = filters * (count * nv - min(count, nv)) if max(count, nv) > 1 else 0  # with one pixel or vector less
            enough = bool(layer.free) and fewer >= sums
            if not enough and why_invalid(config, workload, limits) is None:
                cost = _cost(config, layer, workload)
                if best is None or cost < best[0] * 0.98:
                    best = (cost, config)
    return (best[1] if best is not None else HostWindowConfig(1, 1, lanes, chunk),), Leaf(0)


def _cost(config: HostWindowConfig, layer: Layer, workload: Workload) -> float:
    """Cycles for the results of a row of pixels and one filter."""
    columns = workload.loops[layer.along].extent.constant
    pixels = workload.loops[layer.outer.row].extent.constant if layer.outer is not None else 1
    across, along = layer.taps(workload)
    stride = layer.outer.stride if layer.outer is not None else 1

    def block(count: int) -> float:
        if layer.free:
            return _shared_steps(config, count, across * along * (layer.depth(workload).constant or 1))
        places = across if count == 1 else (count - 1) * stride + across
        return _steps(count, config.nv, across * along, places * along)

    each = config.chunk or pixels or 64
    inside = each - (across - 1) // stride if layer.inner is None else each
    steps = inside // config.pixels * block(config.pixels) + (each - inside // config.pixels * config.pixels) * block(1)
    blocks = 1 / config.nv if columns is None else -(-columns // (config.nv * config.lanes))
    return steps * blocks / config.filters


def _steps(pixels: int, nv: int, taps: int, places: int) -> float:
    """Cycles of a block: joins, two a cycle and not before the one before them is done; loads, two a cycle; its start and end."""
    joins = max(pixels * nv * taps / 2, _LATENCY * taps)
    return max(joins, (places * nv + taps * nv) / 2) + 6 + pixels * nv


def _shared_steps(config: HostWindowConfig, pixels: int, taps: int) -> float:
    """The same of a block of several filters: each tap loads places once for all of them, from two lines each, and an element of
    each filter."""
    places, sums = pixels * config.nv, config.filters * pixels * config.nv
    loads = (2 * places + config.filters) / 2
    return (max(sums / 2, _LATENCY, loads) + loads / 8) * taps + 6 + sums
