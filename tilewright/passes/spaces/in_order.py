"""Kernels whose sums have one order for every number of rows, so that a row's bits do not depend on what it is called with.

MLIR-free. What a configuration becomes then is its own `in_order`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.passes.spaces.family_registry import heuristics_of, space_of
from tilewright.passes.spaces.segments import for_sequences
from tilewright.passes.spaces.threshold import calibrated
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.program.dispatch import Leaf, Node, renumbered, select

_LARGE = 1 << 20  # extents of the shape whose kernel serves all


def default_of(family: str, workload: Workload, limits: Limits, ordered: bool = False) -> tuple[tuple[TileConfig, ...], Node]:
    """What a family runs untuned. ordered: the kernel of large shapes for all; on a GPU with one behind it that has no guards."""
    module = heuristics_of(family)
    is_calibrated = isinstance(limits, HostLimits) and limits.calibrated and hasattr(module, "Thresholds")
    own = [calibrated(module.Thresholds(), family, limits)] if is_calibrated else []
    configs, root = module.default(workload, limits, *own)
    if workload.segments:
        alone = [_fitting(for_sequences(c), workload, limits) for c in configs]
        configs = tuple(dict.fromkeys(alone))
        root = renumbered(root, {i: configs.index(c) for i, c in enumerate(alone)})
    if not ordered:
        return configs, root
    chosen = configs[select(root, dict.fromkeys(workload.dims, _LARGE)).kernel].in_order(workload, limits)
    if isinstance(limits, HostLimits):
        return (chosen,), Leaf(0)
    return tuple(dict.fromkeys((chosen, configs[-1].in_order(workload, limits)))), Leaf(0)


def space_in_order(family: str, workload: Workload, limits: Limits) -> Iterator[TileConfig]:
    """The space of a family, each configuration as it keeps the order."""
    yield from dict.fromkeys(c.in_order(workload, limits) for c in space_of(family).space(workload, limits))


def _fitting(config: TileConfig, workload: Workload, limits: Limits) -> TileConfig:
    """With fewer stages where it has no room, as of a block that keeps results in shared memory which others copy out."""
    why_invalid = getattr(space_of(config.family), "why_invalid", None)
    while why_invalid is not None and getattr(config, "stages", 0) > 2 and why_invalid(config, workload, limits) is not None:
        config = replace(config, stages=config.stages - 1)  # type: ignore[attr-defined,call-arg]
    return config
