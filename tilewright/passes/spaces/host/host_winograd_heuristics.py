"""What `host_winograd` runs untuned: from how many rows on it is expected to be faster than `host_matmul`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from tilewright.passes.spaces.host import host_matmul_heuristics
from tilewright.passes.spaces.host.host_block import register_block
from tilewright.passes.spaces.host.host_matmul import Extents, prepacked
from tilewright.passes.spaces.host.host_winograd import (
    COST,
    SHARE,
    TAPS,
    HostWinogradConfig,
    Layer,
    cycles,
    footprints,
    why_invalid,
)
from tilewright.passes.spaces.padding import padded_windows, padding_share, tap_depth
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, leaves, renumbered, switch

_MOST = 1 << 20  # rows that a default tells apart
_IMAGES = (1, 3, 5, 8)  # that a default is chosen for
_WITH = "zen5-avx512.md: the 3x3 layers measured with this value alone"


@dataclass(frozen=True)
class Thresholds:
    """What chunks are chosen by."""

    image: int = threshold(28, unit="rows and columns of an image whose size is not known", operator="conv3x3_128x28_128_nhwc",
                           results="not measured: every convolution of the bench has a known size")
    near_parts: int = threshold(8, unit="parts of the second cache, one for a chunk beside filters that stay there",
                                operator="conv3x3_64x56_64_nhwc", results=_WITH)
    filter_parts: int = threshold(6, unit="parts of the last cache, one for transformed filters",
                                  operator="conv3x3_512x7_512_nhwc", results=_WITH)


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """One configuration from so many rows on that it is expected to take less time than the family host_matmul, whose default
    serves the others. Which tiles, and from how many rows on, does not depend on the threads of a call, so that bits do not."""
    usual, root = host_matmul_heuristics.default(workload, limits)
    layer = Layer.of(workload)
    found = [c for m in COST if (c := _best(m, workload, layer, limits, thresholds)) is not None] if layer is not None else []
    if layer is None or not found:
        return usual, root
    config = min(found, key=lambda c: cycles(c, layer, limits, _MOST))
    chosen = _best(config.m, workload, layer, replace(limits, cores=limits.threads or limits.cores), thresholds) or config

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


def _direct(workload: Workload, layer: Layer, limits: HostLimits, rows: float) -> float:
    """What the family host_matmul is expected to take."""
    channels, filters = layer.channels.constant or 256, layer.filters.constant or 256
    found = padded_windows(workload)
    padding = padding_share(workload, found) if found and tap_depth(workload).constant else 0.0
    lanes = limits.lanes(layer.element_bytes)
    return rows * TAPS**2 * channels * ceil(filters / lanes) / 2 / SHARE * (1 - padding)


def _best(m: int, workload: Workload, layer: Layer, limits: HostLimits,
          thresholds: Thresholds) -> HostWinogradConfig | None:
    """Chunks of a block or few where filters stay in the second-level cache, else larger ones, since they are read again for
    each, within half of that cache where it makes no difference. Panels and units that take least time on all cores for one
    image and for some."""
    lanes, filters = max(2, limits.lanes(layer.element_bytes)), layer.filters.constant or 256
    mr, nv = register_block(layer.filters.constant, lanes, limits)
    tile = prepacked(workload)
    nv = next(n for n in (nv, 4, 3, 2, 1) if tile % (n * lanes) == 0)
    mr = min(mr, (limits.vector_registers - 1) // nv - 1)
    height, width = (e.constant or thresholds.image for e in (layer.height, layer.width))
    image = -(-height // m) * -(-width // m)
    found = []
    for panels, blocks, parts in product((1, 2, 4, 8), (4, 3, 2, 1), (0, 1, 2, 4, 8) if limits.cores > 1 else (0,)):
        config = HostWinogradConfig(m, mr, nv, lanes, mr, 0, panels)
        filter_bytes, tile_bytes = footprints(config, layer)
        near = filter_bytes + mr * tile_bytes <= limits.l2 * 3 // 4
        room = limits.l2 // thresholds.near_parts if near else limits.l2 * 2
        mc = max(1, min(blocks, room // tile_bytes // mr)) * mr
        config = replace(config, mc=mc, chunks=-(-image // (parts * mc)) if parts else 0)
        if why_invalid(config, workload, limits) is None and filter_bytes * thresholds.filter_parts <= limits.l3:
            score = 0.0
            for images in _IMAGES:
                units = -(-filters // (panels * config.columns)) * (-(-images * image // (mc * config.chunks)) if parts else 1)
                busy = units / (-(-units // limits.cores) * limits.cores)
                score += cycles(config, layer, limits, images * height * width) / images / busy
            found.append((score, mc * tile_bytes * 2 > limits.l2, -panels, config))
    return min(found, key=lambda c: c[:3])[3] if found else None
