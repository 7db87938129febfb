"""What `host_attention` runs untuned, by the number of keys. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.spaces.host.host_attention import ELEMENT, FEW, HostAttentionConfig, multiplies_pairs, why_invalid
from tilewright.passes.spaces.host.host_block import over_budget
from tilewright.passes.spaces.host.host_matmul import TILE_ROWS
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch

_TILED = 2 * TILE_ROWS  # queries, and keys of a panel, of a block of tiles
_WITH = "zen5-avx512.md: T up to 512 measured with this value alone"


@dataclass(frozen=True)
class Thresholds:
    """Break-even numbers of keys."""

    keys_at_once: int = threshold(512, unit="keys, up to which one block of scores holds all", operator="attention",
                                  results=_WITH)
    tiled_keys_at_once: int = threshold(1024, unit="keys, likewise where products are of tiles", operator="attention_bf16",
                                        results="xeon-avx512.md: beside blocks of 256 to 512 keys")
    block_keys: int = threshold(384, unit="keys of a block where they are more", operator="attention",
                                results="not measured: no operator of the bench has more than 512 keys")
    few_queries: int = threshold(FEW, unit="queries, up to which keys are read in place", operator="attention",
                                 results="not measured: no operator of the bench has fewer queries than keys")
    block_share: int = threshold(4, unit="part of the second-level cache that the keys of a block take at most",
                                 operator="attention", results="not measured: no operator of the bench has heads above 64")


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[HostAttentionConfig, ...], Node]:
    """One block of scores while it and the keys stay close, else blocks of keys; keys in place for a few queries, where their
    number is no number of keys too."""
    lanes = max(2, limits.lanes(ELEMENT))
    queries, keys = workload.size("m"), workload.size("n")
    few = _few(workload, limits, thresholds, thresholds.few_queries if queries.constant is None else queries.constant)
    if queries.constant is not None and 0 < queries.constant <= thresholds.few_queries:
        return (few,), Leaf(0)
    mr, nv = (6, 2) if limits.vector_registers < 32 else (8, 2) if limits.vector_bytes == 16 else (8, 3)
    panel = nv * lanes
    pairs = multiplies_pairs(workload, limits)
    most = thresholds.tiled_keys_at_once if pairs and limits.bf16_tiles else thresholds.keys_at_once
    short = HostAttentionConfig(mr, nv, lanes, _at_once(workload, limits, most, panel), False, 16 * mr, pairs=pairs)
    long = HostAttentionConfig(mr, nv, lanes, _block(workload, limits, thresholds, panel), True, 32 * mr, pairs=pairs)
    if pairs and limits.bf16_tiles:
        short, long = (_tiled(c, workload, limits) for c in (short, long))
    if keys.constant is not None:
        return (short if keys.constant <= short.keys else long,), Leaf(0)
    many = switch(str(keys), [(short.keys, Leaf(0))], Leaf(1))
    if queries.constant is not None or queries.symbols & keys.symbols:
        return (short, long), many
    return (short, long, few), switch(str(queries), [(thresholds.few_queries, Leaf(2))], many)


def _tiled(config: HostAttentionConfig, workload: Workload, limits: HostLimits) -> HostAttentionConfig:
    """The same in two by two tiles, of as many keys and queries; as it is where it breaks a rule of tiles."""
    nv = _TILED // TILE_ROWS
    keys = -(-config.keys // (nv * TILE_ROWS)) * nv * TILE_ROWS
    tiled = replace(config, mr=_TILED, nv=nv, lanes=TILE_ROWS, keys=keys, mc=-(-config.mc // _TILED) * _TILED, tiles=True)
    return config if why_invalid(tiled, workload, limits) is not None else tiled


def _at_once(workload: Workload, limits: HostLimits, most: int, panel: int) -> int:
    """Keys of one block that holds all: as many as take half of the second-level cache, in whole panels."""
    depth = workload.size("k").constant
    room = most if depth is None else limits.l2 // 2 // (depth * ELEMENT)
    return -(-min(most, max(room, panel)) // panel) * panel


def _block(workload: Workload, limits: HostLimits, thresholds: Thresholds, panel: int) -> int:
    """Keys of a block: whole panels, at least one."""
    depth = workload.size("k").constant
    room = thresholds.block_keys if depth is None else limits.l2 // thresholds.block_share // (depth * ELEMENT)
    return max(1, -(-min(thresholds.block_keys, room) // panel)) * panel


def _few(workload: Workload, limits: HostLimits, thresholds: Thresholds, queries: int) -> HostAttentionConfig:
    """Blocks as wide as the registers and the values allow, so that these are read once for all queries."""
    lanes = max(2, limits.lanes(ELEMENT))
    columns = workload.size("e").constant or 1
    fitting = [nv for nv in range(1, -(-columns // lanes) + 1) if over_budget(queries, nv, limits) is None]
    nv = max(fitting, default=1)
    panel = nv * lanes
    return HostAttentionConfig(queries, nv, lanes, -(-thresholds.block_keys // panel) * panel, True, queries, direct=True,
                               pairs=multiplies_pairs(workload, limits))
