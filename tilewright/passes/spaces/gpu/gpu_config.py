"""What configurations of GPU families have in common. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.limits import MULTIPROCESSOR_THREADS, WARP, GpuLimits

INDEX_BITS = (32, 64)
_CLUSTERS = 90  # the first version whose blocks use each other's shared memory
_LARGEST_CLUSTER = 8  # blocks, on every device


@dataclass(frozen=True)
class GpuConfig(TileConfig):
    """index: bits of coordinates; 32 need fewer registers and a guard, that every operand has less than 2^31 elements."""

    index: int = field(default=32, kw_only=True)


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def why_invalid_ring(threads: int, stages: int, shared: int, min_blocks_per_sm: int, group_m: int,
                     limits: GpuLimits) -> str | None:
    """Rules of blocks that multiply tiles in a ring of `stages` steps, of `shared` bytes in all."""
    if stages < 2:
        return f"stages: {stages}; a step is loaded while another is computed"
    if min_blocks_per_sm * threads > MULTIPROCESSOR_THREADS or min_blocks_per_sm * shared > limits.shared_bytes:
        return f"blocks-fit: {min_blocks_per_sm} blocks of {threads} threads and {shared} shared bytes"
    if shared > limits.shared_bytes:
        return f"shared-budget: {shared} of {limits.shared_bytes} bytes"
    if group_m < 1:
        return f"group-positive: {group_m}"
    return None


def why_invalid_block(threads: int, index: int, most: int) -> str | None:
    """Rules that every family shares."""
    if threads % WARP or not 0 < threads <= most:
        return f"threads-whole-warps: {threads} threads are no multiple of {WARP} up to {most}"
    if index not in INDEX_BITS:
        return f"index-bits: {index} is neither 32 nor 64"
    return None


def most_cluster(limits: GpuLimits) -> int:
    """Blocks of a cluster at most; 1 where there are none."""
    return _LARGEST_CLUSTER if limits.version >= _CLUSTERS else 1


def why_invalid_cluster(blocks: int, limits: GpuLimits) -> str | None:
    """Rules of clusters whose blocks share k."""
    if blocks > 1 and most_cluster(limits) == 1:
        return f"architecture: {limits.arch} has no clusters; wanted sm_{_CLUSTERS} or later"
    if not is_power_of_two(blocks) or blocks > _LARGEST_CLUSTER:
        return f"cluster: {blocks} blocks; wanted 1, 2, 4 or 8"
    return None
