"""Conditions on the dims that must hold at run time: open equations, the model's asserts, and bounds of all it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.compiler.dims.conditions import Conditions
from tilewright.compiler.dims.dim_equations import Equation
from tilewright.compiler.dims.op_location import where
from tilewright.compiler.dims.read_bounds import bound_reads
from tilewright.passes.analysis.assert_facts import assert_facts
from tilewright.passes.analysis.control_flow import carried_counters, where_run
from tilewright.passes.linalg.symbolic import SymbolicShapes, mixed
from tilewright.passes.mlir import ir, walk
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr


def model_checks(fn: ir.Operation, open_equations: Sequence[Equation]) -> tuple[Check, ...]:
    """All conditions that are not true for every shape of the range.

    Removes the function's cf.assert ops, and keeps indices that depend on data inside their tensors.

    Raises:
        IngestError: a condition holds for no shape of the range, or an assert depends on data.
    """
    shapes = SymbolicShapes(fn)
    counters = [c for op in walk(fn) if op.name == "scf.while" for c in carried_counters(op, shapes)]
    conditions = Conditions(shapes.ranges, counters)
    for equation in open_equations:
        difference = equation.left - equation.right
        conditions.note(
            difference.maximum(-difference), f"{equation.reason} needs {equation.left} = {equation.right}"
        )
    for fact in assert_facts(fn, shapes):
        at = f'the assert "{fact.message}" at {where(fact.op)}'
        if fact.violation is None and fact.op.parent.name != "func.func":
            fact.op.erase()  # an assert on single elements, such as an embedding's index bound
            continue
        if fact.violation is None:
            raise IngestError(
                f"{at} depends on data, not on shapes: remove it from the model, or return its condition as a result"
            )
        with conditions.inside(where_run(fact.op, shapes)):
            conditions.note(fact.violation, f"{at} does not hold")
        fact.op.erase()
    ops = walk(fn)
    for op in ops:
        if op.name in ("tensor.extract_slice", "tensor.insert_slice"):
            with conditions.inside(where_run(op, shapes)):
                for excess, message in _slice_bounds(op, shapes):
                    conditions.note(excess, message)
    bound_reads(ops, shapes, conditions)
    return conditions.checks()


def _slice_bounds(op: ir.Operation, shapes: SymbolicShapes) -> Iterator[tuple[Expr, str]]:
    first = 1 if op.name == "tensor.extract_slice" else 2
    whole = shapes.dims(op.operands[first - 1])
    parts = [mixed(op, n, first + i) for i, n in enumerate(("static_offsets", "static_sizes", "static_strides"))]
    for axis, (extent, *mix) in enumerate(zip(whole, *parts, strict=True)):
        values = [Expr.of(m) if isinstance(m, int) else shapes.expr(m) for m in mix]
        if any(v is None for v in values):
            raise IngestError(f"{op.name} at {where(op)} takes a slice whose place depends on data: use a gather")
        offset, size, stride = (v for v in values if v is not None)
        beyond = offset + (size - 1) * stride + 1 - extent
        for excess in (beyond, -offset):
            yield excess, f"{op.name} at {where(op)} leaves its operand along axis {axis} of extent {extent}"
