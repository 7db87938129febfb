"""look-up-in-attention: keys and values that data name are read where they lie, not gathered first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.attention import Attention, AttentionError
from tilewright.passes.analysis.named_rows import SHOWN, NamedRows
from tilewright.passes.analysis.op_kinds import expensive
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.fuse import REGION, renumber_regions
from tilewright.passes.linalg.clone import clone, erase_dead, producers_first, users
from tilewright.passes.linalg.structured import inputs, iterator_kinds
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.mlir import functions, ir, operations, owner

Regions = Mapping[int, Sequence[ir.Operation]]


@dataclass(frozen=True)
class LookUpInAttention(Pass):
    """A lookup of rows by itself (analysis/named_rows.py) of which an attention of at most so many `queries` reads keys or
    values, and nobody else anything, joins the attention's region with the views between them: each row is read about once, so a
    copy of all of them would only be written and read again. So with a cache in pages, or one that beams share."""

    name: ClassVar[str] = "look-up-in-attention"
    queries: int = 4

    def run(self, module: ir.Module) -> None:
        for fn in list(functions(module)):
            if any(r.blocks for r in fn.regions):
                self._look_up(fn)

    def _look_up(self, fn: ir.Operation) -> None:
        block = fn.regions[0].blocks[0]
        regions: dict[int, list[ir.Operation]] = {}
        for op in operations(block):
            if REGION in op.attributes:
                regions.setdefault(integer(op.attributes[REGION]), []).append(op)
        lookups = [number for number, ops in regions.items() if _is_lookup(ops)]
        if not lookups:
            return
        shapes, joined = SymbolicShapes(fn), False
        for number, ops in regions.items():
            joined |= number not in lookups and self._join(number, ops, {n: regions[n] for n in lookups}, shapes)
        if joined:
            erase_dead(block)
            renumber_regions(block)

    def _join(self, number: int, ops: Sequence[ir.Operation], lookups: Regions, shapes: SymbolicShapes) -> bool:
        """Has a region of an attention taken in what it looks up?"""
        try:
            view = Attention.of(ops, shapes)
        except AttentionError:
            return False
        rows = view.row_count.constant
        if rows is None or not 0 < rows <= self.queries:
            return False
        found = False
        for contraction, which in ((view.scores, 1 - view.query), (view.mixed, 1 - view.weights)):
            chain = _views(contraction.operand(which))
            source = owner(chain[0].operands[0] if chain else contraction.operand(which))
            taken = next((made for made in lookups.values() if source in made), None)
            if taken is not None and _readers(taken) <= {*ops}:
                _copy([*taken, *chain], contraction.op, which, number)
                found = True
        return found


def _is_lookup(ops: Sequence[ir.Operation]) -> bool:
    """Are these a lookup of rows, perhaps behind the arithmetic of its places?"""
    *before, last = producers_first(ops, set(ops))
    return NamedRows.of(last) is not None and all(
        op.name == "linalg.generic" and "reduction" not in iterator_kinds(op) and not expensive(op) and len(op.results) == 1
        and users(op.results[0]) == [last] for op in before)


def _views(value: ir.Value) -> list[ir.Operation]:
    """The views through which a value is read, the first one first."""
    found: list[ir.Operation] = []
    while (op := owner(value)) is not None and op.name in SHOWN and REGION not in op.attributes:
        found.append(op)
        value = op.operands[0]
    return found[::-1]


def _readers(ops: Sequence[ir.Operation]) -> set[ir.Operation]:
    """Who reads what a lookup gives, through views that a region may take in."""
    found: set[ir.Operation] = set()
    todo = [r for op in ops for r in op.results]
    while todo:
        for user in users(todo.pop()):
            if user in ops:
                continue
            if user.name in SHOWN and REGION not in user.attributes:
                todo += list(user.results)
            else:
                found.add(user)
    return found


def _copy(chain: Sequence[ir.Operation], reader: ir.Operation, which: int, number: int) -> None:
    """What `reader` reads as its factor `which`, made once more in its region."""
    copies: dict[ir.Value, ir.Value] = {}
    value = inputs(reader)[which]
    with ir.InsertionPoint(reader):
        for op in chain:
            made = clone(op, lambda v: copies.get(v, v))
            made.attributes[REGION] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
            copies.update(zip(op.results, made.results, strict=True))
    reader.operands[which] = copies[value]
