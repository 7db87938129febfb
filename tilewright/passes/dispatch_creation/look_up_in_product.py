"""look-up-in-product: matrices that data name, such as weights of experts, are multiplied where they lie, not gathered first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import Contraction, is_contraction, used_loops
from tilewright.passes.analysis.named_rows import NamedRows
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.fuse import REGION, renumber_regions
from tilewright.passes.linalg.clone import clone, erase_dead, users
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.mlir import functions, ir, maps_of, operations, owner


@dataclass(frozen=True)
class LookUpInProduct(Pass):
    """A lookup by itself (analysis/named_rows.py) that only one product reads, and by whose places it differs in batch loops
    alone, joins the product's region: each matrix of a batch is read about once, so a copy of all would only be written and read
    again."""

    name: ClassVar[str] = "look-up-in-product"

    def run(self, module: ir.Module) -> None:
        for fn in list(functions(module)):
            if any(r.blocks for r in fn.regions):
                _look_up(fn)


def _look_up(fn: ir.Operation) -> None:
    block = fn.regions[0].blocks[0]
    regions: dict[int, list[ir.Operation]] = {}
    for op in operations(block):
        if REGION in op.attributes:
            regions.setdefault(integer(op.attributes[REGION]), []).append(op)
    alone = {ops[0] for ops in regions.values() if len(ops) == 1 and NamedRows.of(ops[0]) is not None}
    if not alone:
        return
    shapes, joined = SymbolicShapes(fn), False
    for number, ops in regions.items():
        products = [op for op in ops if is_contraction(op)]
        if len(products) == 1:
            joined |= _join(number, Contraction.of(products[0], shapes), alone)
    if joined:
        erase_dead(block)
        renumber_regions(block)


def _join(number: int, view: Contraction, alone: set[ir.Operation]) -> bool:
    """Has a product's region taken in what it looks up?"""
    found = False
    for which, value in enumerate(inputs(view.op)[:2]):
        op = owner(value)
        if op is None or op not in alone or users(value) != [view.op] or not _of_batch(view, which, op):
            continue
        with ir.InsertionPoint(view.op):
            made = clone(op, lambda v: v)
        made.attributes[REGION] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        view.op.operands[which] = made.results[0]
        found = True
    return found


def _of_batch(view: Contraction, which: int, lookup: ir.Operation) -> bool:
    """Do the places that a lookup names differ in batch loops of the product alone, and do its own axes move with no others?"""
    named = NamedRows.of(lookup)
    assert named is not None
    results: Sequence[ir.AffineExpr] = list(maps_of(view.op)[which].results)
    own = {a for a in named.axes if a is not None}
    loops = [used_loops(ir.AffineMap.get(view.maps[which].n_dims, 0, [e])) for e in results]
    batch = frozenset(view.batch)
    return all((of <= batch) if a not in own else not of & batch for a, of in enumerate(loops))
