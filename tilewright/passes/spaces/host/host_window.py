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

UNROLLED = 64  # taps at most that are unrolled
_LARGEST = 1024  # results of a block times their unrolled taps, in whole vectors, that code is made of


@dataclass(frozen=True)
class HostWindowConfig(TileConfig):
    """pixels x nv: pixels and vectors of results of the register block; lanes: elements of a vector. chunk: pixels of the pixel
    loop in one work unit, 0 for all."""

    family: ClassVar[str] = "host_window"
    pixels: int = 4
    nv: int = 2
    lanes: int = 16
    chunk: int = 0


@dataclass(frozen=True)
class Layer:
    """Of a workload as this family sees it. along: the loop along the vectors; inner: its window, where vectors are pixels;
    outer: the window of the pixel loop; either may be missing."""

    along: int
    inner: Window | None
    outer: Window | None

    @staticmethod
    def of(workload: Workload) -> Layer | None:
        """None of a workload without windows, or whose result has no known unit stride."""
        along = workload.outputs[0].along if workload.outputs else None
        if along is None or not workload.windows:
            return None
        inner = next((w for w in workload.windows if w.row == along), None)
        outer = next((w for w in reversed(workload.windows) if w.row != along), None)
        return Layer(along, inner, outer)

    def taps(self, workload: Workload) -> tuple[int, int]:
        """Taps of the pixel loop and along the vectors that are unrolled; 1 where there are none or too many."""
        found, total = [], 1
        for window in (self.outer, self.inner):
            count = workload.loops[window.tap].extent.constant if window is not None else None
            unrolled = count if count and total * count <= UNROLLED else 1
            total *= unrolled
            found.append(unrolled)
        return found[0], found[1]


def takes(workload: Workload, limits: HostLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a workload, or None."""
    layer = Layer.of(workload)
    if layer is None:
        return "windows: the workload is no reduction over windows of an image whose result has a unit stride"
    if workload.kind is Kind.CONTRACTION:
        roles = [loop.role for loop in workload.loops]
        taps = {w.tap for w in workload.windows}
        if any(role == "k" and d not in taps for d, role in enumerate(roles)):
            return "one-channel: products are summed over more than the window"
        if roles[layer.along] == "n":
            return "one-channel: the vectors run along filters, which all read the same places"
        if any(o.panel for o in workload.inputs):
            return "plain-factors: an operand is laid out in panels"
    return None


def space(workload: Workload, limits: HostLimits) -> Iterator[HostWindowConfig]:
    """All legal configurations."""
    lanes = limits.lanes(widest_bytes(workload))
    for pixels, nv, part, chunk in product((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4), (1, 2, 4), (0, 4, 8, 16, 32)):
        config = HostWindowConfig(pixels, nv, lanes // part, chunk)
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
    if min(config.pixels, config.nv) < 1 or config.chunk < 0:
        return "counts-positive: pixels and vectors are at least 1, the chunk at least 0"
    needed = config.pixels * config.nv + config.nv + 1
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
    if along is not None and config.nv > max(1, along // config.lanes):
        return f"vectors-used: {config.nv} vectors of {config.lanes} lanes are more than {along} elements"
    across, inner = layer.taps(workload)
    if config.pixels * config.nv * across * inner > _LARGEST:
        return f"code-bounded: {config.pixels * config.nv * across * inner} unrolled steps, at most {_LARGEST}"
    return None
