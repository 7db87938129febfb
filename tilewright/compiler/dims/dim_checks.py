"""Conditions on the dims that must hold at run time: the model's asserts, its slices' bounds and open equations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.compiler.dims.dim_equations import Equation
from tilewright.compiler.dims.op_location import where
from tilewright.passes.analysis.assert_facts import assert_facts
from tilewright.passes.linalg.symbolic import SymbolicShapes, mixed
from tilewright.passes.mlir import ir, walk
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.program import Check
from tilewright.runtime.shape import Expr, ShapeRange


def model_checks(fn: ir.Operation, open_equations: Sequence[Equation]) -> tuple[Check, ...]:
    """All conditions that are not true for every shape of the range; removes the function's cf.assert ops.

    Raises:
        IngestError: a condition holds for no shape of the range, or an assert depends on data.
    """
    shapes = SymbolicShapes(fn)
    found: dict[str, str] = {}
    for equation in open_equations:
        difference = equation.left - equation.right
        _note(
            found,
            difference.maximum(-difference),
            f"{equation.reason} needs {equation.left} = {equation.right}",
            shapes.ranges,
        )
    for violation, message in _slice_bounds(fn, shapes):
        _note(found, violation, message, shapes.ranges)
    for fact in assert_facts(fn, shapes):
        at = f'the assert "{fact.message}" at {where(fact.op)}'
        if fact.violation is None and fact.op.parent.name != "func.func":
            fact.op.erase()  # an assert on single elements, such as an embedding's index bound
            continue
        if fact.violation is None:
            raise IngestError(
                f"{at} depends on data, not on shapes: remove it from the model, or return its condition as a result"
            )
        _note(found, fact.violation, f"{at} does not hold", shapes.ranges)
        fact.op.erase()
    return tuple(Check(expr, message) for expr, message in found.items())


def _note(found: dict[str, str], violation: Expr, message: str, ranges: ShapeRange) -> None:
    """Record a condition (`violation` is 0 where it holds and positive elsewhere) unless it always holds."""
    scaled = violation.substitute({n: Expr.dim(n) * d.multiple_of for n, d in ranges.dims if d.multiple_of > 1})
    divided = {n: (d.lo / d.multiple_of, d.hi / d.multiple_of) for n, d in ranges.dims}
    lo, hi = scaled.bounds(divided)
    if hi <= 0:
        return
    if lo > 0:
        raise IngestError(f"{message} for any shape of the range ({', '.join(f'{n} in {d}' for n, d in ranges.dims)})")
    found.setdefault(str(violation), message)


def _slice_bounds(fn: ir.Operation, shapes: SymbolicShapes) -> Iterator[tuple[Expr, str]]:
    for op in walk(fn):
        if op.name not in ("tensor.extract_slice", "tensor.insert_slice"):
            continue
        first = 1 if op.name == "tensor.extract_slice" else 2
        whole = shapes.dims(op.operands[first - 1])
        parts = [mixed(op, n, first + i) for i, n in enumerate(("static_offsets", "static_sizes", "static_strides"))]
        for axis, (extent, *mix) in enumerate(zip(whole, *parts, strict=True)):
            values = [Expr.of(m) if isinstance(m, int) else shapes.expr(m) for m in mix]
            if any(v is None for v in values):
                raise IngestError(f"{op.name} at {where(op)} takes a slice whose place depends on data: use a gather")
            offset, size, stride = (v for v in values if v is not None)
            beyond = offset + (size - 1) * stride + 1 - extent
            yield beyond.maximum(0), f"{op.name} at {where(op)} leaves its operand along axis {axis} of extent {extent}"
