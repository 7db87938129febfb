"""DispatchTable: which micro-kernel serves which shape, as a decision tree over expressions of the local dims.

The same tree is evaluated here (explain, tests, search) and emitted natively into the host program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Union

import msgspec

from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr


class Leaf(msgspec.Struct, frozen=True, tag="leaf"):
    """Run kernel number `kernel` of the table on at most `threads` threads (0: all that the call has)."""

    kernel: int
    threads: int = 0


class Split(msgspec.Struct, frozen=True, tag="split"):
    """`below` where expr <= bound, `above` where it is larger."""

    expr: str
    bound: int
    below: Union[Leaf, Split]
    above: Union[Leaf, Split]


Node = Union[Leaf, Split]


class DispatchTable(msgspec.Struct, frozen=True):
    """The micro-kernels of one workload and the tree that picks among them.

    flops: useful operations, text of an Expr over `dims`; empty where nobody asked. pads: of each kernel, the extents that it
    rounds up and to a multiple of what; the operations that this adds are computed for nothing. codes: bytes of weights in few
    bits or out of pools with their scales, as they are stored; 0 where there are none.
    """

    workload: str
    name: str
    dims: tuple[str, ...]
    kernels: tuple[MicroKernel, ...]
    root: Node
    flops: str = ""
    pads: tuple[tuple[tuple[str, int], ...], ...] = ()
    codes: int = 0

    def operations(self, kernel: int, dims: Mapping[str, int]) -> tuple[int, int]:
        """The useful and the executed ones of a kernel at a shape; 0 where they are not known."""
        useful = Expr.parse(self.flops).evaluate(dims) if self.flops else 0
        executed = float(useful)
        for text, multiple in self.pads[kernel] if self.pads else ():
            extent = Expr.parse(text).evaluate(dims)
            executed *= -(-extent // multiple) * multiple / extent if extent else 1.0
        return useful, round(executed)

    def select(self, dims: Mapping[str, int]) -> Leaf:
        return select(self.root, dims)


def select(node: Node, dims: Mapping[str, int]) -> Leaf:
    """The leaf of a shape."""
    while isinstance(node, Split):
        node = node.below if Expr.parse(node.expr).evaluate(dims) <= node.bound else node.above
    return node


def leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    else:
        yield from leaves(node.below)
        yield from leaves(node.above)


def renumbered(node: Node, number: Mapping[int, int]) -> Node:
    """The tree with its kernels renamed."""
    if isinstance(node, Leaf):
        return Leaf(number[node.kernel], node.threads)
    return Split(node.expr, node.bound, renumbered(node.below, number), renumbered(node.above, number))


def within(node: Node, ranges: Mapping[str, tuple[float, float]]) -> Node:
    """The tree without the sides that no shape within the (inclusive) ranges takes; of other names it keeps both."""
    if isinstance(node, Leaf):
        return node
    expr = Expr.parse(node.expr)
    if expr.symbols <= ranges.keys():
        lo, hi = expr.bounds(ranges)
        if hi <= node.bound:
            return within(node.below, ranges)
        if lo > node.bound:
            return within(node.above, ranges)
    return Split(node.expr, node.bound, within(node.below, ranges), within(node.above, ranges))


def symbols(node: Node) -> frozenset[str]:
    """All names that the tree's expressions use."""
    if isinstance(node, Leaf):
        return frozenset()
    return Expr.parse(node.expr).symbols | symbols(node.below) | symbols(node.above)


def switch(expr: str, cases: list[tuple[int, Node]], otherwise: Node) -> Node:
    """A tree from ascending (bound, node) cases: the first whose bound is not below `expr`, else `otherwise`."""
    if not cases:
        return otherwise
    middle = (len(cases) - 1) // 2
    bound, node = cases[middle]
    above = switch(expr, cases[middle + 1 :], otherwise)
    below = switch(expr, cases[:middle], node)
    return Split(expr, bound, below, above)
