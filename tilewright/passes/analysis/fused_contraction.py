"""FusedContraction: a region of one contraction, with where the results of what is fused behind it lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import OUT, Contraction, is_contraction
from tilewright.passes.analysis.placement import Place, axis_name, place, steps_of
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, operations, position
from tilewright.runtime.shape import Expr

_FEW_OPS = 8  # arithmetic of an epilogue that is unrolled over the results of a register block


@dataclass(frozen=True)
class FusedContraction:
    """places: of each result, in coordinates of the contraction's own. heavy: the arithmetic after it is too much to unroll."""

    view: Contraction
    places: tuple[Place, ...]
    heavy: bool

    @staticmethod
    def of(ops: Sequence[ir.Operation], results: Sequence[ir.Value], shapes: SymbolicShapes) -> FusedContraction:
        """Of a region's operations and results. ValueError when it is no contraction with elementwise ops around it."""
        roots = [op for op in ops if is_contraction(op)]
        if len(roots) != 1:
            named = ", ".join(f"{op.name} at {op.location}" for op in roots) or "none"
            raise ValueError(f"wanted a region with one contraction, got {named}")
        view = Contraction.of(roots[0], shapes)
        after = list(ops[ops.index(roots[0]) + 1 :])
        places = place(shapes, roots[0].results[0], after, results)
        return FusedContraction(view, tuple(places), _heavy(after))

    def fast_loop(self, is_unit: Callable[[int], bool]) -> int | None:
        """The loop along the unit-stride axis of the first result; axes of one element are passed over."""
        return fast_loop(self.places[0], self.view.maps[OUT], self.view.extents, is_unit)


def fast_loop(first: Place, written: ir.AffineMap, extents: Sequence[Expr], is_unit: Callable[[int], bool]) -> int | None:
    """The loop of a root along the unit-stride axis of a result that lies at `first`; axes of one element are passed over.

    written, extents: the map of the root's own result, and of its loops.
    """
    axes = sorted(range(len(first)), key=lambda a: (is_unit(a), a), reverse=True)
    names = {axis_name(axis): position(e) for axis, e in enumerate(written.results)}
    loops = [names[symbol] for a in axes for symbol, _ in steps_of(first[a]) if symbol in names]
    found = [d for d in loops if d is not None]
    long = [d for d in found if extents[d] != Expr.of(1)]
    return next(iter(long or found), None)


def _heavy(ops: list[ir.Operation]) -> bool:
    names = [o.name for op in ops if len(op.regions) for o in operations(op.regions[0].blocks[0])]
    return any(n.startswith("math.") for n in names) or sum(n.startswith("arith.") for n in names) > _FEW_OPS
