"""What `host_window` runs untuned. MLIR-free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from tilewright.passes.spaces.host import generic_heuristics
from tilewright.passes.spaces.host.host_rows import widest_bytes
from tilewright.passes.spaces.host.host_window import HostWindowConfig, Layer, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch

_LINE = 64  # bytes
_AVX512 = 64  # bytes of the vectors whose masks are registers
_BESIDE = 3  # registers for what is joined with results
_LATENCY = 4  # cycles from a join to the next of the same result
_ROW, _PIECE = 20, 10  # cycles until it is known in which row a vector begins, and for what it has of a row, besides its stores
_MASKED = 18  # cycles of a store of some lanes by AVX2 on Zen 3 and 4 (LLVM branches for each with less); one by AVX-512
_PARTIAL = 3  # cycles of a store of the first lanes, by parts under branches
_SAME = 0.95  # of the usual cost: a kernel that is there for other columns is taken below it
_FEW_TAPS = 25  # unrolled taps at most of a kernel beside the usual one, which takes as long to build
_FEWEST_TAPS = 9  # of a window of 3x3
_VECTORS = range(1, 9)  # of rows whose length is not known
_WIDEST = 4  # vectors of a row up to which rows end to end are looked at
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
    flat: int = threshold(80, unit="hundredths of the usual cost, below which rows lie end to end or fewer vectors go at once",
                          operator="conv3x3_64x56_64_nchw",
                          results="zen5-avx512.md: windows of 3, 16 and 32 channels over 7 to 28 columns; zen4-avx2.md: of 3 "
                                  "channels over 4 to 10")
    chunk: int = threshold(16, unit="rows of pixels whose image is copied at a time", operator="conv3x3_64x56_64_nchw",
                           results=_NONE)
    shared_chunk: int = threshold(4, unit="the same where several filters share what is copied", operator="conv3x3_64x56_64_nchw",
                                  results="zen5-avx512.md: windows of 3, 16 and 32 channels")
    narrow: int = threshold(4, unit="columns of an image up to which vectors run on from row to row, half as many again with "
                                    "few taps", operator="conv3x3_64x56_64_nchw", results="zen5-avx512.md: narrow images")
    plane_chunk: int = threshold(64, unit="rows of pixels that such vectors pass over in a unit",
                                 operator="conv3x3_64x56_64_nchw", results=_NONE)
    flat_chunk: int = threshold(8, unit="the same of rows that are laid end to end", operator="conv3x3_64x56_64_nchw",
                                results="zen5-avx512.md: windows of 3, 16 and 32 channels over 7 to 28 columns")


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """The block with the fewest loads and joins for what it computes, of those whose registers hold it: vectors no wider than the
    columns, and pixels that leave few over. What is no reduction over windows is left to the family generic."""
    layer = Layer.of(workload)
    if layer is None:
        return generic_heuristics.default(workload, limits)
    columns = workload.loops[layer.along].extent.constant
    usual = _best(workload, layer, limits, thresholds, columns)
    if not layer.free or layer.inner is None or layer.outer is None:
        few = math.prod(layer.taps(workload)) <= _FEW_TAPS
        plane = HostWindowConfig(1, 1, limits.lanes(widest_bytes(workload)), _chunk(workload, layer, thresholds.plane_chunk),
                                 flat=True)
        narrow = _narrow(plane, layer, workload, thresholds) if why_invalid(plane, workload, limits) is None else 0
        if columns is not None:
            return (plane if columns <= narrow else usual,), Leaf(0)
        kernels, arms = [usual], list[tuple[int, Node]]()
        if narrow:
            kernels.append(plane)
            arms.append((narrow, Leaf(1)))
        if few and layer.inner is not None and usual.nv > 1:  # with one vector fewer results are in flight
            kernels.append(_best(workload, layer, limits, thresholds, usual.lanes))
            arms.append((usual.lanes, Leaf(len(kernels) - 1)))
        return tuple(kernels), _by_columns(workload, layer, arms) if arms else Leaf(0)
    flat = _flat(workload, layer, limits, thresholds)
    if columns is not None:
        gains = flat is not None and _flat_cost(flat, layer, workload, limits, columns) < thresholds.flat / 100 * _cost(
            usual, layer, workload, limits, columns)
        return (flat if flat is not None and gains else usual,), Leaf(0)
    fewer = [_best(workload, layer, limits, thresholds, n) for n in (2 * usual.lanes, usual.lanes // 2)]  # none left over
    kernels = list(dict.fromkeys([usual, *fewer, *([] if flat is None else [flat])]))

    def fastest(width: int, some: Iterable[int], share: float) -> int:
        costs = [(_flat_cost if c.flat else _cost)(c, layer, workload, limits, width) for c in kernels]
        best = min(some, key=costs.__getitem__)
        return best if costs[best] < share * costs[0] else 0

    widths = range(1, _WIDEST * usual.lanes + 1)
    worth = {fastest(width, range(len(kernels)), thresholds.flat / 100) for width in widths}
    used = sorted(worth | {0})
    found = [fastest(width, used, _SAME) for width in widths]
    cases: list[tuple[int, Node]] = [
        (width, Leaf(used.index(here))) for width, (here, beyond) in enumerate(pairwise([*found, 0]), 1) if here != beyond]
    return tuple(kernels[n] for n in used), _by_columns(workload, layer, cases) if cases else Leaf(0)


def _narrow(plane: HostWindowConfig, layer: Layer, workload: Workload, thresholds: Thresholds) -> int:
    """Columns up to which vectors run on from row to row: of rows by themselves they fill no more than half, and with many taps,
    of which blocks of rows share the loads, a quarter."""
    taps = math.prod(layer.taps(workload))
    if taps > _FEW_TAPS:
        return min(thresholds.narrow, plane.lanes // 4)
    return min(thresholds.narrow * 3 // 2 if taps <= _FEWEST_TAPS else thresholds.narrow, plane.lanes // 2)


def _by_columns(workload: Workload, layer: Layer, cases: list[tuple[int, Node]]) -> Node:
    """The first of which the columns are no more than its bound, else configuration 0."""
    return switch(str(workload.loops[layer.along].extent), cases, Leaf(0))


def _chunk(workload: Workload, layer: Layer, most: int) -> int:
    """Rows of pixels in a unit: all of them where they are not copied or no more than these."""
    pixels = workload.loops[layer.outer.row].extent.constant if layer.outer is not None else 1
    return most if layer.inner is not None and (pixels is None or pixels > most) else 0


def _blocks(workload: Workload, layer: Layer, limits: HostLimits, thresholds: Thresholds,
            shapes: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Filters, pixels and vectors of blocks that have no more results in flight than enough."""
    windows = [workload.loops[w.tap].extent.constant or 1 for w in (layer.outer, layer.inner) if w is not None]
    products = math.prod(windows) * (layer.depth(workload).constant or thresholds.products)
    sums = thresholds.sums if products >= thresholds.products else thresholds.few_sums
    most = layer.filters(workload)
    for filters in (n for n in range(1, min(most, limits.vector_registers // 2) + 1) if most % n == 0):
        for count, nv in shapes:
            fewer = filters * (count * nv - min(count, nv)) if max(count, nv) > 1 else 0  # with one pixel or vector less
            if not layer.free or fewer < sums:
                yield filters, count, nv


def _best(workload: Workload, layer: Layer, limits: HostLimits, thresholds: Thresholds, columns: int | None) -> HostWindowConfig:
    """The block with the least cost for so many columns, None where that is not known."""
    lanes = limits.lanes(widest_bytes(workload))
    while columns is not None and lanes > 4 and lanes // 2 + 1 > columns:
        lanes //= 2
    chunk = _chunk(workload, layer, thresholds.shared_chunk if layer.free else thresholds.chunk)
    shapes = [(count, nv) for count, nv in product(range(1, 9), (1, 2, 3, 4)) if columns is None or nv <= -(-columns // lanes)]
    best: tuple[float, HostWindowConfig] | None = None
    for filters, count, nv in _blocks(workload, layer, limits, thresholds, shapes):
        config = HostWindowConfig(count, nv, lanes, chunk, filters)
        if why_invalid(config, workload, limits) is None:
            cost = _cost(config, layer, workload, limits, columns)
            if best is None or cost < best[0] * 0.98:
                best = (cost, config)
    return best[1] if best is not None else HostWindowConfig(1, 1, lanes, chunk)


def _flat(workload: Workload, layer: Layer, limits: HostLimits, thresholds: Thresholds) -> HostWindowConfig | None:
    """The same over rows in line; None where no block is legal."""
    lanes, chunk = limits.lanes(widest_bytes(workload)), _chunk(workload, layer, thresholds.flat_chunk)
    found = [HostWindowConfig(1, nv, lanes, chunk, filters, True)
             for filters, _, nv in _blocks(workload, layer, limits, thresholds, [(1, nv) for nv in (1, 2, 3, 4)])]
    legal = [config for config in found if why_invalid(config, workload, limits) is None]
    return min(legal, key=lambda c: _flat_cost(c, layer, workload, limits, lanes // 2), default=None)


def _flat_cost(config: HostWindowConfig, layer: Layer, workload: Workload, limits: HostLimits, columns: int) -> float:
    """Cycles for the results of a row of pixels and one filter, when rows of so many columns lie end to end: each is stored by
    itself."""
    assert layer.inner is not None
    across, along = layer.taps(workload)
    reach = ((workload.loops[layer.inner.tap].extent.constant or 1) - 1) * layer.inner.dilation
    pitch = columns + reach // layer.inner.stride
    store = 1 if limits.vector_bytes == _AVX512 else _MASKED
    pieces = config.nv * (_ROW + (config.lanes / pitch + 1) * (_PIECE + config.filters * store))
    block = _shared_steps(config.filters, config.nv, across * along * (layer.depth(workload).constant or 1)) + pieces
    return block * pitch / (config.nv * config.lanes) / config.filters


def _cost(config: HostWindowConfig, layer: Layer, workload: Workload, limits: HostLimits, columns: int | None) -> float:
    """Cycles for the results of a row of pixels and one filter. Of elements along a row each tap is a load of its own, and
    those of a filter that registers do not hold are loaded again for each pixel."""
    pixels = workload.loops[layer.outer.row].extent.constant if layer.outer is not None else 1
    across, along = layer.taps(workload)
    stride = layer.outer.stride if layer.outer is not None else 1

    def block(count: int, nv: int) -> float:
        if layer.free:
            latency = _LATENCY if nv == config.nv else _LATENCY / 2  # a vector that is left over begins while the last one ends
            return _shared_steps(config.filters, count * nv, across * along * (layer.depth(workload).constant or 1), latency)
        places = along * (across if count == 1 else (count - 1) * stride + across)
        if layer.inner is None:
            return _steps(count, nv, across * along, (places + across * along) * nv)
        lines = 1 + (config.lanes - 1) * widest_bytes(workload) / _LINE  # that a vector lies in
        loaded = min(across * along, max(0, across * along + count * nv + _BESIDE - limits.vector_registers))
        return _steps(count, nv, across * along, places * nv * lines + count * loaded)

    chunk = config.chunk or pixels or 64
    units = [chunk] if not pixels else [min(chunk, pixels - begin) for begin in range(0, pixels, chunk)]
    inside = [unit - (across - 1) // stride if layer.inner is None else unit for unit in units]

    def row(nv: int, together: int = config.pixels) -> float:
        whole = sum(count // together for count in inside)
        return (whole * block(together, nv) + (sum(units) - whole * together) * block(1, nv)) / (sum(units) * config.filters)

    if columns is None and layer.free:
        return row(config.nv) / config.nv
    if columns is not None and layer.free and workload.loops[layer.along].extent.constant is None:
        blocks = (columns + (config.nv - 1) * config.lanes - 1) // (config.nv * config.lanes) if columns >= config.lanes else 0
        alone = columns > blocks * config.nv * config.lanes  # one vector, of as many more pixels as it leaves registers for
        partial = _PARTIAL if columns < config.lanes else 0
        return blocks * row(config.nv) + alone * row(1, config.pixels * (config.nv if layer.outer is not None else 1)) + partial
    if columns is None:  # what blocks leave over goes vector by vector
        return sum(n // config.nv * row(config.nv) + n % config.nv * row(1) for n in _VECTORS) / sum(_VECTORS)
    return row(config.nv) * -(-columns // (config.nv * config.lanes))


def _steps(pixels: int, nv: int, taps: int, loads: float) -> float:
    """Cycles of a block: joins, two a cycle and not before the one before them is done; loads, two a cycle; its start and end."""
    joins = max(pixels * nv * taps / 2, _LATENCY * taps)
    return max(joins, loads / 2) + loads / 16 + 6 + pixels * nv


def _shared_steps(filters: int, places: int, taps: int, latency: float = _LATENCY) -> float:
    """The same of a block of several filters: each tap loads places once for all of them, from two lines each, and an element of
    each filter."""
    sums, loads = filters * places, (2 * places + filters) / 2
    return (max(sums / 2, latency, loads) + loads / 8) * taps + 6 + sums
