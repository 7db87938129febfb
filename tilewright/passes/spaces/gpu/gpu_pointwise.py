"""Choices of `gpu_pointwise`: every result element on demand, by one thread each. Covers every region. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two, why_invalid_block
from tilewright.passes.spaces.workload import Operand, Workload
from tilewright.runtime.limits import WARP, GpuLimits


@dataclass(frozen=True)
class GpuPointwiseConfig(GpuConfig):
    """vec: elements of one access along the unit-stride axis of the result; chunks: vectors that a thread computes. tile: edge of
    the tiles in shared memory by which operands go that are read across that axis; 0 for none."""

    family: ClassVar[str] = "gpu_pointwise"
    vec: int = 4
    chunks: int = 1
    threads: int = 256
    tile: int = 0


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuPointwiseConfig]:
    """All legal configurations."""
    for vec, chunks, threads, tile in product((1, 2, 4, 8), (1, 2, 4), (64, 128, 256, 512), (0, 32)):
        config = GpuPointwiseConfig(vec, chunks, threads, tile)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GpuPointwiseConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if not is_power_of_two(config.vec) or config.vec > 16:
        return f"vector-power-of-two: {config.vec} elements"
    widest = max((o.dtype.bytes for o in workload.outputs), default=4)
    if config.vec * widest > 32:
        return f"vector-fits: {config.vec} elements of {widest} bytes are more than two accesses"
    if config.chunks < 1:
        return f"chunks-positive: {config.chunks}"
    if config.tile and (config.tile % WARP or config.threads % config.tile or config.tile % (config.threads // config.tile)):
        return f"tile-whole-warps: tiles of {config.tile} by {config.threads} threads"
    if config.tile and (config.vec, config.chunks) != (1, 1):
        return "tile-elements: a thread of a tile moves single elements"
    return why_invalid_block(config.threads, config.index, limits.threads)


def reads_across(operand: Operand, out: Operand) -> bool:
    """Does memory run along one loop in the operand and along another in the result?"""
    return operand.along is not None and out.along is not None and operand.along != out.along
