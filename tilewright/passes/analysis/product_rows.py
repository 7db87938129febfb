"""A product and work on the rows of its result, in one region: what a kernel that keeps these rows has to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import OUT, Contraction, is_contraction
from tilewright.passes.analysis.op_kinds import body_names
from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.linalg.clone import users
from tilewright.passes.linalg.structured import is_zero_tensor, iterator_kinds, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, position


@dataclass(frozen=True)
class ProductRows:
    """view: the product, rows by columns. program: the other operations, which read its result as they read an argument. kept:
    what they read of it, its result or that in a narrower type."""

    view: Contraction
    program: RowProgram
    kept: ir.Value

    @staticmethod
    def of(ops: Sequence[ir.Operation], results: Sequence[ir.Value], shapes: SymbolicShapes) -> ProductRows:
        """Of a region's operations and results. ValueError says why they are no such thing."""
        roots = [op for op in ops if is_contraction(op)]
        if len(roots) != 1:
            raise ValueError(f"wanted a region with one contraction, got {len(roots)}")
        [root], others = roots, [op for op in ops if op not in roots]
        view, where = Contraction.of(root, shapes), f"{root.name} at {root.location}"
        written = [position(e) for e in view.maps[OUT].results]
        if view.batch or len(view.m) != 1 or len(view.n) != 1 or written != [*view.m, *view.n]:
            raise ValueError(f"{where}: wanted rows of the first factor by columns of the second")
        if not is_zero_tensor(view.operand(OUT)):
            raise ValueError(f"{where}: its sums do not begin at zero")
        program = RowProgram(others, results, shapes)
        if program.parts or len(program.rows) != 1 or len(program.columns) != 1:
            raise ValueError(f"{where}: what reads its rows works on {len(program.rows)} axes of rows")
        place = [program.rows[0], program.columns[0]]
        if [program.frame[a] for a in place] != [view.extents[d] for d in (*view.m, *view.n)]:
            raise ValueError(f"{where}: what reads its result works on other rows")
        for op in others:
            for value, m in zip(op.operands, maps_of(op) if op in program.loops else (), strict=False):
                if uncast(value) != root.results[0]:
                    continue
                at = [position(e) for e in m.results]
                if None in at or [program.loops[op][d] for d in at if d is not None] != place:
                    raise ValueError(f"{op.name} at {op.location}: reads rows of the product as something else")
        return ProductRows(view, program, narrowed(root.results[0], results))

    @property
    def element(self) -> ir.Type:
        """Of the rows that are kept."""
        return ir.RankedTensorType(self.kept.type).element_type


def narrowed(product: ir.Value, results: Sequence[ir.Value]) -> ir.Value:
    """The result of a product in a narrower type where nothing else is read of it, else as it is. results: of its region."""
    readers = users(product)
    if len(readers) != 1 or product in results or readers[0].name != "linalg.generic":
        return product
    [reader] = readers
    plain = "reduction" not in iterator_kinds(reader) and len({str(m) for m in maps_of(reader)}) == 1
    return reader.results[0] if plain and body_names(reader) == ["arith.truncf", "linalg.yield"] else product
