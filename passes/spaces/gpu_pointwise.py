"""Choices of `gpu_pointwise`: every result element on demand, by one thread each. Covers every region. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from passes.spaces.gpu_config import GpuConfig, is_power_of_two, why_invalid_block
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node
from runtime.limits import GpuLimits


@dataclass(frozen=True)
class GpuPointwiseConfig(GpuConfig):
    """vec: elements of one access along the unit-stride axis of the result; chunks: vectors that a thread computes."""

    family: ClassVar[str] = "gpu_pointwise"
    vec: int = 4
    chunks: int = 1
    threads: int = 256


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuPointwiseConfig]:
    """All legal configurations."""
    for vec, chunks, threads in product((1, 2, 4, 8), (1, 2, 4), (64, 128, 256, 512)):
        config = GpuPointwiseConfig(vec, chunks, threads)
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
    return why_invalid_block(config.threads, config.index, limits.threads)


def default(workload: Workload, limits: GpuLimits) -> tuple[tuple[GpuPointwiseConfig, ...], Node]:
    """Vectors of 16 bytes for elementwise work, one element a thread for loops; one without guards for what is not aligned."""
    widest = max((o.dtype.bytes for o in workload.outputs), default=4)
    safe = GpuPointwiseConfig(1, 1, 256, index=64)
    if workload.kind is not Kind.POINTWISE:
        return (GpuPointwiseConfig(1, 1, 128), safe), Leaf(0)
    return (GpuPointwiseConfig(max(1, min(4, 16 // widest))), safe), Leaf(0)
