"""Choices of the toy family: elementwise operators with one result, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits


@dataclass(frozen=True)
class ToyConfig(TileConfig):
    """chunk: elements of a work unit."""

    family: ClassVar[str] = "toy_pointwise"
    chunk: int = 64


def takes(workload: Workload, limits: HostLimits, numerics: Numerics) -> str | None:
    if len(workload.outputs) > 1:
        return f"one-result: the workload has {len(workload.outputs)}"
    return None


def space(workload: Workload, limits: HostLimits) -> Iterator[ToyConfig]:
    yield from map(ToyConfig, (16, 64, 256))
