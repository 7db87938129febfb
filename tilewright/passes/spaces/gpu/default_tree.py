"""Trees of default configurations that GPU contractions share: by parts of k, and without what nothing leads to. MLIR-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.dispatch import Leaf, Node, Split, leaves, renumbered, switch
from tilewright.runtime.shape import Expr

Config = TypeVar("Config", bound=TileConfig)


@dataclass(frozen=True)
class PartsOfK:
    """room: blocks that the machine holds at once. least: positions of k that a part has at least. most: parts.

    As many blocks as have room are better than fewer, each of them with its share of k; more than that run one after the other.
    """

    room: int
    least: int
    most: int = 8

    def tree(self, tiles: Expr, depth: Expr, leaf: Callable[[int], Node]) -> Node:
        """`leaf(parts)` for 2, 4 and 8 parts where so many of every tile have room and k is long enough, else `leaf(1)`. Of a k
        that is not known there are 4 or none: every leaf is a kernel."""
        node = leaf(1)
        for parts in (2, 4, 8) if depth.constant is not None else (4,):
            if parts <= self.most:
                cut = decided(depth, [(parts * self.least - 1, node)], leaf(parts))
                node = decided(tiles, [(self.room // parts, cut)], node)
        return node


def decided(expr: Expr, cases: list[tuple[int, Node]], otherwise: Node) -> Node:
    """`switch`, decided here where the number is known."""
    known = expr.constant
    if known is None:
        return switch(str(expr), cases, otherwise)
    return next((node for bound, node in cases if known <= bound), otherwise)


def narrowed(node: Node, expr: str, above: int, most: int | None = None) -> Node:
    """What is left of a tree where `expr` is larger than `above` and at most `most`."""
    if isinstance(node, Leaf):
        return node
    low, high = (narrowed(n, expr, above, most) for n in (node.below, node.above))
    if node.expr == expr and node.bound <= above:
        return high
    return low if node.expr == expr and most is not None and node.bound >= most else Split(node.expr, node.bound, low, high)


def reached(configs: tuple[Config, ...], node: Node) -> tuple[tuple[Config, ...], Node]:
    """Without configurations that the tree leads to nowhere, but for the last; equal ones once."""
    used = dict.fromkeys([*(configs[leaf.kernel] for leaf in leaves(node)), configs[-1]])
    kept = [*(c for c in used if c != configs[-1]), configs[-1]]
    return tuple(kept), renumbered(node, {i: kept.index(c) for i, c in enumerate(configs) if c in used})
