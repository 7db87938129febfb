from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.program.dispatch import Leaf, Node, Split, leaves, select
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.search.search_strategy.decision_tree import Choices, dispatch_tree, guarded

A, B = Expr.dim("a"), Expr.dim("b")


def reached(node: Node, dims: dict[str, int]) -> list[Leaf]:
    """Every leaf whose conditions hold: exactly one in a tree that is total and disjoint."""
    if isinstance(node, Leaf):
        return [node]
    low = Expr.parse(node.expr).evaluate(dims) <= node.bound
    return [leaf for side, holds in ((node.below, low), (node.above, not low)) if holds for leaf in reached(side, dims)]


def choices(seed: int, variants: int, shapes: list[tuple[int, int]]) -> Choices:
    times = 1 + np.random.default_rng(seed).random((variants, len(shapes)))
    named = tuple((("a", a), ("b", b)) for a, b in shapes)
    return Choices(named, times, np.ones(len(shapes)), tuple(Leaf(i) for i in range(variants)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5),
       st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=25, unique=True))
def test_every_shape_reaches_exactly_one_leaf(seed: int, variants: int, shapes: list[tuple[int, int]]) -> None:
    tree = dispatch_tree(choices(seed, variants, shapes), [A, B, A * B], 0.05)
    assert all(0 <= leaf.kernel < variants for leaf in leaves(tree))
    for a in range(0, 65, 7):
        for b in range(0, 65, 7):
            dims = {"a": a, "b": b}
            found = reached(tree, dims)
            assert len(found) == 1
            assert select(tree, dims) == found[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12))
def test_intervals_are_the_cheapest_of_all_assignments(seed: int, variants: int, count: int) -> None:
    """With a price per interval: compared with the Viterbi recursion over all assignments written out."""
    count = min(count, 6)
    times = 1 + np.random.default_rng(seed).random((variants, count))
    shapes = tuple((("a", 3 * i + 1),) for i in range(count))
    given_ = Choices(shapes, times, np.ones(count), tuple(map(Leaf, range(variants))))
    tree = dispatch_tree(given_, [A], 10.0)
    price = given_.price(10.0)

    def cost(chosen: tuple[int, ...]) -> float:
        cuts = sum(x != y for x, y in pairwise(chosen))
        return float(sum(price[k, i] for i, k in enumerate(chosen)) + 0.002 * (1 + cuts))

    mine = tuple(select(tree, {"a": 3 * i + 1}).kernel for i in range(count))
    assert cost(mine) <= min(map(cost, product(range(variants), repeat=count))) + 1e-9


def test_a_plain_boundary_is_found_between_the_points() -> None:
    times = np.array([[1.0, 1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 2.0, 1.0, 1.0]])
    shapes = tuple((("a", v),) for v in (1, 4, 8, 16, 32))
    tree = dispatch_tree(Choices(shapes, times, np.ones(5), (Leaf(0), Leaf(1, 1))), [A, Expr.of(7)], 0.05)
    assert tree == Split("a", 12, Leaf(0), Leaf(1, 1))


def test_an_illegal_variant_is_never_chosen_at_its_points() -> None:
    times = np.array([[1.0, np.inf], [5.0, 5.0]])
    tree = dispatch_tree(Choices(((("a", 1),), (("a", 2),)), times, np.ones(2), (Leaf(0), Leaf(1))), [A], 0.05)
    assert select(tree, {"a": 1}) == Leaf(0) and select(tree, {"a": 2}) == Leaf(1)


@given(st.integers(0, 300), st.integers(0, 300))
def test_guards_hold_wherever_their_kernel_is_reached(a: int, b: int) -> None:
    kernels = [MicroKernel("x", "w", "f", "c", (), ("1", "1", "1"), guards=("max(0, a - 128)", "mod(b, 4)")),
               MicroKernel("y", "w", "f", "d", (), ("1", "1", "1"))]
    tree = guarded(Split("a", 200, Leaf(0), Leaf(1)), kernels, Leaf(1))
    dims = {"a": a, "b": b}
    assert kernels[select(tree, dims).kernel].legal(dims)
    assert select(tree, dims).kernel == (0 if a <= 128 and b % 4 == 0 else 1)
