"""Decision tree: from the times of a few kernels at the evaluation points to a dispatch tree that is total and disjoint.

A tree over expressions of the local dims (one expression: merged intervals by dynamic programming; several: recursive splits).
Its impurity is the weighted regret against the best of each point. A kernel with guards is only reached where they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tilewright.runtime.program.dispatch import Leaf, Node, Split, within
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.search.space.array_types import Floats, Ints
from tilewright.search.space.shapes import Dims

_LEAF = 0.002  # regret that a further leaf must save
_EXCESS = 50.0  # price of regret beyond what is allowed: a leaf is no reason to exceed it
_DEEPEST = 7


@dataclass(frozen=True)
class Choices:
    """times: [variant, point], inf where illegal; leaf: what each variant dispatches to."""

    shapes: tuple[Dims, ...]
    times: Floats
    weights: Floats
    leaves: tuple[Leaf, ...]

    def price(self, max_regret: float) -> Floats:
        """[variant, point]: weighted regret; a large finite number where illegal."""
        regret = self.times / self.times.min(axis=0) - 1
        regret = np.where(np.isfinite(regret), regret, 1e6)
        return np.asarray((regret + _EXCESS * np.maximum(regret - max_regret, 0)) * self.weights / self.weights.sum())


def dispatch_tree(choices: Choices, expressions: Sequence[Expr], max_regret: float) -> Node:
    """A tree whose leaves are those of the variants.

    Args:
        expressions: what may be compared with a bound; those without symbols are left out.
    """
    texts = list(dict.fromkeys(str(e) for e in expressions if e.symbols))
    values = np.array([[Expr.parse(t).evaluate(dict(s)) for s in choices.shapes] for t in texts], np.int64)
    values = values.reshape(len(texts), len(choices.shapes))
    price = choices.price(max_regret)
    along = _line(values)
    if along is not None:
        return _intervals(texts[along], values[along], price, choices.leaves)
    return simplify(_split(texts, values, price, choices.leaves, np.arange(len(choices.shapes)), 0))


def guarded(node: Node, kernels: Sequence[MicroKernel], fallback: Leaf) -> Node:
    """The tree with every kernel's guards tested before it is reached; where one fails, `fallback`, which has none."""
    assert not kernels[fallback.kernel].guards, "the fallback kernel serves every shape"
    if isinstance(node, Split):
        return Split(node.expr, node.bound, guarded(node.below, kernels, fallback), guarded(node.above, kernels, fallback))
    found: Node = node
    for guard in kernels[node.kernel].guards:
        found = Split(guard, 0, found, fallback)
    return found


def grafted(node: Node, number: int, tree: Node, ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> Node:
    """The tree with `tree` in place of the leaves of a kernel number, but for what the splits above them rule out.

    ranges: of the dims, by those splits.
    """
    if isinstance(node, Leaf):
        return within(tree, ranges) if node.kernel == number else node
    low, high = ranges.get(node.expr, (0, math.inf))
    below = {**ranges, node.expr: (low, min(high, node.bound))}
    above = {**ranges, node.expr: (max(low, node.bound + 1), high)}
    sides = grafted(node.below, number, tree, below), grafted(node.above, number, tree, above)
    return simplify(Split(node.expr, node.bound, *sides))


def simplify(node: Node) -> Node:
    """Splits whose sides are equal are gone."""
    if isinstance(node, Leaf):
        return node
    below, above = simplify(node.below), simplify(node.above)
    return below if below == above else Split(node.expr, node.bound, below, above)


def _line(values: Ints) -> int | None:
    """An expression that orders all points, which no other one contradicts: the points lie on a line."""
    for e, row in enumerate(values):
        ordered = values[:, np.argsort(row, kind="stable")]
        if len(np.unique(row)) == len(np.unique(values, axis=1).T) and np.all(np.diff(ordered, axis=1) >= 0):
            return e
    return None


def _intervals(text: str, values: Ints, price: Floats, leaves: Sequence[Leaf]) -> Node:
    """The cheapest cut of a line into intervals, each with one variant and a fixed price: dynamic programming, exact."""
    order = np.unique(values)
    at = np.stack([price[:, values == v].sum(axis=1) for v in order], axis=1)
    variants, n = at.shape
    cost = at[:, 0] + _LEAF
    came = np.zeros((variants, n), np.int64)
    for i in range(1, n):
        jump = int(np.argmin(cost))
        stay = cost <= cost[jump] + _LEAF
        came[:, i] = np.where(stay, np.arange(variants), jump)
        cost = np.where(stay, cost, cost[jump] + _LEAF) + at[:, i]
    chosen = [int(np.argmin(cost))]
    for i in range(n - 1, 0, -1):
        chosen.append(int(came[chosen[-1], i]))
    chosen.reverse()
    cuts = [i for i in range(n - 1) if chosen[i] != chosen[i + 1]]

    def build(lo: int, hi: int) -> Node:
        """Intervals lo..hi."""
        if lo == hi:
            return leaves[chosen[(cuts[lo] if lo < len(cuts) else n - 1)]]
        middle = (lo + hi) // 2
        cut = cuts[middle]
        return Split(text, (int(order[cut]) + int(order[cut + 1])) // 2, build(lo, middle), build(middle + 1, hi))

    return simplify(build(0, len(cuts)))


def _split(texts: Sequence[str], values: Ints, price: Floats, leaves: Sequence[Leaf], points: Ints, depth: int) -> Node:
    """The best single variant, or the split that saves most."""
    here = price[:, points]
    single = here.sum(axis=1)
    chosen = int(np.argmin(single))
    floor = float(here.min(axis=0).sum())
    if depth == _DEEPEST or float(single[chosen]) - floor < _LEAF or not texts:
        return leaves[chosen]
    best = (float(single[chosen]), -1, 0)
    for e in range(len(texts)):
        order = points[np.argsort(values[e, points], kind="stable")]
        keys = values[e, order]
        running = np.cumsum(price[:, order], axis=1)
        cuts = np.flatnonzero(keys[:-1] != keys[1:])
        beyond = running[:, -1:] - running[:, cuts]
        for i, below, above in zip(cuts, running[:, cuts].min(axis=0), beyond.min(axis=0), strict=True):
            if below + above < best[0] - 1e-12:
                best = (float(below + above), e, (int(keys[i]) + int(keys[i + 1])) // 2)
    if best[1] < 0 or float(single[chosen]) - best[0] < _LEAF:
        return leaves[chosen]
    _, e, bound = best
    low = values[e, points] <= bound
    below_node = _split(texts, values, price, leaves, points[low], depth + 1)
    return Split(texts[e], bound, below_node, _split(texts, values, price, leaves, points[~low], depth + 1))
