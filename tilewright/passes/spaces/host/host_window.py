"""Choices of the family `host_window`: reductions over the windows of an image. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.host.host_rows import widest_bytes
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Window, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr

UNROLLED = 64  # taps at most that are unrolled
UNROLLED_SHARED = 16  # where several filters share what is read: of more LLVM loads the elements early and keeps them in memory
NEAR_FACTORS = 4096  # filters times channels of a group, whose elements meet a block of pixels from a near cache
_LARGEST = 1024  # results of a block times their unrolled taps, in whole vectors, that code is made of


@dataclass(frozen=True)
class HostWindowConfig(TileConfig):
    """filters x pixels x nv: filters, pixels and vectors of results of the register block; lanes: elements of a vector. chunk:
    pixels of the pixel loop in one work unit, 0 for all. flat: vectors pass over the pixels of a unit one row after the other, so
    that rows of less than a vector fill it; for blocks of filters, which share what is copied for that, or, one vector at a time,
    for windows without filters that they share, whose results lie as the image does."""

    family: ClassVar[str] = "host_window"
    pixels: int = 4
    nv: int = 2
    lanes: int = 16
    chunk: int = 0
    filters: int = 1
    flat: bool = False


@dataclass(frozen=True)
class Layer:
    """Of a workload as this family sees it. along: the loop along the vectors; inner: its window, where vectors are pixels;
    outer: the window of the pixel loop; either may be missing. free: the loops that the image has no axis of."""

    along: int
    inner: Window | None
    outer: Window | None
    free: tuple[int, ...]

    @staticmethod
    def of(workload: Workload) -> Layer | None:
        """None of a workload without windows, or whose result has no known unit stride."""
        along = workload.outputs[0].along if workload.outputs else None
        if along is None or not workload.windows:
            return None
        inner = next((w for w in workload.windows if w.row == along), None)
        outer = next((w for w in reversed(workload.windows) if w.row != along), None)
        first = workload.windows[0]
        image = next((f for f in workload.factors if {first.row, first.tap} <= f.loops), None)
        parallel = [d for d, loop in enumerate(workload.loops) if loop.role != "k"]
        free = () if image is None else tuple(d for d in parallel if d not in image.loops)
        return Layer(along, inner, outer, free)

    def filters(self, workload: Workload) -> int:
        """Results that read the same places, each by a filter of its own; 1 where their number is not known."""
        return (workload.loops[self.free[0]].extent.constant or 1) if self.free else 1

    def depth(self, workload: Workload) -> Expr:
        """Products of a result for each place of the window."""
        total, taps = Expr.of(1), {w.tap for w in workload.windows}
        for d, loop in enumerate(workload.loops):
            if loop.role == "k" and d not in taps:
                total = total * loop.extent
        return total

    def taps(self, workload: Workload) -> tuple[int, int]:
        """Taps of the pixel loop and along the vectors that are unrolled; 1 where there are none or too many."""
        found, total = [], 1
        for window in (self.inner, self.outer) if self.free else (self.outer, self.inner):
            count = workload.loops[window.tap].extent.constant if window is not None else None
            unrolled = count if count and total * count <= (UNROLLED_SHARED if self.free else UNROLLED) else 1
            total *= unrolled
            found.append(unrolled)
        across, along = reversed(found) if self.free else found
        return across, along


def takes(workload: Workload, limits: HostLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a workload, or None."""
    layer = Layer.of(workload)
    if layer is None:
        return "windows: the workload is no reduction over windows of an image whose result has a unit stride"
    if workload.kind is Kind.CONTRACTION:
        if layer.along in layer.free or len(layer.free) > 1:
            return "one-filter-loop: the vectors run along filters, which all read the same places, or these are several loops"
        if layer.inner is None and (layer.free or layer.depth(workload) != Expr.of(1)):
            return "pixels-along: vectors of channels are for windows over each channel by itself"
        if (layer.depth(workload).constant or limits.l2) * layer.filters(workload) > NEAR_FACTORS:
            return f"factors-near: the filters of a group have more than {NEAR_FACTORS} elements for each place of the window"
        if any(o.panel for o in workload.inputs):
            return "plain-factors: an operand is laid out in panels"
    return None


