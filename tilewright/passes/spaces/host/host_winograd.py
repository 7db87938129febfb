"""Choices of the family `host_winograd`: 3x3 convolutions with steps of one by Winograd's minimal filtering. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import ClassVar

from tilewright.passes.spaces.host.host_block import DISTANT_BYTES, over_budget
from tilewright.passes.spaces.host.host_matmul import Extents, prepacked, word_of
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.padding import row_windows
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr

TAPS = 3  # of a window along each axis
COST = {2: (1.6, 1.2, 5.0), 4: (2.8, 2.0, 5.0)}  # m -> cycles a place of transforming a vector of image, products, filters
SHARE = 0.93  # of the peak that products reach
_STREAMED = 20.0  # bytes a cycle of filters from the last cache
_DISTANT = 1.7  # bytes a cycle of filters that are transformed into a distant last cache and read from there (xeon-avx512.md)


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
    if word_of(workload, limits) > 1:
        return "no-words: the target multiplies the operands, bf16, several at once"
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
    if word_of(workload, limits) > 1:
        return "no-words: the target multiplies the operands, bf16, several at once"
    if config.m not in COST:
        return f"tile-known: {config.m} pixels on a side; wanted one of {', '.join(map(str, COST))}"
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
    filter_bytes, tile_bytes = footprints(config, layer)
    if config.mc * tile_bytes > 2 * limits.l2:
        return f"chunk-near-l2: {config.mc} tiles and products take {config.mc * tile_bytes} bytes, twice {limits.l2} at most"
    if filter_bytes * 2 > limits.l3:
        return f"filters-fit-l3: {filter_bytes} bytes of transformed filters, half of {limits.l3} at most"
    return None


def cycles(config: HostWinogradConfig, layer: Layer, limits: HostLimits, rows: float) -> float:
    """What so many rows, pixels of the result, are expected to take on one core. Filters beyond the second-level cache come again
    for every chunk, and take long to write where the last cache is distant."""
    image, result, filter_ = COST[config.m]
    channels, filters, lanes = layer.channels.constant or 256, layer.filters.constant or 256, config.lanes
    tiles = rows / config.m**2 / layer.filling(config.m)
    vectors, places = ceil(filters / lanes), config.side**2
    groups = ceil(vectors / (config.nv * config.panels))
    parts = ceil(tiles / (config.mc * config.chunks)) if config.chunks else 1
    chunks = parts * ceil(tiles / parts / config.mc)
    bytes_ = channels * vectors * lanes * layer.element_bytes * places
    streamed = chunks * bytes_ / _STREAMED if bytes_ / groups > limits.l2 / 2 else 0.0
    filter_bytes, tile_bytes = footprints(config, layer)
    far = limits.l3 >= DISTANT_BYTES and filter_bytes + config.mc * tile_bytes > limits.l2
    written = parts * bytes_ / _DISTANT if far else 0.0
    multiplied = places * tiles * channels * vectors / 2 / block_share(config, limits)
    moved = tiles * (groups * ceil(channels / lanes) * image + vectors * result) + parts * channels * vectors * filter_
    return max(multiplied, streamed) + places * moved + written


def block_share(config: HostWinogradConfig, limits: HostLimits) -> float:
    """Of the peak rate that a register block reaches: multiply-adds against loads, and what hides their latency."""
    sums = config.mr * config.nv
    return SHARE * min(1.0, sums / (config.mr + config.nv), sums / 8)


def footprints(config: HostWinogradConfig, layer: Layer) -> tuple[int, int]:
    """Bytes of the transformed filters of a unit, and of a tile of a chunk with its products."""
    channels, each = layer.channels.constant or 256, config.side**2 * layer.element_bytes
    return channels * config.columns * config.panels * each, (channels + config.columns * config.panels) * each
