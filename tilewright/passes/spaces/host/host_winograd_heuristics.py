"""What `host_winograd` runs untuned, and from how many rows on it is expected to be faster than `host_matmul`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import ceil, inf, prod

from tilewright.passes.spaces.host import host_matmul_heuristics
from tilewright.passes.spaces.host.host_block import DISTANT_BYTES, register_block
from tilewright.passes.spaces.host.host_matmul import Extents, prepacked
from tilewright.passes.spaces.host.host_winograd import (
    SHARE,
    HostWinogradConfig,
    Layer,
    cycles,
    footprints,
    panels_of,
    why_invalid,
)
from tilewright.passes.spaces.host.winograd_form import TILES
from tilewright.passes.spaces.padding import padded_windows, padding_share, tap_depth
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, leaves, renumbered, switch

_MOST = 1 << 20  # rows that a default tells apart
_IMAGES = (1, 3, 5, 8)  # that a default is chosen for
_SURE = 0.95  # of the time of the definition that transforms are expected to take
# likewise by steps over pixels, where the last cache is distant, which tiles and filters go through: they take 1.2 to 1.75 times
# as long as expected there (xeon6-avx512.md)
_SURE_AFAR = {1: 0.8, 2: 0.63}
_WORTH = 0.98  # of the time of that default for one image that another must take to be built
_WITH = "zen5-avx512.md: the 3x3 layers measured with this value alone"


@dataclass(frozen=True)
class Thresholds:
    """What chunks are chosen by."""

    image: int = threshold(28, unit="rows and columns of an image whose size is not known", operator="conv3x3_128x28_128_nhwc",
                           results="not measured: every convolution of the bench has a known size")
    near_parts: int = threshold(8, unit="parts of the second cache, one for a chunk beside filters that stay there",
                                operator="conv3x3_64x56_64_nhwc", results=_WITH)
    room: int = threshold(90, unit="% of the second cache for some channels of filters, and tiles beside them",
                          operator="conv3x3_s2_128x56_128_nhwc", results=_WITH)
    filter_parts: int = threshold(6, unit="parts of the last cache, one for transformed filters",
                                  operator="conv3x3_512x7_512_nhwc", results=_WITH)


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """For each number of rows what is expected to take least time: a configuration of this family, or the family host_matmul,
    whose default serves there. Which tiles, and from how many rows on, does not depend on the threads of a call, so that bits
    do not."""
    usual, root = host_matmul_heuristics.default(workload, limits)
    layer = Layer.of(workload)
    if layer is None:
        return usual, root
    called = replace(limits, cores=limits.threads or limits.cores)
    found: dict[HostWinogradConfig, HostWinogradConfig] = {}
    one = prod(_pixels(layer, thresholds))
    sure = _SURE_AFAR[max(a.step for a in layer.form.axes)] if limits.l3 >= DISTANT_BYTES else _SURE
    for m in TILES:
        usually, blocked = (_best(m, workload, layer, limits, thresholds, some) for some in (False, True))
        if usually is not None:
            found[usually] = _best(m, workload, layer, called, thresholds) or usually
        least = _WORTH * cycles(usually, layer, limits, one) if usually is not None else inf
        if blocked is not None and cycles(blocked, layer, limits, one) < least:
            found[blocked] = _best(m, workload, layer, called, thresholds, True) or blocked

    def fastest(rows: int) -> HostWinogradConfig | None:
        """None for the definition."""
        taken = {config: cycles(config, layer, limits, rows) for config in found}
        direct = sure * _direct(workload, layer, limits, rows)
        return min((None, *found), key=lambda c: taken[c] if c is not None else direct)

    rows = Extents.of(workload).rows
    fewest = rows.evaluate(dict.fromkeys(workload.dims, 1)) if rows.constant is None else rows.constant
    most = _MOST if rows.constant is None else fewest
    steps = [fewest, *(1 << i for i in range(_MOST.bit_length()) if fewest < 1 << i <= most)]
    changes: list[tuple[int, HostWinogradConfig | None]] = []
    for n in steps:
        best = fastest(n)
        config = found[best] if best is not None else None
        if not changes or config != changes[-1][1]:
            changes.append((n, config))
    used = list(dict.fromkeys(config for _, config in reversed(changes) if config is not None))
    others = renumbered(root, {leaf.kernel: leaf.kernel + len(used) for leaf in leaves(root)})
    nodes = [others if config is None else Leaf(used.index(config)) for _, config in changes]
    cases = [(n - 1, node) for (n, _), node in zip(changes[1:], nodes, strict=False)]
    return (*used, *(usual if others in nodes else ())), switch(str(rows), cases, nodes[-1])


def _pixels(layer: Layer, thresholds: Thresholds) -> list[int]:
    """Of an image along each axis; where that is not known, a guess, along one axis of as many pixels as along two."""
    return [extent.constant or thresholds.image ** (2 // len(layer.pixels)) for extent in layer.pixels]


def _direct(workload: Workload, layer: Layer, limits: HostLimits, rows: float) -> float:
    """What the family host_matmul is expected to take."""
    channels, filters = layer.channels.constant or 256, layer.filters.constant or 256
    found = padded_windows(workload)
    size = round(rows ** (1 / len(layer.pixels)))
    padding = padding_share(workload, found, size) if found and tap_depth(workload).constant else 0.0
    lanes = limits.lanes(layer.element_bytes)
    return rows * layer.form.taps * channels * ceil(filters / lanes) / 2 / SHARE * (1 - padding)


def _best(m: int, workload: Workload, layer: Layer, limits: HostLimits, thresholds: Thresholds,
          some: bool = False) -> HostWinogradConfig | None:
    """Chunks of a block or few where filters stay in the second-level cache, else larger ones, since they are read again for
    each, within half of that cache where it makes no difference. Panels and units that take least time on all cores for one
    image and for several. some: for one image alone, some channels of the filters at a time, and all its tiles that there is
    room for beside them."""
    lanes, filters = max(2, limits.lanes(layer.element_bytes)), layer.filters.constant or 256
    mr, nv = register_block(layer.filters.constant, lanes, limits)
    tile = prepacked(workload)
    nv = next(n for n in (nv, 4, 3, 2, 1) if tile % (n * lanes) == 0)
    mr = min(mr, (limits.vector_registers - 1) // nv - 1)
    pixels = _pixels(layer, thresholds)
    image = prod(-(-size // m) for size in pixels)
    found = []
    divided = (0, 1, 2, 4, 8) if limits.cores > 1 else (0,)
    for panels, blocks, parts, vectors in product(panels_of(filters, nv * lanes), (4, 3, 2, 1), divided,
                                                  (4, 2, 1) if some else (0,)):
        config = HostWinogradConfig(m, mr, nv, lanes, mr, 0, panels, vectors * lanes)
        filter_bytes, tile_bytes = footprints(config, layer)
        near = filter_bytes + mr * tile_bytes <= limits.l2 * 3 // 4
        if config.kc:
            room = limits.l2 * thresholds.room // 100 - filter_bytes
            mc = min(room // tile_bytes // mr, -(-image // mr)) * mr // blocks
        else:
            room = limits.l2 // thresholds.near_parts if near else limits.l2 * 2
            mc = max(1, min(blocks, room // tile_bytes // mr)) * mr
        config = replace(config, mc=mc, chunks=-(-image // (parts * mc)) if parts and mc else 0)
        if why_invalid(config, workload, limits) is None and filter_bytes * thresholds.filter_parts <= limits.l3:
            score = 0.0
            for images in _IMAGES[:1] if some else _IMAGES:
                units = -(-images * image // (mc * config.chunks)) if parts else 1
                busy = _busy(filters / (panels * config.columns), units, limits.cores)
                score += cycles(config, layer, limits, images * prod(pixels)) / images / busy
            found.append((score, mc * tile_bytes * 2 > limits.l2, -panels, config))
    return min(found, key=lambda c: c[:3])[3] if found else None


def _busy(groups: float, units: int, cores: int) -> float:
    """The share of the cores' time in which they work: units of each whole group of filters, then those of the part of one that
    is left over, which fill up cores that have a unit less."""
    whole, part = divmod(groups, 1)
    if not part:
        whole, part = whole - 1, 1.0
    rounds, more = divmod(int(whole) * units, cores)
    beside = (cores - more) * int(1 / part) if more else 0
    last = rounds + (more > 0) + part * -(-max(0, units - beside) // cores)
    return (int(whole) + part) * units / (last * cores)
