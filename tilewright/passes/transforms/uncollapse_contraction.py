"""uncollapse-contraction: a batch loop over collapsed axes ([B*12, S, 64]) becomes one loop per axis.

So the operands may be strided views, and no copy has to make them contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.base import Pass
from tilewright.passes.linalg.reshape import Reshaper, matching_groups
from tilewright.passes.linalg.split_loop import split_loop
from tilewright.passes.linalg.structured import defined_by, erase_unused, inputs, iterator_kinds, main_of
from tilewright.passes.linalg.symbolic import reassociation
from tilewright.passes.mlir import ir, maps_of, position, walk
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class UncollapseContraction(Pass):
    """A batch loop is a parallel one that both inputs run over; the result is collapsed back for its users."""

    name: ClassVar[str] = "uncollapse-contraction"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if sums_products(op) and len(inputs(op)) == 2:
                    for loop in reversed(range(len(iterator_kinds(op)))):
                        extents = _collapsed(op, loop, views)
                        if extents is not None:
                            op = split_loop(op, loop, extents, views)
            erase_unused(fn)


def _collapsed(op: ir.Operation, loop: int, views: Reshaper) -> list[Expr] | None:
    """The finest extents that a batch loop was collapsed from, when all inputs can be seen with them."""
    found: list[list[Expr]] = []
    for value, access in zip(inputs(op), maps_of(op), strict=False):
        axes = [a for a, e in enumerate(access.results) if position(e) == loop]
        if len(axes) != 1:
            return None
        collapse = defined_by(value, "tensor.collapse_shape")
        if collapse is not None:
            group = reassociation(collapse)[axes[0]]
            source = views.shapes.dims(collapse.operands[0])
            found.append([source[a] for a in group])
    if iterator_kinds(op)[loop] != "parallel" or not found:
        return None
    finest = max(found, key=len)
    refines = all(len(matching_groups(coarser, finest)) == len(coarser) for coarser in found)
    return finest if len(finest) > 1 and refines else None
