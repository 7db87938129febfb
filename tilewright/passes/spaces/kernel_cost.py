"""KernelCost: what is known of a tile configuration before it is built; the search's view of a family. MLIR-free.

Each family has passes/spaces/<family>_cost.py with `extents(workload)`, the named sizes it sees, and
`kernel_cost(config, workload, limits)`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from tilewright.passes.spaces.tile_config import SHARED, TileConfig


@dataclass(frozen=True)
class Footprint:
    """Bytes that stay in a cache while they are used again: `bytes` for each element of the extent `along`."""

    bytes: int
    along: str


@dataclass(frozen=True)
class Load:
    """What so much work of a block asks of a multiprocessor.

    issue: warp instructions. shared: cycles of shared memory, of 128 bytes each. bytes: moved from or to beyond the
    multiprocessor. matrix: multiply-adds of tensor cores on 16-bit elements; of other widths as many as take as long.
    """

    issue: float = 0.0
    shared: float = 0.0
    bytes: float = 0.0
    matrix: float = 0.0


@dataclass(frozen=True)
class GpuBlock:
    """A block of threads of a GPU kernel, as far as its configuration tells; `registers` are a thread's.

    step: of `depth` elements of the extent `along` (none: one step). once: beside the steps. chain: cycles that a step takes
    beyond its instructions when nothing else runs. ahead: steps that are loaded before they are needed. parts: blocks that share
    the extent `along`; partial: bytes of sums that each leaves for a later launch, which joins them. launches: of all
    that the kernel does. most: blocks that are launched at most, each taking one tile after the other; 0 for one block a tile.
    beside: blocks that a unit is for; cluster: blocks that are launched together. hidden: share of `once` that the steps of the
    next tile hide. streamed: the `most` blocks share the steps of all tiles evenly; where these are no whole tiles each,
    `partial` is of what they leave of a tile and `launches` counts the one that joins them. together: blocks are in step with
    each other, as tensor copies keep them, so that those beside and below each other ask for the same at once.
    """

    threads: int
    registers: int
    shared_bytes: int
    step: Load
    once: Load
    along: str = ""
    depth: int = 1
    chain: float = 0.0
    ahead: float = 0.0
    parts: int = 1
    partial: int = 0
    launches: int = 1
    most: int = 0
    beside: int = 1
    cluster: int = 1
    hidden: float = 0.0
    streamed: bool = False
    together: bool = False


@dataclass(frozen=True)
class KernelCost:
    """Keys of `tiles`, `pads`, `partial`, `least`, `halved`, `units`, `most` name extents.

    coordinates: place in the lattice, one number a choice. tiles: elements of a block of the inner loops. pads: what lies beyond
    whole tiles is rounded up to this, and what that adds is computed for nothing. partial: how many times longer an element of an
    incomplete tile takes. least: a block of fewer elements costs as much as this many. halved: what is left after whole blocks
    is done in powers of two (1), else in one block (0). units: elements of a work unit, 0 for the whole extent. most: largest
    extent that the kernel serves. rate: share of the peak that the inner block can reach. copied: what every work unit copies
    first. block: of a GPU kernel. features: named numbers for the cost model.
    """

    coordinates: Mapping[str, float]
    tiles: Mapping[str, int] = field(default_factory=dict)
    pads: Mapping[str, int] = field(default_factory=dict)
    partial: Mapping[str, float] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    halved: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    rate: float = 1.0
    copied: Footprint | None = None
    block: GpuBlock | None = None
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)


def fields_of(config: TileConfig) -> dict[str, float]:
    """The fields of a configuration as numbers; members of an enum and texts by their place or code. Not those that are
    `shared`."""
    return {name: _number(getattr(config, name)) for name in _names(cast(Hashable, type(config)))}


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    """Reading them off a class takes longer than what is done with them, and a space has ten thousands of configurations."""
    return tuple(f.name for f in dataclasses.fields(cls) if SHARED not in f.metadata)


def _number(value: object) -> float:
    if type(value) is int:
        return float(value)
    if isinstance(value, Enum):
        return float(list(type(value)).index(value))
    if isinstance(value, str):
        return float(int.from_bytes(value.encode()[:4], "big"))
    assert isinstance(value, bool | int | float)
    return float(value)
