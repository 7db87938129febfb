"""Reads and writes in bounds: what every indexing map and every tensor.extract asks of the extents of its tensor.

An index that loops and dims give is bounded here, before any pass changes a map: the bound is proven, or becomes a condition that
is checked at the call. An index that depends on data is kept on its axis: outside it reads the last element, and zero where there
is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.compiler.dims.conditions import Conditions
from tilewright.compiler.dims.loop_extremes import LoopBox
from tilewright.compiler.dims.op_location import where
from tilewright.passes.analysis.control_flow import CONTROL, where_run
from tilewright.passes.linalg.shape_values import ShapeValues
from tilewright.passes.linalg.structured import body, loop_extents
from tilewright.passes.linalg.symbolic import COUNTERS, DIVISIONS, MAY_BE_EMPTY, SymbolicShapes, evaluate_affine, integer
from tilewright.passes.mlir import arith, ir, maps_of, owner, tensor
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Expr

_LOOPS = ("linalg.yield", "linalg.index")
_MAKERS = ("tensor.empty", "tensor.generate", "tensor.splat", "tensor.pad", "tensor.extract_slice", "tensor.expand_shape",
           "tensor.reshape")  # fmt: skip # the extents of their results are not those of a tensor


def bound_reads(ops: Sequence[ir.Operation], shapes: SymbolicShapes, conditions: Conditions) -> None:
    """Note what the reads and writes of a function's ops need; keeps indices that depend on data on their axes, in place.

    Raises:
        IngestError: an operation leaves a tensor for every shape of the range.
    """
    spaces: dict[ir.Operation, _Space] = {}
    sizes = ShapeValues(shapes.fn)
    for op in ops:
        with conditions.inside(where_run(op, shapes)):
            name = op.name
            if name.startswith("linalg."):
                if name not in _LOOPS and len(op.regions):
                    _maps(op, shapes, conditions)
            elif name in _MAKERS:
                _sizes(op, shapes, conditions)
            elif name in DIVISIONS and op.parent.operation == shapes.fn:
                _division(op, shapes, conditions)
            elif name == "tensor.extract":
                parent = op.parent.operation
                if parent not in spaces:
                    spaces[parent] = _Space.of(parent, shapes, conditions)
                _extract(op, spaces[parent], conditions, sizes)


def _sizes(op: ir.Operation, shapes: SymbolicShapes, conditions: Conditions) -> None:
    for axis, extent in enumerate(shapes.dims(op.results[0])):
        if extent.constant is None and extent.symbol is None:
            conditions.note(-extent, f"{op.name} at {where(op)} makes a tensor of {extent} elements along axis {axis}")


def _division(op: ir.Operation, shapes: SymbolicShapes, conditions: Conditions) -> None:
    divisor = shapes.expr(op.operands[1])
    if divisor is not None and divisor.constant is None and shapes.expr(op.results[0]) is not None:
        conditions.note(1 - divisor, f"{op.name} at {where(op)} divides by {divisor}")


def _maps(op: ir.Operation, shapes: SymbolicShapes, conditions: Conditions) -> None:
    """The operands of a linalg op that are walked by more than its loops; whole axes are equations (dim_equations.py)."""
    found: _Space | None = None
    inputs = len(op.operands) - len(op.results)
    arguments = list(body(op).arguments)
    for number, (value, m) in enumerate(zip(op.operands, maps_of(op), strict=True)):
        if m.is_projected_permutation or (number < inputs and next(iter(arguments[number].uses), None) is None):
            continue
        found = _Space.of(op, shapes, conditions) if found is None else found
        verb = "reads" if number < inputs else "writes"
        for axis, (e, extent) in enumerate(zip(m.results, shapes.dims(value), strict=True)):
            if not isinstance(e, ir.AffineDimExpr):
                what = _Place(f"{op.name} at {where(op)} {verb}", f"of operand {number} along axis {axis}")
                found.require(evaluate_affine(e, found.symbols), extent, what, conditions)


def _extract(op: ir.Operation, space: _Space, conditions: Conditions, sizes: ShapeValues) -> None:
    source, *indices = list(op.operands)
    empty = []
    for axis, (index, extent) in enumerate(zip(indices, space.values.dims(source), strict=True)):
        what = _Place(f"{op.name} at {where(op)} reads", f"of its tensor along axis {axis}")
        known = [space.values.expr(v) for v in space.values.choices(index)]
        sure = len(known) == 1 and not _is_chosen(op)
        if not _is_beyond(op, known) and all(e is not None and space.require(e, extent, what, conditions, sure) for e in known):
            continue
        if space.box.extents or op.parent.name in CONTROL or _is_beyond(op, known):
            op.operands[1 + axis] = _kept(op, axis, extent, sizes)
            empty += [] if conditions.proves(1 - extent, space.running) else [axis]
    if empty:
        op.attributes[MAY_BE_EMPTY] = ir.DenseI64ArrayAttr.get(empty)


def _is_beyond(op: ir.Operation, indices: Sequence[Expr | None]) -> bool:
    """Does an element in the condition of a loop stand where a counter says, which is beyond its bound there at the end?"""
    counted: set[str] = set()
    inner, outer = op, op.parent.operation
    while outer.name != "func.func":
        if outer.name == "scf.while" and inner.block == outer.regions[0].blocks[0]:
            counted.update(ir.StringAttr(a).value for a in ir.ArrayAttr(outer.attributes[COUNTERS]))
        inner, outer = outer, outer.parent.operation
    return any(e is not None and e.symbols & counted for e in indices)


def _is_chosen(op: ir.Operation) -> bool:
    """Is the element one side of a selection, which may be for the places where it is none?"""
    return any(u.owner.name == "arith.select" for u in op.results[0].uses)


def _kept(op: ir.Operation, axis: int, extent: Expr, sizes: ShapeValues) -> ir.Value:
    """The index, or the last one of the axis where it lies outside."""
    number = (extent - 1).constant
    counted = number is None and not extent.symbols <= sizes.symbols()
    last = sizes.value(extent - 1) if number is None and not counted else None
    with ir.InsertionPoint(op), op.location:
        if counted:
            size = tensor.DimOp(op.operands[0], arith.constant(ir.IndexType.get(), axis)).result
            last = arith.subi(size, arith.constant(ir.IndexType.get(), 1))
        elif last is None:
            last = arith.constant(ir.IndexType.get(), number)
        return arith.minui(op.operands[1 + axis], last)


class _Place(NamedTuple):
    """What a message says before and after it names the element."""

    before: str
    after: str

    def at(self, index: Expr) -> str:
        return f"{self.before} element {index} {self.after}"


@dataclass(frozen=True)
class _Space:
    """The loops around a scalar: symbols in the order of the loops, what bounds them, and index values over them.

    runs: 1 where every loop runs, 0 where one is empty; None: all of them always run.
    """

    symbols: Sequence[Expr]
    box: LoopBox
    values: _LoopValues
    runs: Expr | None

    @property
    def running(self) -> list[Expr]:
        """Not positive where every loop runs."""
        return [] if self.runs is None else [1 - e for e in self.box.extents.values()]

    @staticmethod
    def of(op: ir.Operation, shapes: SymbolicShapes, conditions: Conditions) -> _Space:
        """Of a linalg op, a tensor.generate or a tensor.pad; no loops for a function, a branch or a loop of the model."""
        extents: Sequence[Expr] = ()
        numbers: dict[ir.Value, Expr] = {}
        names: list[Expr] = []
        if op != shapes.fn and op.name not in CONTROL:
            extents = _extents(op, shapes)
            names = [Expr.dim(f"%{d}") for d in range(len(extents))]
            if not op.name.startswith("linalg."):
                numbers = dict(zip(body(op).arguments, names, strict=True))
        box = LoopBox({str(n): e for n, e in zip(names, extents, strict=True)}, conditions.bounds)
        runs = Expr.of(1)
        for e in extents:
            least = e.bounds(conditions.bounds)[0]
            if least < 1:
                runs = runs * (e.minimum(1) if least >= 0 else e.minimum(1).maximum(0))
        return _Space(names, box, _LoopValues(shapes, names, numbers), None if runs == Expr.of(1) else runs)

    def require(self, index: Expr, extent: Expr, what: _Place, conditions: Conditions, sure: bool | None = None) -> bool:
        """Note that the index stays on its axis.

        Args:
            sure: None for an index that must be bounded. Else False comes back where no bound is proven, but for one that some
                iteration reaches for sure (`sure`), which is noted.
        """
        wanted = []
        for found, top in ((self.box.extreme(index, False), False), (self.box.extreme(index, True), True)):
            excess = None if found is None else found.value - extent + 1 if top else -found.value
            if excess is not None and conditions.proves(excess, self.running):
                continue
            if sure is not None and not (sure and found is not None and found.exact):
                return False
            if found is None or excess is None:
                raise IngestError(f"{what.at(index)}, a place that no expression of the dims bounds")
            plural = "s" if extent.constant != 1 else ""
            wanted.append((excess, f"{what.at(found.value)}, which has {extent} element{plural}"))
        for excess, message in wanted:
            conditions.note(excess, message, self.runs)
        return True


def _extents(op: ir.Operation, shapes: SymbolicShapes) -> Sequence[Expr]:
    if not op.name.startswith("linalg."):
        return shapes.dims(op.results[0])
    try:
        return loop_extents(op, shapes)
    except ValueError as error:
        raise IngestError(f"{error}; give an operand that the loop walks alone") from error


class _LoopValues(SymbolicShapes):
    """Index values inside a region, over the dims and the loops around it."""

    def __init__(self, shapes: SymbolicShapes, loops: Sequence[Expr], numbers: Mapping[ir.Value, Expr]) -> None:
        super().__init__(shapes.fn)
        self._dims = shapes._dims
        self._loops, self._exprs = loops, dict(numbers)

    def choices(self, value: ir.Value) -> list[ir.Value]:
        """The values that an index may have: both sides of a selection that the shapes decide at the call, or data."""
        op = owner(value)
        if op is None or self.expr(value) is not None or op.name not in ("arith.select", "arith.index_cast"):
            return [value]
        sides = list(op.operands)[1:] if op.name == "arith.select" else [op.operands[0]]
        return [v for side in sides for v in self.choices(side)]

    def _expr(self, value: ir.Value) -> Expr | None:
        op = owner(value)
        if op is not None and op.name == "linalg.index":
            return self._loops[integer(op.attributes["dim"])]
        if op is not None and _may_wrap(op):
            return None
        return super()._expr(value)


def _may_wrap(op: ir.Operation) -> bool:
    """Arithmetic in fewer than 32 bits: an index that leaves them is another number."""
    return any(isinstance(r.type, ir.IntegerType) and r.type.width < 32 for r in op.results)
