"""Kernels whose sums have one order for every number of rows, so that a row's bits do not depend on what it is called with.

MLIR-free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from passes.spaces.host_attention import HostAttentionConfig
from passes.spaces.host_matmul import Extents, HostMatmulConfig
from passes.spaces.host_matmul_heuristics import register_block
from passes.spaces.registry import heuristics_of, space_of
from passes.tile_config import TileConfig
from passes.workload import Workload
from runtime.dispatch import Leaf, Node, select
from runtime.limits import HostLimits, Limits

_LARGE = 1 << 20  # extents of the shape whose kernel serves all


def default_of(family: str, workload: Workload, limits: Limits, ordered: bool = False) -> tuple[tuple[TileConfig, ...], Node]:
    """What a family runs untuned. ordered: the kernel of large shapes for all; on a GPU with one behind it that has no guards."""
    configs, root = heuristics_of(family).default(workload, limits)
    if not ordered:
        return configs, root
    chosen = configs[select(root, dict.fromkeys(workload.dims, _LARGE)).kernel]
    if isinstance(limits, HostLimits):
        return (_in_order(chosen, workload, limits),), Leaf(0)
    return tuple(dict.fromkeys((chosen, configs[-1]))), Leaf(0)


def space_in_order(family: str, workload: Workload, limits: Limits) -> Iterator[TileConfig]:
    """The space of a family as far as it keeps the order."""
    for config in space_of(family).space(workload, limits):
        if not isinstance(config, HostMatmulConfig) or not config.stream:
            yield _in_order(config, workload, limits)


def _in_order(config: TileConfig, workload: Workload, limits: Limits) -> TileConfig:
    """The configuration with sums in one chain; of one that streams, a register block of columns in place."""
    if isinstance(config, HostMatmulConfig) and isinstance(limits, HostLimits) and config.stream:
        mr, nv = register_block(Extents.of(workload).columns.constant, config.lanes, limits)
        config = HostMatmulConfig(mr, nv, config.lanes, pairs=config.pairs)
    return replace(config, ordered=True) if isinstance(config, HostMatmulConfig | HostAttentionConfig) else config
