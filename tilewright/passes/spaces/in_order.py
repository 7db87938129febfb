"""Kernels whose sums have one order for every number of rows, so that a row's bits do not depend on what it is called with.

MLIR-free. What a configuration becomes then is its own `in_order`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.passes.spaces.family_registry import heuristics_of, space_of
from tilewright.passes.spaces.threshold import calibrated
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.program.dispatch import Leaf, Node, select

_LARGE = 1 << 20  # extents of the shape whose kernel serves all


def default_of(family: str, workload: Workload, limits: Limits, ordered: bool = False) -> tuple[tuple[TileConfig, ...], Node]:
    """What a family runs untuned. ordered: the kernel of large shapes for all; on a GPU with one behind it that has no guards."""
    module = heuristics_of(family)
    own = [calibrated(module.Thresholds(), family, limits)] if isinstance(limits, HostLimits) and limits.calibrated else []
    configs, root = module.default(workload, limits, *own)
    if not ordered:
        return configs, root
    chosen = configs[select(root, dict.fromkeys(workload.dims, _LARGE)).kernel].in_order(workload, limits)
    if isinstance(limits, HostLimits):
        return (chosen,), Leaf(0)
    return tuple(dict.fromkeys((chosen, configs[-1].in_order(workload, limits)))), Leaf(0)


def space_in_order(family: str, workload: Workload, limits: Limits) -> Iterator[TileConfig]:
    """The space of a family, each configuration as it keeps the order."""
    yield from dict.fromkeys(c.in_order(workload, limits) for c in space_of(family).space(workload, limits))
