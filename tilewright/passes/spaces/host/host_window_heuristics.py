"""What `host_window` runs untuned. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.host import generic_heuristics
from tilewright.passes.spaces.host.host_rows import widest_bytes
from tilewright.passes.spaces.host.host_window import HostWindowConfig, Layer, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node

_NONE = "not measured with other values: no operator of the bench pools or convolves each channel by itself"


@dataclass(frozen=True)
class Thresholds:
    """Sizes of register blocks and work units."""

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
    stepped = layer.inner is not None and layer.inner.stride > 1 and not layer.inner.padded  # read in place, not by masks
    while columns is not None and lanes > 4 and (lanes if stepped else lanes // 2 + 1) > columns:
        lanes //= 2
    chunk = thresholds.chunk if layer.inner is not None and (pixels is None or pixels > thresholds.chunk) else 0
    across, along = layer.taps(workload)
    stride = layer.outer.stride if layer.outer is not None else 1
    best: tuple[float, HostWindowConfig] | None = None
    for count in range(1, 9):
        for nv in (1, 2, 3, 4):
            config = HostWindowConfig(count, nv, lanes, chunk)
            if why_invalid(config, workload, limits) is not None:
                continue
            block = _steps(count, nv, across * along, ((count - 1) * stride + across) * along)
            one = _steps(1, nv, across * along, across * along)
            each = chunk or pixels or 64
            inside = each - (across - 1) // stride if layer.inner is None else each
            steps = inside // count * block + (each - inside // count * count) * one
            vectors = nv if columns is None else -(-columns // (nv * lanes)) * nv * (nv * lanes / max(1, columns))
            cost = steps / nv * (vectors if columns is not None else 1)
            if best is None or cost < best[0] * 0.98:
                best = (cost, config)
    return (best[1] if best is not None else HostWindowConfig(1, 1, lanes, chunk),), Leaf(0)


def _steps(pixels: int, nv: int, taps: int, places: int) -> float:
    """Cycles of a block: joins, two a cycle and not before the one before them is done; loads, two a cycle; its start and end."""
    joins = max(pixels * nv * taps / 2, 4 * taps)
    return max(joins, (places * nv + taps * nv) / 2) + 6 + pixels * nv
