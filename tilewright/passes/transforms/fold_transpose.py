"""fold-transpose: transposed operands and results are read and written through indexing maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.data_movement import fold_movements, movement
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import (
    compose,
    defined_by,
    erase_unused,
    inits,
    inputs,
    is_rewritable,
    iterator_kinds,
    main_of,
    rebuild,
    use_count,
)
from tilewright.passes.mlir import ir, maps_of, owner, position, replace_all_uses, walk


@dataclass(frozen=True)
class FoldTranspose(Pass):
    """Operands of generics and named contractions, and the result of one whose only use is a transpose and whose
    accumulator starts as an empty or a fill.

    results: also fold transposes of results.
    """

    name: ClassVar[str] = "fold-transpose"
    results: bool = True

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            fold_movements(fn, lambda access: access.is_permutation)
            erase_unused(fn)
            if self.results:
                views = Reshaper(fn)
                for op in walk(fn):
                    if op.regions and op.regions[0].blocks:
                        _fold_result(op, views)
                erase_unused(fn)


def _fold_result(op: ir.Operation, views: Reshaper) -> None:
    """`op` is the transpose; its producer writes in the transposed order instead."""
    access = movement(op)
    producer = owner(op.operands[0]) if access is not None else None
    if access is None or not access.is_permutation or producer is None or not is_rewritable(producer):
        return
    start = inits(producer)[0] if len(producer.results) == 1 else None
    if start is None or use_count(producer.results[0]) != 1 or not producer.regions[0].blocks:
        return
    if defined_by(start, "tensor.empty", "linalg.fill") is None:
        return
    order = [position(e) for e in access.results]  # result axis of each source axis
    back = ir.AffineMap.get(access.n_dims, 0, [ir.AffineExpr.get_dim(order.index(a)) for a in range(len(order))])
    maps = maps_of(producer)
    with ir.InsertionPoint(producer), producer.location:
        dims = views.shapes.dims(op.results[0])
        new_start = views.reshape(start, dims)
        new = rebuild(
            producer, inputs(producer), [new_start], [*maps[:-1], compose(back, maps[-1])], iterator_kinds(producer)
        )
        with ir.InsertionPoint(op):
            replace_all_uses(op.results[0], views.as_type(new.results[0], op.results[0].type))
