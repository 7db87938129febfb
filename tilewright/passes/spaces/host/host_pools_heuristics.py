"""What `host_pools` runs untuned: rows side by side as soon as there are some. MLIR-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.passes.spaces.host.host_pools import (
    DECODED_COLUMNS,
    DECODED_ROWS,
    FUSED,
    NARROW_BITS,
    NARROW_ROWS,
    PERMUTED_COLUMNS,
    TILE_ROWS,
    TILED,
    VECTOR,
    HostPoolsConfig,
    PoolFormat,
    channels_of,
    extents_of,
    image_of,
    pixels_of,
    plane_words,
    row_bits,
    sums_in_16_bits,
    why_invalid,
    window_words,
)
from tilewright.passes.spaces.host.host_pools_rows import Choice, Sizes, cycles, planes
from tilewright.passes.spaces.host.pool_image import PoolImage
from tilewright.passes.spaces.host.pool_plane import PlaneShape
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, leaves, renumbered, switch

_COUNTED = "not kept: loads counted, pool of 64, 2048 columns: tables of 16 KB stay in the first-level cache"
_XEON = "xeon-avx512.md: beside the fastest kernel of each algorithm"
_STEP = 256  # columns
_PLANE_BITS = (3, 4, NARROW_BITS, 8)  # of pixels side by side; fewer than three are added up as three are
_PLANE_COLUMNS = 512
_NARROW_BITS = (3, 4, NARROW_BITS)  # of tables of 16 bits; fewer than three took no less time
_PIXEL, _PLACE = 8, 2  # cycles to make bytes of a pixel's eight channels, and to find what an index names
_SIXTEEN = 16  # words of a register, and rows and columns of a tile
_FAR = ((0, 1.0), (1, 1.4), (2, 4.0))  # how many times as long loads take, by the caches that tables do not fit


@dataclass(frozen=True)
class Thresholds:
    """Bytes of tables and columns of a unit."""

    table: int = threshold(65536, unit="bytes of tables that are made at once", operator="pools64_768x768", results=_XEON)
    columns: int = threshold(2048, unit="columns of a work unit", operator="pools64_768x768", results=_XEON)
    window: int = threshold(196608, unit="bytes of tables, or of sums, of pixels", operator="pools64_768x768", results=_COUNTED)
    permuted_columns: int = threshold(4096, unit="columns of a work unit of permutations", operator="pools64_768x768",
                                      results=_COUNTED)


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """One row, up to four, more; nothing where no operand is out of a pool."""
    form, extents = PoolFormat.of(workload), extents_of(workload)
    if form is None:
        return (), Leaf(0)
    bits = row_bits(workload) if form.element == "i8" else None
    columns = extents.columns.constant or thresholds.columns
    threads = max(1, limits.threads or limits.cores)

    def config(rows: int, narrow: int = 0, share: int = 0) -> HostPoolsConfig:
        width = min(max(_STEP, -(-share // _STEP) * _STEP), max(_STEP, thresholds.columns))
        room = (limits.l1 // 2 if rows == 1 else thresholds.table) // (rows * form.padded * form.books * (2 if narrow else 4))
        groups = max(2 if narrow else 1, 1 << max(0, room.bit_length() - 1))
        return HostPoolsConfig(rows, min(groups, 64 if rows == 1 else 16), width, rows, narrow or whole)

    if bits is not None and (made := _by_strips(workload, limits)):
        tree: Node = switch(str(bits), [(c.bits, Leaf(n)) for n, c in enumerate(made[:-1])], Leaf(len(made) - 1)) \
            if bits.constant is None else Leaf(next(n for n, c in enumerate(made) if c.bits >= bits.constant))
        return _used(list(made), tree)
    windowed = _windowed(workload, limits, thresholds, 8 if bits is not None else 0)
    if windowed is not None:
        return (windowed,), Leaf(0)
    whole = 8 if bits is not None and why_invalid(HostPoolsConfig(bits=8), workload, limits) is None else 0
    widths = (NARROW_BITS, 8) if whole else (0,)
    tried: list[HostPoolsConfig] = []
    for share in dict.fromkeys((-(-columns // threads), columns)):  # threads part the columns, or the rows
        tried += [_permuted(form, share, n, limits, thresholds) for n in widths]
        tried += [replace(config(1, share=share), groups=16, bits=n, shuffle=True) for n in widths]
        tried += [config(rows, share=share) for rows in (1, 4, 8)]
        tried += [config(NARROW_ROWS, n, share) for n in _NARROW_BITS] if whole else []
    kernels = [c for c in dict.fromkeys(tried) if why_invalid(c, workload, limits) is None]
    sizes = Sizes((workload.size("k").constant or VECTOR) // VECTOR, columns, threads)
    choice = Choice(kernels, lambda c: cycles(c, form, sizes, limits), sizes)
    return _used(kernels, choice.tree(extents.rows, bits, (*_NARROW_BITS, 8)) if whole else choice.tree(extents.rows, None, (0,)))


def _permuted(form: PoolFormat, share: int, bits: int, limits: HostLimits, thresholds: Thresholds) -> HostPoolsConfig:
    """By permutations of bytes: a share of the columns at once, so that tables are made once, and as many groups as have tables
    that stay in the first-level cache, each of which is read for 64 columns."""
    width = min(max(PERMUTED_COLUMNS, -(-share // PERMUTED_COLUMNS) * PERMUTED_COLUMNS), thresholds.permuted_columns)
    table = planes(bits) * form.books * next(n for n in (1, 2, 4) if n * PERMUTED_COLUMNS >= form.entries) * PERMUTED_COLUMNS
    groups = 1 << max(0, (limits.l1 * 2 // 3 // table).bit_length() - 1)
    return HostPoolsConfig(1, groups, width, 1, bits, permute=True)


def _windowed(workload: Workload, limits: HostLimits, thresholds: Thresholds, bits: int) -> HostPoolsConfig | None:
    """Tables that the places of a window share, where there are several: all filters that fit, few channels at a time, rows of
    pixels as many as the sums of which stay in the second-level cache. None where there is no such window."""
    form, pixels, columns = PoolFormat.of(workload), pixels_of(workload), extents_of(workload).columns.constant or 0
    if form is None or pixels is None or pixels[1] * pixels[2] < 2:
        return None
    width = min(512, max(32, -(-columns // 32) * 32))
    rows = 4 if pixels[0] <= 4 else 8
    for groups, chunk in ((4, 8), (2, 8), (2, 4), (1, 4), (1, 2), (1, 1)):
        config = HostPoolsConfig(rows, groups, width, chunk, bits, True)
        fits = max(window_words(config, form, pixels)) * 4 <= thresholds.window
        if fits and why_invalid(config, workload, limits) is None:
            return config
    last = HostPoolsConfig(rows, 1, width, 1, bits, True)
    return last if why_invalid(last, workload, limits) is None else None


def _by_strips(workload: Workload, limits: HostLimits) -> list[HostPoolsConfig]:
    """Weights as bytes, or pixels side by side by bits, the fewest first; those of more bits serve fewer as well where they take
    fewer cycles."""
    decoded = _decoded(workload, limits)
    kept: list[tuple[float, HostPoolsConfig]] = [] if decoded is None else [decoded]
    for bits in reversed(_PLANE_BITS):
        found = _plane(workload, limits, bits)
        if found is not None and (not kept or found[0] <= kept[-1][0]):
            kept.append(found)
    return [config for _, config in reversed(kept)]


def _decoded(workload: Workload, limits: HostLimits) -> tuple[float, HostPoolsConfig] | None:
    """The strips and filters of weights as bytes that take the fewest cycles by count on the threads there are, for one image,
    and these. None where weights do not become bytes."""
    form, shape, columns = PoolFormat.of(workload), PlaneShape.of(workload), extents_of(workload).columns.constant
    if form is None or shape is None or columns is None:
        return None
    threads, channels = max(1, limits.threads or limits.cores), channels_of(workload)
    groups = next(n for n in (8, 4, 2, 1) if channels % (n * VECTOR) == 0)
    widths = {min(_PLANE_COLUMNS, -(-columns // (DECODED_COLUMNS * n)) * DECODED_COLUMNS) for n in range(1, 2 * threads + 1)}
    found = [(_decoded_cycles(c, form, image_of(c, workload), limits, columns), c.columns, -c.mc, c)
             for rows in range(1, shape.height + 1) if shape.height % rows == 0 for width in widths
             for kind, blocks in DECODED_ROWS.items() for block in blocks
             if why_invalid(c := HostPoolsConfig(block, groups, width, rows, 8, decoded=kind), workload, limits) is None]
    best = min(found, key=lambda f: f[:3], default=None)
    return None if best is None else (best[0], best[3])


def _decoded_cycles(config: HostPoolsConfig, form: PoolFormat, image: PoolImage | None, limits: HostLimits,
                    columns: int) -> float:
    """Of the thread with the most units. Of 16 vectors that indices name at once an instruction each widens them and tells the
    halves of the pool apart, and one of each word permutes 32 entries. A step of tiles takes a cycle for each of 16 rows, loads
    half a one, a whole one from the second cache. Tiles that are multiplied as they are decoded hide the shorter of both."""
    assert image is not None
    shape, width, tiled = image.shape, min(config.columns, columns), config.decoded == TILED
    depth, panels = image.channels * shape.taps[0] * shape.taps[1] * form.books, -(-width // DECODED_COLUMNS)
    blocks, parts = -(-image.pixels // image.block), -(-form.entries // 32)
    decoded = (2 + (2 * parts + math.log2(parts))) / _SIXTEEN * width * depth / VECTOR
    if tiled:
        tall, runs = image.block // TILE_ROWS, 2 if image.block > 2 * TILE_ROWS else 1
        far = 2 if depth * DECODED_COLUMNS + image.bytes > limits.l1 and blocks > 1 else 1
        step = max(2 * tall * _SIXTEEN, far * (2 + runs * tall) * _SIXTEEN / 2)
        products = panels * blocks * step * depth / (config.groups * VECTOR)
    else:
        products = panels * blocks * image.block * DECODED_COLUMNS * depth / (2 * 4 * _SIXTEEN)
    made = max(decoded, products) if tiled and blocks == 1 else decoded + products
    laid = image.bytes / _SIXTEEN + image.phases * image.tall * (shape.width + shape.taps[1]) * _PIXEL
    stored = image.pixels * (_PIXEL + width / _SIXTEEN * 2)
    return (made + laid + stored) * -(-(shape.height // config.mc) * -(-columns // config.columns) // max(
        1, limits.threads or limits.cores))


def _plane(workload: Workload, limits: HostLimits, bits: int) -> tuple[float, HostPoolsConfig] | None:
    """The strips, filters and groups of channels that take the fewest cycles by count on the threads there are, for one image,
    and these. None where pixels do not lie side by side."""
    form, shape, columns = PoolFormat.of(workload), PlaneShape.of(workload), extents_of(workload).columns.constant
    if form is None or shape is None or columns is None:
        return None
    threads, size = max(1, limits.threads or limits.cores), min(64, limits.vector_bytes)
    groups = (workload.size("k").constant or 0) // (VECTOR * shape.taps[0] * shape.taps[1])
    widths = {min(_PLANE_COLUMNS, -(-columns // (32 * parts)) * 32) for parts in range(1, 2 * threads + 1)}
    found = [(_plane_cycles(c, form, shape, (groups, columns, threads), limits), c.columns, -c.mc, c.groups, c)
             for rows in range(1, shape.height + 1) if shape.height % rows == 0 for width in widths for some in (1, 2, 4, 8)
             if why_invalid(c := HostPoolsConfig(VECTOR, min(some, groups), width, rows, bits, plane=size,
                                                 dot=limits.byte_products), workload, limits) is None]
    best = min(found, key=lambda f: f[:4], default=None)
    return None if best is None else (best[0], best[4])


def _plane_cycles(config: HostPoolsConfig, form: PoolFormat, shape: PlaneShape, sizes: tuple[int, int, int],
                  limits: HostLimits) -> float:
    """Of the thread with the most units. sizes: vectors of channels, filters and threads. A vector of the tables is a load that
    crosses lines, and an addition or, of 16 bits and a half a cycle each, two for as many as are added there; where these are
    single ones, one more (measured: 128-128 of 3x3 at 8 took 105 us at 5 bits by AVX2, 87 at 8)."""
    (groups, columns, threads), plane = sizes, config.plane_of(shape)
    taps, tables = shape.taps[0] * shape.taps[1] * form.books, plane_words(config, form, plane)[0] * 4
    far = dict(_FAR)[(tables > limits.l1) + (tables > limits.l2)]
    fused = config.dot == FUSED
    some, each = sums_in_16_bits(config.bits), 1 if fused else 2
    runs, each = (-(-taps // some), each + (some == 1 and not fused)) if plane.bytes == 2 else (0, each)
    blocks, vectors = plane.blocks, len(plane.phases) * plane.vectors
    added = max(taps * far, (taps - runs) / 2 + runs * each) * blocks + _PLACE * taps
    carried = 2 * blocks * (4 // plane.bytes) * -(-groups // config.groups) / groups
    made = vectors * form.entries * form.books * (2 if fused and plane.bytes == 4 else 4)
    pixels = len(plane.phases) * plane.tall * plane.wide * _PIXEL
    unit = groups * (min(config.columns, columns) * (added + carried) + made + pixels)
    return unit * -(-(shape.height // config.mc) * -(-columns // config.columns) // threads)


def _used(configs: list[HostPoolsConfig], tree: Node) -> tuple[tuple[TileConfig, ...], Node]:
    """The configurations that the tree has leaves for, numbered anew."""
    numbers = sorted({leaf.kernel for leaf in leaves(tree)})
    return tuple(configs[n] for n in numbers), renumbered(tree, {n: i for i, n in enumerate(numbers)})
