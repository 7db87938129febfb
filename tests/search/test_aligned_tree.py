from __future__ import annotations

import numpy as np
from gpu_surfaces import square
from search_surfaces import dense

from tilewright.runtime.program.dispatch import Leaf, Split, select
from tilewright.runtime.shape import Expr
from tilewright.search.search_strategy.aligned_tree import aligned_tree
from tilewright.search.search_strategy.decision_tree import Choices

SHAPES = tuple((("d0", m), ("d1", n)) for m in (8, 64) for n in (61, 62, 63, 64, 128))
LEAVES = (Leaf(0), Leaf(1))


def choices(wide: float) -> Choices:
    """Kernel 0 takes `wide` seconds where d1 is whole vectors and cannot run elsewhere; kernel 1 takes 1 anywhere."""
    whole = np.array([dict(s)["d1"] % 4 == 0 for s in SHAPES])
    return Choices(SHAPES, np.array([np.where(whole, wide, np.inf), np.ones(len(SHAPES))]), np.ones(len(SHAPES)), LEAVES)


def test_a_kernel_for_whole_vectors_is_taken_at_those_and_only_those() -> None:
    root = aligned_tree(square(), choices(0.5), [Expr.dim("d0"), Expr.dim("d1")], 0.05)
    assert isinstance(root, Split) and "mod(d1, 4)" in root.expr
    assert all(select(root, dict(s)).kernel == (0 if dict(s)["d1"] % 4 == 0 else 1) for s in SHAPES)
    assert select(root, {"d0": 7, "d1": 4}).kernel == 0 and select(root, {"d0": 7, "d1": 5}).kernel == 1


def test_one_that_is_slow_there_is_not_taken() -> None:
    assert aligned_tree(square(), choices(2.0), [Expr.dim("d1")], 0.05) == Leaf(1)


def test_kernels_that_serve_every_shape_need_no_split() -> None:
    shapes = tuple((("d0", m),) for m in (1, 2, 300))
    every = Choices(shapes, np.array([[1.0, 1.0, 3.0], [2.0, 2.0, 1.0]]), np.ones(3), LEAVES)
    root = aligned_tree(dense(), every, [Expr.dim("d0")], 0.05)
    assert isinstance(root, Split) and root.expr == "d0"
