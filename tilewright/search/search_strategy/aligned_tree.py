"""A dispatch tree for kernels of which some need extents that are whole vectors: one tree for those shapes, one for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.passes.spaces.gemm_operands import unaligned
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.dispatch import Node, Split
from tilewright.runtime.shape import Expr
from tilewright.search.search_strategy.decision_tree import Choices, dispatch_tree, simplify
from tilewright.search.space.array_types import Floats

_WIDEST = 16  # bytes of an access


def aligned_tree(workload: Workload, choices: Choices, expressions: Sequence[Expr], max_regret: float) -> Node:
    """As `dispatch_tree`, after a split where some variant serves only extents that are whole vectors."""
    left = unaligned(workload, _WIDEST // min(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)))
    over = np.array([left.evaluate(dict(s)) for s in choices.shapes])
    if not left.symbols or np.isfinite(choices.times).all() or over.all() or not over.any():
        return dispatch_tree(choices, expressions, max_regret)
    whole, rest = (dispatch_tree(_only(choices, which), expressions, max_regret) for which in (over == 0, over != 0))
    return simplify(Split(str(left), 0, whole, rest))


def _only(choices: Choices, which: np.ndarray) -> Choices:
    times: Floats = choices.times[:, which]
    return Choices(tuple(s for s, w in zip(choices.shapes, which, strict=True) if w), times, choices.weights[which],
                   choices.leaves)
