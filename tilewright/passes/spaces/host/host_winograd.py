"""Choices of the family `host_winograd`: convolutions by Winograd's minimal filtering. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import ClassVar, NamedTuple

from tilewright.passes.spaces.host.host_block import DISTANT_BYTES, over_budget
from tilewright.passes.spaces.host.host_matmul import Extents, prepacked, word_of
from tilewright.passes.spaces.host.winograd_form import TILES, Form
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.padding import row_windows
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr

_MOST_PANELS = 8  # of a unit


class _Costs(NamedTuple):
    """In cycles. moved: places on a side -> for a place of transforming a vector of image, products, along two axes. near,
    beyond: for a value of a vector of filters, into the second cache, or beyond. added: of loading a vector of sums and storing
    it again. By differences of whole kernels' times. Not measured alone: 3 and 5 places, which continue the others, and the
    share along one axis."""

    moved: Mapping[int, tuple[float, float]]
    near: float
    beyond: float
    added: float


# with 16 registers, which a tile does not fit (zen3-avx2.md: near and added are not measured alone), and with 32
# (zen5-avx512.md: beyond takes 5 in warm caches and 10 in cold ones)
_FEW = _Costs({3: (2.0, 1.5), 4: (2.8, 1.9), 5: (4.4, 2.4), 6: (6.2, 3.0)}, 4.0, 10.0, 3.0)
_MANY = _Costs({3: (1.2, 1.0), 4: (1.6, 1.2), 5: (2.2, 1.6), 6: (2.8, 2.0)}, 3.0, 6.0, 1.5)
_ONE_AXIS = 0.6
SHARE = 0.93  # of the peak that products reach
_STREAMED = 20.0  # bytes a cycle of filters from the last cache
_DISTANT = 1.7  # bytes a cycle of filters that are transformed into a distant last cache and read from there (xeon-avx512.md)


@dataclass(frozen=True)
class HostWinogradConfig(TileConfig):
    """m: pixels along each axis of a tile of the result. mr x nv: tiles and vectors of filters of the register block; lanes:
    elements of a vector of the accumulator's type. mc: tiles of a chunk, whose transformed image and products lie in the
    workspace. chunks: in one work unit, 0 for all. panels: of nv vectors of filters in one work unit, which transforms them
    first. kc: channels that the filters are transformed of at a time, anew for each chunk, so that they do not leave the second
    cache; 0 for all at once.
    """

    family: ClassVar[str] = "host_winograd"
    m: int = 2
    mr: int = 6
    nv: int = 4
    lanes: int = 16
    mc: int = 24
    chunks: int = 0
    panels: int = 1
    kc: int = 0

    @property
    def columns(self) -> int:
        """Filters of a panel."""
        return self.nv * self.lanes


@dataclass(frozen=True)
class Layer:
    """Of a workload as this family sees it. form: of the windows; images: how many; pixels: of the result along the axes of the
    windows; Exprs over the local dims."""

    form: Form
    images: Expr
    pixels: tuple[Expr, ...]
    channels: Expr
    filters: Expr
    element_bytes: int

    @staticmethod
    def of(workload: Workload) -> Layer | None:
        """None of anything but a convolution with windows that the family serves, channels and filters."""
        seen, loops = Extents.of(workload), workload.loops
        every = row_windows(workload)
        found = [w for w in every if loops[w.tap].extent.constant != 1]
        form = Form.of([(loops[w.tap].extent.constant if w.dilation == 1 else None, w.stride) for w in found])
        sums = [i for i, loop in enumerate(loops) if loop.role == "k" and i not in {w.tap for w in every}]
        if form is None or len(sums) != 1:
            return None
        images = Expr.of(1)
        for i, loop in enumerate(loops):
            images = images * loop.extent if loop.role == "m" and i not in {w.row for w in found} else images
        pixels = tuple(loops[w.row].extent for w in found)
        return Layer(form, images, pixels, loops[sums[0]].extent, seen.columns, seen.element_bytes)

    def tiles(self, m: int) -> Expr:
        total = self.images
        for extent in self.pixels:
            total = total * extent.ceildiv(m)
        return total

    def filling(self, m: int, rows: float) -> float:
        """The share of the tiles' pixels that are the result's; where the size of images is not known, that of one image of so
        many rows, as long as any along all axes."""
        share, guess = 1.0, rows ** (1 / len(self.pixels))
        for extent in self.pixels:
            size = extent.constant
            share *= guess / (guess + (m - 1) / 2) if size is None else size / (-(-size // m) * m) if size else 1.0
        return share


def takes(workload: Workload, limits: HostLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    if not numerics.winograd:
        return "definition: the options keep to the definition of a convolution"
    if Layer.of(workload) is None:
        return f"form: the workload is no convolution with windows of {Form.wanted()}"
    if any(not o.dtype.is_float or o.dtype.bytes < 2 for o in workload.inputs):
        return "floats: transformed filters have fractions"
    if word_of(workload, limits) > 1:
        return "no-words: the target multiplies the operands, bf16, several at once"
    return None


def space(workload: Workload, limits: HostLimits) -> Iterator[HostWinogradConfig]:
    """All legal configurations."""
    seen = Extents.of(workload)
    lanes = limits.lanes(seen.element_bytes)
    blocks = [(mr, nv) for mr in range(2, 15) for nv in range(1, 7) if mr * nv >= 8]
    every = product(TILES, blocks, (1, 2, 4, 8), (0, 2, 4, 8, 16), range(1, _MOST_PANELS + 1), (0,))
    some = product(TILES, blocks, (4, 8, 16, 32), (0, 1, 2), (1, 2, 4), (1, 2, 4))
    for m, (mr, nv), blocks_of, chunks, panels, vectors in (*every, *some):
        if panels not in panels_of(seen.columns.constant or 256, nv * lanes):
            continue
        config = HostWinogradConfig(m, mr, nv, lanes, blocks_of * mr, chunks, panels, vectors * lanes)
        if why_invalid(config, workload, limits) is None:
            yield config


def panels_of(filters: int, columns: int) -> tuple[int, ...]:
    """Panels of so many filters in a unit that are tried: powers of two, all of them, so that units may differ in tiles alone,
    and as many as make two, three or four equal groups of them."""
    every = -(-filters // columns)
    return tuple(sorted({1, 2, 4, 8, *(-(-every // groups) for groups in (1, 2, 3, 4) if every <= _MOST_PANELS * groups)}))


def why_invalid(config: HostWinogradConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    layer = Layer.of(workload)
    if layer is None:
        return f"form: the workload is no convolution with windows of {Form.wanted()}"
    if any(not o.dtype.is_float or o.dtype.bytes < 2 for o in workload.inputs):
        return "floats: transformed filters have fractions"
    if word_of(workload, limits) > 1:
        return "no-words: the target multiplies the operands, bf16, several at once"
    known = [m for m in TILES if layer.form.serves(m)]
    if config.m not in known:
        return f"tile-known: {config.m} pixels on a side; wanted one of {', '.join(map(str, known))}"
    if min(config.mr, config.nv, config.panels, config.mc) < 1 or min(config.chunks, config.kc) < 0:
        return "counts-positive: a count is too small"
    if config.kc % max(1, config.lanes):
        return f"channels-whole-vectors: {config.kc} channels at a time are no multiple of {config.lanes} lanes"
    if layer.channels.constant is not None and config.kc >= max(1, layer.channels.constant):
        return f"channels-used: {config.kc} channels at a time of {layer.channels.constant}; wanted fewer, or 0 for all"
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
    form, places, transformed = layer.form, layer.form.places(config.m), layer.form.products(config.m)
    share = 1.0 if len(form.axes) > 1 else _ONE_AXIS
    costs = _FEW if limits.vector_registers < 32 else _MANY
    image, result = (share * c for c in costs.moved[max(a.side(config.m) for a in form.axes)])
    channels, filters, lanes = layer.channels.constant or 256, layer.filters.constant or 256, config.lanes
    tiles = rows / config.m ** len(form.axes) / layer.filling(config.m, rows)
    vectors = ceil(filters / lanes)
    groups = ceil(vectors / (config.nv * config.panels))
    parts = ceil(tiles / (config.mc * config.chunks)) if config.chunks else 1
    chunks = parts * ceil(tiles / parts / config.mc)
    bytes_ = channels * vectors * lanes * layer.element_bytes * transformed
    filter_bytes, tile_bytes = footprints(config, layer)
    streamed = chunks * bytes_ / _STREAMED if not config.kc and bytes_ / groups > limits.l2 / 2 else 0.0
    far = not config.kc and limits.l3 >= DISTANT_BYTES and filter_bytes + config.mc * tile_bytes > limits.l2
    written = parts * bytes_ / _DISTANT if far else 0.0
    multiplied = transformed * tiles * channels * vectors / 2 / block_share(config, limits)
    if config.kc:
        multiplied += places * tiles * vectors * ceil(channels / config.kc) * costs.added
    moved = tiles * transformed * groups * ceil(channels / lanes) * image + tiles * places * vectors * result
    each = costs.near if filter_bytes + config.mc * tile_bytes <= limits.l2 else costs.beyond
    filtered = (chunks if config.kc else parts) * transformed * channels * vectors * each
    return float(max(multiplied, streamed) + moved + filtered + written)


def block_share(config: HostWinogradConfig, limits: HostLimits) -> float:
    """Of the peak rate that a register block reaches: multiply-adds against loads, and what hides their latency."""
    sums = config.mr * config.nv
    return SHARE * min(1.0, sums / (config.mr + config.nv), sums / 8)


def footprints(config: HostWinogradConfig, layer: Layer) -> tuple[int, int]:
    """Bytes of the transformed filters of a unit, and of a tile of a chunk with its products."""
    channels, each = (config.kc or layer.channels.constant or 256) * layer.form.products(config.m), layer.element_bytes
    wide = config.columns * config.panels
    return channels * wide * each, (channels + wide * layer.form.places(config.m)) * each
