"""The fallback family `generic`: every output element computed on demand. Covers every region, by construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits


@dataclass(frozen=True)
class GenericConfig(TileConfig):
    """lanes: elements per vector along the unit-stride axis of the result; chunk: elements of a row in one work unit."""

    family: ClassVar[str] = "generic"
    lanes: int = 16
    chunk: int = 4096


def space(workload: Workload, limits: HostLimits) -> Iterator[GenericConfig]:
    """All legal configurations."""
    for lanes in (1, 4, 8, 16, 32):
        for chunk in (256, 1024, 4096, 16384):
            config = GenericConfig(lanes, chunk)
            if why_invalid(config, workload, limits) is None:
                yield config


def why_invalid(config: GenericConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if config.lanes & (config.lanes - 1):
        return f"lanes-power-of-two: {config.lanes} lanes"
    widest = max(o.dtype.bytes for o in (*workload.inputs, *workload.outputs))
    if config.lanes * widest > 4 * limits.vector_bytes:
        return f"lanes-fit: {config.lanes} lanes of {widest} bytes need more than four {limits.vector_bytes}-byte registers"
    if config.chunk % config.lanes:
        return f"chunk-whole-vectors: {config.chunk} is no multiple of {config.lanes}"
    return None