def space(workload: Workload, limits: HostLimits) -> Iterator[HostWindowConfig]:
    """All legal configurations."""
    lanes = limits.lanes(widest_bytes(workload))
    layer = Layer.of(workload)
    filters = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16) if layer is not None and layer.free else (1,)
    blocks = [(pixels, nv, False) for pixels, nv in product((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4))]
    blocks += [(1, nv, True) for nv in ((1, 2, 3, 4) if layer is not None and layer.free else (1,))]
    for (pixels, nv, flat), part, chunk, count in product(blocks, (1, 2, 4), (0, 4, 8, 16, 32), filters):
        config = HostWindowConfig(pixels, nv, lanes // part, chunk, count, flat)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: HostWindowConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    layer = Layer.of(workload)
    if layer is None:
        return "windows: the workload is no reduction over windows of an image whose result has a unit stride"
    size = widest_bytes(workload)
    if config.lanes < 2 or config.lanes & (config.lanes - 1) or config.lanes * size > limits.vector_bytes:
        return f"lanes-fit: {config.lanes} lanes of {size} bytes, of a {limits.vector_bytes}-byte register"
    if min(config.pixels, config.nv, config.filters) < 1 or config.chunk < 0:
        return "counts-positive: filters, pixels and vectors are at least 1, the chunk at least 0"
    if layer.filters(workload) % config.filters:
        return f"filters-whole: {layer.filters(workload)} filters are no multiple of {config.filters}"
    if config.flat and (layer.inner is None or layer.outer is None or config.pixels > 1):
        return "flat-filters: rows in line are for blocks of filters of one pixel, in windows over rows and columns"
    if config.flat and not layer.free and (reason := _no_plane(config, layer, workload)) is not None:
        return reason
    needed = config.filters * config.pixels * config.nv + config.nv * (config.pixels if layer.free else 1) + 1
    if needed > limits.vector_registers:
        return f"register-budget: results and what joins them need {needed} of {limits.vector_registers} registers"
    pixels = workload.loops[layer.outer.row].extent.constant if layer.outer is not None else 1
    if pixels is not None and config.pixels > max(1, pixels):
        return f"pixels-used: blocks of {config.pixels} pixels are more than {pixels}"
    if config.chunk and config.chunk < config.pixels:
        return f"chunk-whole-blocks: {config.chunk} pixels in a unit are less than a block of {config.pixels}"
    if config.chunk and pixels is not None and config.chunk >= pixels:
        return f"chunk-used: {config.chunk} of {pixels} pixels in a unit are all of them"
    along = workload.loops[layer.along].extent.constant
    if along is not None and not config.flat and config.nv > max(1, -(-along // config.lanes)):
        return f"vectors-used: {config.nv} vectors of {config.lanes} lanes are more than {along} elements"
    across, inner = layer.taps(workload)
    steps = config.filters * config.pixels * config.nv * across * inner
    if steps > _LARGEST:
        return f"code-bounded: {steps} unrolled steps, at most {_LARGEST}"
    return None


def _no_plane(config: HostWindowConfig, layer: Layer, workload: Workload) -> str | None:
    """Why results do not lie as the image does, or None."""
    inner, outer, taps = layer.inner, layer.outer, layer.taps(workload)
    assert inner is not None and outer is not None
    counts = [workload.loops[w.tap].extent.constant for w in (outer, inner)]
    if config.nv > 1 or len(workload.windows) > 2 or layer.depth(workload) != Expr.of(1) or list(taps) != counts:
        return "plane-taps: vectors over whole images go one by one, over windows of two axes whose taps are all unrolled"
    if workload.loops[inner.row].extent == Expr.of(1):
        return "plane-columns: images of one column have no rows"
    if inner.stride > 1 or outer.stride > 1 or inner.low + inner.high != (taps[1] - 1) * inner.dilation:
        return "plane-rows: rows of results are as long as those of the image only in steps of one, with padding for that"
    own = {outer.row, inner.row}
    for operand in (*workload.inputs, *workload.outputs):
        moving = [own & set(axis.loops) for axis in operand.axes]
        alone = all(axis.steps[axis.loops.index(d)] == 1 for axis, mine in zip(operand.axes, moving, strict=True) for d in mine)
        placed = moving[-2:] == [{outer.row}, {inner.row}] and operand.unit_axis == len(moving) - 1 and alone
        if len(moving) != len(operand.dims) or (any(moving) and not (placed and not any(moving[:-2]))):
            return "plane-operands: an operand has no rows, or rows of another length"
    return None
