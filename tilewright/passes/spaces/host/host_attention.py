"""Fused attention on the host: scores of a few queries, their softmax and the mixing of values in one work unit. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import ClassVar

from tilewright.passes.spaces.host.host_block import over_budget, values_of_word
from tilewright.passes.spaces.host.host_matmul import TILE_ROWS
from tilewright.passes.spaces.tile_config import TileConfig, shared
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.tensor import DType

ELEMENT = 4  # bytes: scores and sums are f32 whatever the operands are
_LONGEST = 4096  # keys of one block of scores, at most
MOST_SUMS = 4  # tiles of sums, beside those of factors
FEW = 4  # queries of a block that reads keys in place, at most


@dataclass(frozen=True)
class HostAttentionConfig(TileConfig):
    """mr x nv: queries and vectors of the register block; lanes: f32 elements of a vector.

    keys: how many keys the block of scores has room for. online: keys come in blocks of so many and the sums are rescaled
    between them, for any number of keys; else one block holds all keys, and more than `keys` are refused by a guard.
    mc: queries in one work unit, 0 for all; without blocks of keys, units that follow each other share the laid out keys.
    exact_tails: queries left over are one block of their own height instead of blocks of 4, 2 and 1. ordered: every sum is one
    chain, so that its order does not depend on the height of its block. direct: keys are read where they are, in dot products, by
    few queries, which would read their layout hardly more often than it is written; only where keys lie whole in memory.
    pairs: bf16 is multiplied in words of two. tiles: by tiles of 16 queries times 16 keys or value columns.
    """

    family: ClassVar[str] = "host_attention"
    mr: int = 8
    nv: int = 3
    lanes: int = 16
    keys: int = 384
    online: bool = True
    mc: int = 256
    exact_tails: bool = False
    ordered: bool = shared(False)
    direct: bool = False
    pairs: bool = False
    tiles: bool = False

    @property
    def side(self) -> int:
        """Values that are multiplied at once."""
        return 2 if self.pairs else 1

    @property
    def panel(self) -> int:
        """Keys of a panel."""
        return self.nv * self.lanes

    def in_order(self, workload: Workload, limits: Limits) -> HostAttentionConfig:
        """With sums in one chain, which dot products are not, nor are tiles one that fewer queries follow."""
        return replace(self.untiled(), ordered=True, direct=False)

    def untiled(self) -> HostAttentionConfig:
        """With a block of sums that registers hold, of keys that make whole panels."""
        if not self.tiles:
            return self
        nv = next(n for n in (3, 2, 1) if self.keys % (n * self.lanes) == 0)
        return replace(self, mr=TILE_ROWS // 2, nv=nv, tiles=False)


def space(workload: Workload, limits: HostLimits) -> Iterator[HostAttentionConfig]:
    """All legal configurations."""
    widest = limits.lanes(ELEMENT)
    pairs = multiplies_pairs(workload, limits)
    laid_out = product(range(1, 13), range(1, 7), (1, 2, 4, 8, 16), (False, True), (0, 8, 32), (False, True), (False,))
    in_place = product(range(1, FEW + 1), range(1, 9), (4, 8, 16), (True,), (1, 8), (False,), (True,))
    for lanes, (mr, nv, blocks, online, chunks, exact, direct) in product((widest, widest // 2), chain(laid_out, in_place)):
        config = HostAttentionConfig(mr, nv, lanes, blocks * nv * lanes, online, chunks * mr, exact, direct=direct, pairs=pairs)
        if why_invalid(config, workload, limits) is None:
            yield config
    if pairs and limits.bf16_tiles:
        for mr, nv, blocks, online, chunks in product((16, 32), range(1, MOST_SUMS + 1), (4, 8, 16), (False, True), (1, 4, 16)):
            config = HostAttentionConfig(mr, nv, TILE_ROWS, blocks * nv * TILE_ROWS, online, chunks * mr, pairs=True, tiles=True)
            if why_invalid(config, workload, limits) is None:
                yield config


def why_invalid(config: HostAttentionConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if workload.kind is not Kind.ATTENTION:
        return f"attention: the workload is {workload.kind.value}"
    if config.mr < 1 or config.nv < 1:
        return f"block-positive: {config.mr} x {config.nv}"
    if config.lanes < 2 or config.lanes & (config.lanes - 1):
        return f"lanes-power-of-two: {config.lanes} lanes"
    if config.lanes * ELEMENT > limits.vector_bytes:
        return f"lanes-fit: {config.lanes} lanes of {ELEMENT} bytes are wider than a {limits.vector_bytes}-byte register"
    if config.pairs and not multiplies_pairs(workload, limits):
        return "words: the target or the element types have no products of two values at once"
    budget = _tiles(config, limits) if config.tiles else over_budget(config.mr, config.nv, limits)
    if budget is not None:
        return budget
    if config.keys < 1 or config.keys % config.panel:
        return f"keys-whole-panels: {config.keys} keys are no multiple of {config.panel}"
    if config.keys > _LONGEST or config.mr * config.keys * ELEMENT > limits.l2 // 4:
        return f"scores-fit: {config.mr} x {config.keys} scores exceed {_LONGEST} keys or a quarter of {limits.l2} bytes"
    if config.mc < 0 or config.mc % config.mr:
        return f"chunk-whole-blocks: {config.mc} queries are no multiple of {config.mr}"
    if config.direct and config.mr > FEW:
        return f"direct-few-queries: {config.mr} queries of a block read keys in place, at most {FEW}"
    if config.online and not config.mc:
        return "chunk-bounded: the sums of a work unit stay in the workspace between blocks of keys"
    known = workload.size("n").constant
    if not config.online and known is not None and known > config.keys:
        return f"keys-in-one-block: {known} keys, room for {config.keys}"
    return None


def _tiles(config: HostAttentionConfig, limits: HostLimits) -> str | None:
    """The rule of tiles that the configuration breaks, or None."""
    if not (limits.bf16_tiles and config.pairs):
        return "tiles: the target has no products of tiles, or they are not of pairs"
    high = config.mr // TILE_ROWS
    if config.mr % TILE_ROWS or config.lanes != TILE_ROWS or high * config.nv > MOST_SUMS:
        return f"tiles-fit: {config.mr} queries by {config.nv} vectors of {config.lanes} are not 1 to {MOST_SUMS} 16 x 16 tiles"
    if config.exact_tails or config.direct or config.ordered:
        return "tiles-of-copies: tiles are of copied queries and keys, whole ones, and of no order"
    return None


def multiplies_pairs(workload: Workload, limits: HostLimits) -> bool:
    """Are values of bf16 multiplied in words of two?"""
    return any(o.dtype is DType.BF16 for o in workload.inputs) and values_of_word(True, None, limits) > 1
