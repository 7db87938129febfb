"""Choices of the family `host_winograd`: 3x3 convolutions with steps of one by Winograd's minimal filtering. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import ClassVar

from passes.spaces import host_matmul
from passes.spaces.host_block import over_budget
from passes.spaces.host_matmul import Extents, paired, prepacked, register_block, takes_pairs
from passes.spaces.numerics import Numerics
from passes.spaces.padding import padded_windows, padding_share, row_windows, tap_depth
from passes.tile_config import TileConfig
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, leaves, renumbered, switch
from runtime.limits import HostLimits
from runtime.shape import Expr

TAPS = 3  # of a window along each axis
_COST = {2: (1.6, 1.2, 5.0), 4: (2.8, 2.0, 5.0)}  # m -> cycles a place of transforming a vector of image, products, filters
_SHARE = 0.93  # of the peak that products reach
_STREAMED = 20.0  # bytes a cycle of filters from the last cache
_MOST = 1 << 20  # rows that a default tells apart
_IMAGE = 28  # rows and columns of an image whose size is not known
_IMAGES = (1, 3, 5, 8)  # that a default is chosen for


@dataclass(frozen=True)
class HostWinogradConfig(TileConfig):
    """m: pixels on a side of a tile of the result. mr x nv: tiles and vectors of filters of the register block; lanes: elements
    of a vector of the accumulator's type. mc: tiles of a chunk, whose transformed image and products lie in the workspace.
    chunks: in one work unit, 0 for all. panels: of nv vectors of filters in one work unit, which transforms them first.
    """

    family: ClassVar[str] = "host_winograd"
    m: int = 2
    mr: int = 6
    nv: int = 4
    lanes: int = 16
    mc: int = 24
    chunks: int = 0
    panels: int = 1

    @property
    def columns(self) -> int:
        """Filters of a panel."""
        return self.nv * self.lanes

    @property
    def side(self) -> int:
        """Pixels on a side of a tile of the image."""
        return self.m + TAPS - 1


@dataclass(frozen=True)
class Layer:
    """Of a workload as this family sees it. images: how many, and height and width of the result; Exprs over the local dims."""

    images: Expr
    height: Expr
    width: Expr
    channels: Expr
    filters: Expr
    element_bytes: int

    @staticmethod
    def of(workload: Workload) -> Layer | None:
        """None of anything but a convolution with two windows of 3 and steps of one, channels and filters."""
        seen = Extents.of(workload)
        found = row_windows(workload)
        regular = all(w.stride == w.dilation == 1 and workload.loops[w.tap].extent.constant == TAPS for w in found)
        sums = [i for i, loop in enumerate(workload.loops) if loop.role == "k" and i not in {w.tap for w in found}]
        if len(found) != 2 or not regular or len(sums) != 1:
            return None
        height, width = (workload.loops[w.row].extent for w in found)
        images = Expr.of(1)
        for i, loop in enumerate(workload.loops):
            images = images * loop.extent if loop.role == "m" and i not in {w.row for w in found} else images
        return Layer(images, height, width, workload.loops[sums[0]].extent, seen.columns, seen.element_bytes)

    def tiles(self, m: int) -> Expr:
        return self.images * self.height.ceildiv(m) * self.width.ceildiv(m)

    def filling(self, m: int) -> float:
        """The share of the tiles' pixels that are the result's; a guess where the size of images is not known."""
        height, width = self.height.constant, self.width.constant
        if height is None or width is None:
            return 0.9
        return height * width / (-(-height // m) * m * -(-width // m) * m) if height and width else 1.0


def takes(workload: Workload, limits: HostLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    if not numerics.winograd:
        return "definition: the options keep to the definition of a convolution"
    if Layer.of(workload) is None:
        return "three-by-three: the workload is no convolution with windows of 3 and steps of one"
    if any(not o.dtype.is_float or o.dtype.bytes < 2 for o in workload.inputs):
        return "floats: transformed filters have fractions"
    if paired(workload) or takes_pairs(workload, limits):
        return "no-pairs: the target multiplies the operands, bf16, in pairs"
    return None


def space(workload: Workload, limits: HostLimits) -> Iterator[HostWinogradConfig]:
    """All legal configurations."""
    lanes = limits.lanes(Extents.of(workload).element_bytes)
    blocks = [(mr, nv) for mr in range(2, 15) for nv in range(1, 7) if mr * nv >= 8]
    for m, (mr, nv), blocks_of, chunks, panels in product((2, 4), blocks, (1, 2, 4, 8), (0, 2, 4, 8, 16), (1, 2, 4, 8)):
        config = HostWinogradConfig(m, mr, nv, lanes, blocks_of * mr, chunks, panels)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: HostWinogradConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    layer = Layer.of(workload)
    if layer is None:
        return "three-by-three: the workload is no convolution with windows of 3 and steps of one"
    if any(not o.dtype.is_float or o.dtype.bytes < 2 for o in workload.inputs):
        return "floats: transformed filters have fractions"
    if paired(workload) or takes_pairs(workload, limits):
        return "no-pairs: the target multiplies the operands, bf16, in pairs"
    if config.m not in _COST:
        return f"tile-known: {config.m} pixels on a side; wanted one of {', '.join(map(str, _COST))}"
    if min(config.mr, config.nv, config.panels, config.mc) < 1 or config.chunks < 0:
        return "counts-positive: a count is too small"
    size = layer.element_bytes
    if config.lanes < 2 or config.lanes & (config.lanes - 1) or config.lanes * size > limits.vector_bytes:
        return f"lanes-fit: {config.lanes} lanes of {size} bytes, of a {limits.vector_bytes}-byte register"
    budget = over_budget(config.mr, config.nv, limits)
    if budget is not None:
        return budget
    tile, filters = prepacked(workload), layer.filters.constant
    if tile % config.columns:
        return f"prepacked-panels: panels of {tile} filters are read in equal blocks, not of {config.columns}"
    if filters is not None and (config.panels - 1) * config.columns >= filters:
        return f"panels-used: {config.panels} panels of {config.columns} are more than {filters} filters"
    if config.mc % config.mr:
        return f"chunk-whole-blocks: {config.mc} tiles are no multiple of {config.mr}"
    filter_bytes, tile_bytes = _footprints(config, layer)
    if config.mc * tile_bytes > 2 * limits.l2:
        return f"chunk-near-l2: {config.mc} tiles and products take {config.mc * tile_bytes} bytes, twice {limits.l2} at most"
    if filter_bytes * 2 > limits.l3:
        return f"filters-fit-l3: {filter_bytes} bytes of transformed filters, half of {limits.l3} at most"
    return None


def default(workload: Workload, limits: HostLimits) -> tuple[tuple[TileConfig, ...], Node]:
    """One configuration from so many rows on that it is expected to take less time than the family host_matmul, whose default
    serves the others. Which tiles, and from how many rows on, does not depend on the threads of a call, so that bits do not."""
    usual, root = host_matmul.default(workload, limits)
    layer = Layer.of(workload)
    found = [c for m in _COST if (c := _best(m, workload, layer, limits)) is not None] if layer is not None else []
    if layer is None or not found:
        return usual, root
    config = min(found, key=lambda c: cycles(c, layer, limits, _MOST))
    chosen = _best(config.m, workload, layer, replace(limits, cores=limits.threads or limits.cores)) or config

    def pays(rows: int) -> bool:
        return cycles(config, layer, limits, rows) < _direct(workload, layer, limits, rows)

    rows = Extents.of(workload).rows
    if rows.constant is not None:
        return ((chosen,), Leaf(0)) if pays(rows.constant) else (usual, root)
    least = next((1 << i for i in range(_MOST.bit_length()) if pays(1 << i)), None)
    if least is None:
        return usual, root
    if rows.evaluate(dict.fromkeys(workload.dims, 1)) >= least:
        return (chosen,), Leaf(0)
    others = renumbered(root, {leaf.kernel: leaf.kernel + 1 for leaf in leaves(root)})
    return (chosen, *usual), switch(str(rows), [(least - 1, others)], Leaf(0))


def cycles(config: HostWinogradConfig, layer: Layer, limits: HostLimits, rows: float) -> float:
    """What so many rows, pixels of the result, are expected to take on one core. Filters beyond the second-level cache come again
    for every chunk."""
    image, result, filter_ = _COST[config.m]
    channels, filters, lanes = layer.channels.constant or 256, layer.filters.constant or 256, config.lanes
    tiles = rows / config.m**2 / layer.filling(config.m)
    vectors, places = ceil(filters / lanes), config.side**2
    groups = ceil(vectors / (config.nv * config.panels))
    parts = ceil(tiles / (config.mc * config.chunks)) if config.chunks else 1
    chunks = parts * ceil(tiles / parts / config.mc)
    bytes_ = channels * vectors * lanes * layer.element_bytes * places
    streamed = chunks * bytes_ / _STREAMED if bytes_ / groups > limits.l2 / 2 else 0.0
    multiplied = places * tiles * channels * vectors / 2 / block_share(config, limits)
    moved = tiles * (groups * ceil(channels / lanes) * image + vectors * result) + parts * channels * vectors * filter_
    return max(multiplied, streamed) + places * moved


def block_share(config: HostWinogradConfig, limits: HostLimits) -> float:
    """Of the peak rate that a register block reaches: multiply-adds against loads, and what hides their latency."""
    sums = config.mr * config.nv
    return _SHARE * min(1.0, sums / (config.mr + config.nv), sums / 8)


def _direct(workload: Workload, layer: Layer, limits: HostLimits, rows: float) -> float:
    """What the family host_matmul is expected to take."""
    channels, filters = layer.channels.constant or 256, layer.filters.constant or 256
    found = padded_windows(workload)
    padding = padding_share(workload, found) if found and tap_depth(workload).constant else 0.0
    lanes = limits.lanes(layer.element_bytes)
    return rows * TAPS**2 * channels * ceil(filters / lanes) / 2 / _SHARE * (1 - padding)


def _best(m: int, workload: Workload, layer: Layer, limits: HostLimits) -> HostWinogradConfig | None:
    """Chunks of a block or few where filters stay in the second-level cache, else larger ones, since they are read again for
    each, within half of that cache where it makes no difference. Panels and units that take least time on all cores for one
    image and for some."""
    lanes, filters = max(2, limits.lanes(layer.element_bytes)), layer.filters.constant or 256
    mr, nv = register_block(layer.filters.constant, lanes, limits)
    tile = prepacked(workload)
    nv = next(n for n in (nv, 4, 3, 2, 1) if tile % (n * lanes) == 0)
    mr = min(mr, (limits.vector_registers - 1) // nv - 1)
    height, width = (e.constant or _IMAGE for e in (layer.height, layer.width))
    image = -(-height // m) * -(-width // m)
    found = []
    for panels, blocks, parts in product((1, 2, 4, 8), (4, 3, 2, 1), (0, 1, 2, 4, 8) if limits.cores > 1 else (0,)):
        config = HostWinogradConfig(m, mr, nv, lanes, mr, 0, panels)
        filter_bytes, tile_bytes = _footprints(config, layer)
        near = filter_bytes + mr * tile_bytes <= limits.l2 * 3 // 4
        room = limits.l2 // 8 if near else limits.l2 * 2
        mc = max(1, min(blocks, room // tile_bytes // mr)) * mr
        config = replace(config, mc=mc, chunks=-(-image // (parts * mc)) if parts else 0)
        if why_invalid(config, workload, limits) is None and filter_bytes * 6 <= limits.l3:
            score = 0.0
            for images in _IMAGES:
                units = -(-filters // (panels * config.columns)) * (-(-images * image // (mc * config.chunks)) if parts else 1)
                busy = units / (-(-units // limits.cores) * limits.cores)
                score += cycles(config, layer, limits, images * height * width) / images / busy
            found.append((score, mc * tile_bytes * 2 > limits.l2, -panels, config))
    return min(found, key=lambda c: c[:3])[3] if found else None


def _footprints(config: HostWinogradConfig, layer: Layer) -> tuple[int, int]:
    """Bytes of the transformed filters of a unit, and of a tile of a chunk with its products."""
    channels, each = layer.channels.constant or 256, config.side**2 * layer.element_bytes
    return channels * config.columns * config.panels * each, (channels + config.columns * config.panels) * each
