"""Symbolic shapes: every index value as an Expr, every tensor axis as an Expr, over the named dims of a function.

Dims come from the argument attribute `tw.dims = ["B", "S", 768]` (one entry per axis; a scalar index or integer argument
has one entry) and their ranges from the function attribute `tw.ranges = {B = [lo, hi, multiple_of], ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.passes.mlir import ir, owner, position
from tilewright.runtime.shape import Dim, Expr, ShapeRange

DIMS, RANGES = "tw.dims", "tw.ranges"
UNSIGNED = "tw.unsigned"  # unit attribute of an argument or result whose integers have no sign outside the function
CONSTANT = "tw.constant"  # unit attribute of an argument that is bound at compile time
PREDICATE = "tw.predicate"  # on functions whose kernels go by a byte
IN_PLACE = "tw.in_place"  # on functions whose results may lie where tensors do that they read element by element
SEGMENTS = "tw.segments"  # on functions whose kernels serve all sequences of a batch: what differs from one to the next
WHOLE_TILES = "tw.whole_tiles"  # on functions whose kernels have code of their own for tiles that no edge cuts
COUNTERS = "tw.counters"  # of an scf.while: the dim that each carried value is inside the loop, "" where it is none
MAY_BE_EMPTY = "tw.may_be_empty"  # of a tensor.extract: axes of its tensor that may have no element; it then gives zero
_IDENTITY = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_BINARY = {
    "arith.addi": Expr.__add__,
    "arith.subi": Expr.__sub__,
    "arith.muli": Expr.__mul__,
    "arith.divsi": Expr.__floordiv__,
    "arith.divui": Expr.__floordiv__,
    "arith.floordivsi": Expr.__floordiv__,
    "arith.ceildivsi": Expr.ceildiv,
    "arith.ceildivui": Expr.ceildiv,
    "arith.remsi": Expr.__mod__,
    "arith.remui": Expr.__mod__,
    "arith.maxsi": Expr.maximum,
    "arith.maxui": Expr.maximum,
    "arith.minsi": Expr.minimum,
    "arith.minui": Expr.minimum,
}
DIVISIONS = tuple(name for name in _BINARY if "div" in name or "rem" in name)
_SIGNED_DIVISION = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")
_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def integer(attribute: ir.Attribute) -> int:
    return int(ir.IntegerAttr(attribute).value)


def read_dims(attribute: ir.Attribute) -> tuple[Expr, ...]:
    """`["B", 768, "B*S"]` as Exprs."""
    return tuple(Expr.parse(ir.StringAttr(a).value) if isinstance(a, ir.StringAttr) else Expr.of(integer(a))
                 for a in ir.ArrayAttr(attribute))


def write_dims(dims: Sequence[Expr | int]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.IntegerAttr.get(i64, c) if (c := Expr.of(d).constant) is not None
                             else ir.StringAttr.get(str(d)) for d in dims])


def read_ranges(fn: ir.Operation) -> ShapeRange:
    """The function's `tw.ranges`; empty when it has none."""
    if RANGES not in fn.attributes:
        return ShapeRange(())
    found = []
    for named in ir.DictAttr(fn.attributes[RANGES]):
        lo, hi, multiple = (integer(a) for a in ir.ArrayAttr(named.attr))
        found.append((named.name, Dim(lo, hi, multiple)))
    return ShapeRange(tuple(found))


def write_ranges(ranges: ShapeRange) -> ir.DictAttr:
    return ir.DictAttr.get({n: write_dims([d.lo, d.hi, d.multiple_of]) for n, d in ranges.dims})


def argument_attributes(fn: ir.Operation) -> list[dict[str, ir.Attribute]]:
    count = len(fn.regions[0].blocks[0].arguments)
    if "arg_attrs" not in fn.attributes:
        return [{} for _ in range(count)]
    return [{n.name: n.attr for n in ir.DictAttr(a)} for a in ir.ArrayAttr(fn.attributes["arg_attrs"])]


def result_attributes(fn: ir.Operation) -> list[dict[str, ir.Attribute]]:
    if "res_attrs" not in fn.attributes:
        return [{} for _ in ir.FunctionType(ir.TypeAttr(fn.attributes["function_type"]).value).results]
    return [{n.name: n.attr for n in ir.DictAttr(a)} for a in ir.ArrayAttr(fn.attributes["res_attrs"])]


_PARTLY = ("tensor.collapse_shape", "tensor.pad")  # whose extents follow from those of an operand


def _extents_from(value: ir.Value) -> ir.Value | None:
    """The operand that has the extents of a value, or decides some of them; None where no one does, or its type says them."""
    op, t = owner(value), value.type
    if op is None or (isinstance(t, ir.RankedTensorType) and t.has_static_shape):
        return None
    if op.name.startswith("linalg.") or op.name == "scf.forall":
        results = list(op.results)
        return op.operands[len(op.operands) - len(results) + results.index(value)]
    if op.name in ("tensor.insert_slice", "tensor.insert"):
        return op.operands[1]
    return op.operands[0] if op.name == "tensor.cast" or op.name in _PARTLY else None


class SymbolicShapes:
    """Lazy analysis of one function; build a new one, which costs next to nothing, after the IR changed."""

    def __init__(self, fn: ir.Operation) -> None:
        self.fn = fn
        self.ranges = read_ranges(fn)
        self._entry = fn.regions[0].blocks[0]
        self._arguments = ir.ArrayAttr(fn.attributes["arg_attrs"]) if "arg_attrs" in fn.attributes else None
        self._dims: dict[ir.Value, tuple[Expr, ...]] = {}
        self._exprs: dict[ir.Value, Expr | None] = {}

    def _declared(self, value: ir.Value) -> tuple[Expr, ...] | None:
        """What `tw.dims` says of an argument of the function; None for any other value."""
        if self._arguments is None or not isinstance(value.owner, ir.Block) or value.owner != self._entry:
            return None
        named = ir.DictAttr(self._arguments[ir.BlockArgument(value).arg_number])
        return read_dims(named[DIMS]) if DIMS in named else None

    def expr(self, value: ir.Value) -> Expr | None:
        """An index or integer value over the dims; None when it is not an expression of them."""
        if value not in self._exprs:
            self._exprs[value] = self._expr(value)
        return self._exprs[value]

    def _expr(self, value: ir.Value) -> Expr | None:
        op = owner(value)
        if op is None:
            declared = None if isinstance(value.type, ir.RankedTensorType) else self._declared(value)
            return self._counter(value) if declared is None else declared[0]
        name = op.name
        if name == "arith.constant":
            attribute = op.attributes["value"]
            return Expr.of(integer(attribute)) if isinstance(attribute, ir.IntegerAttr) else None
        if name == "tensor.dim":
            axis = self.expr(op.operands[1])
            return None if axis is None or axis.constant is None else self.dims(op.operands[0])[axis.constant]
        if name in _IDENTITY:
            if str(op.operands[0].type) == "i1":
                known = self.truth(op.operands[0])
                return None if known is None else Expr.of(int(known))
            return self.expr(op.operands[0])
        if name == "arith.select":
            known = self.truth(op.operands[0])
            if known is not None:
                return self.expr(op.operands[1 if known else 2])
            a, b = self.expr(op.operands[1]), self.expr(op.operands[2])
            return a if a is not None and a == b else None
        if name in _BINARY:
            a, b = self.expr(op.operands[0]), self.expr(op.operands[1])
            if a is None or b is None:
                return None
            if name in DIVISIONS and b == Expr.of(0):
                return b  # as define-arithmetic has it
            if name in _SIGNED_DIVISION and (self.bounds(a)[0] < 0 or self.bounds(b)[0] < 0):
                return None  # truncating division rounds unlike Expr's floor
            if name.endswith("ui") and (self.bounds(a)[0] < 0 or self.bounds(b)[0] < 0):
                return None  # a large number, without its sign
            return _BINARY[name](a, b)
        if name in ("affine.apply", "affine.min", "affine.max"):
            return self._affine(op)
        return None

    def _counter(self, value: ir.Value) -> Expr | None:
        """The dim that an argument of a loop's block counts; None for any other."""
        loop = value.owner.owner
        if loop.name != "scf.while" or COUNTERS not in loop.attributes:
            return None
        name = ir.StringAttr(loop.attributes[COUNTERS][ir.BlockArgument(value).arg_number]).value
        return Expr.dim(name) if name else None

    def _affine(self, op: ir.Operation) -> Expr | None:
        m = ir.AffineMapAttr(op.attributes["map"]).value
        operands = [self.expr(v) for v in op.operands]
        if any(e is None for e in operands):
            return None
        known = [e for e in operands if e is not None]
        results = [evaluate_affine(e, known[: m.n_dims], known[m.n_dims :]) for e in m.results]
        total = results[0]
        for r in results[1:]:
            total = total.minimum(r) if op.name == "affine.min" else total.maximum(r)
        return total

    def bounds(self, expr: Expr) -> tuple[float, float]:
        return expr.bounds(self.ranges.bounds())

    def truth(self, value: ir.Value) -> bool | None:
        """A boolean value that is the same for every shape of the range; None when it is not known to be."""
        op = owner(value)
        if op is None:
            return None
        if op.name == "arith.constant":
            return bool(integer(op.attributes["value"]))
        if op.name == "arith.cmpi":
            a, b = self.expr(op.operands[0]), self.expr(op.operands[1])
            if a is None or b is None:
                return None
            return self.compare(_PREDICATES[integer(op.attributes["predicate"])], a, b)
        if op.name in ("arith.andi", "arith.ori"):
            known = [self.truth(v) for v in op.operands]
            decisive: bool = op.name == "arith.ori"
            if decisive in known:
                return decisive
            return None if None in known else not decisive
        return None

    def compare(self, predicate: str, a: Expr, b: Expr) -> bool | None:
        """`a predicate b` over the whole range, by interval bounds of the difference."""
        lo, hi = self.bounds(a - b)
        kind = predicate.lstrip("su") if predicate not in ("eq", "ne") else predicate
        if predicate[0] == "u" and (self.bounds(a)[0] < 0 or self.bounds(b)[0] < 0):
            return None
        if kind in ("eq", "ne"):
            same = True if lo == hi == 0 else False if lo > 0 or hi < 0 else None
            return same if kind == "eq" or same is None else not same
        always = {"lt": hi < 0, "le": hi <= 0, "gt": lo > 0, "ge": lo >= 0}[kind]
        never = {"lt": lo >= 0, "le": lo > 0, "gt": hi <= 0, "ge": hi < 0}[kind]
        return True if always else False if never else None

    def dims(self, value: ir.Value) -> tuple[Expr, ...]:
        """Extents of a ranked tensor value; ValueError when one is not an expression of the dims."""
        pending = [value]
        while (at := pending[-1]) not in self._dims and (source := _extents_from(at)) is not None:
            pending.append(source)  # hundreds of parts written one after the other are deeper than Python's stack
        for at in reversed(pending):
            if at not in self._dims:
                self._dims[at] = self._tensor(at)
        return self._dims[value]

    def _tensor(self, value: ir.Value) -> tuple[Expr, ...]:
        if (declared := self._declared(value)) is not None:
            return declared
        t = ir.RankedTensorType(value.type)
        static = [None if t.is_dynamic_dim(i) else Expr.of(t.get_dim_size(i)) for i in range(t.rank)]
        if all(s is not None for s in static):
            return tuple(s for s in static if s is not None)
        op = owner(value)
        if op is None:
            source = carried_from(value)
            if source is None:
                raise ValueError(f"argument of type {t} carries no {DIMS}")
            return self.dims(source)
        found = self._dynamic(op, value, t)
        return tuple(s if s is not None else f for s, f in zip(static, found, strict=True))

    def _dynamic(self, op: ir.Operation, value: ir.Value, t: ir.RankedTensorType) -> Sequence[Expr]:
        name = op.name
        source = _extents_from(value)
        if source is not None and name not in _PARTLY:
            return self.dims(source)
        if name == "func.call":
            return self._call(op, list(op.results).index(value))
        if name in ("scf.if", "scf.while"):
            return self.dims(_given_by(op, list(op.results).index(value)))
        if name in ("tensor.empty", "tensor.generate"):
            return self._fill(t, op.operands)
        if name == "tensor.splat":
            return self._fill(t, list(op.operands)[1:])
        if name == "tensor.extract_slice":
            sizes = mixed(op, "static_sizes", 2)
            full = [s if isinstance(s, int) else self.required(s, op) for s in sizes]
            return [Expr.of(full[i]) for i in kept_axes(op)]
        if name == "tensor.expand_shape":
            return self._fill(t, list(op.operands)[1:])
        if name == "tensor.collapse_shape":
            source = self.dims(op.operands[0])
            out = []
            for group in reassociation(op):
                product = Expr.of(1)
                for axis in group:
                    product = product * source[axis]
                out.append(product)
            return out
        if name == "tensor.pad":
            low, high = mixed(op, "static_low", 1), mixed(op, "static_high", 2)
            sides = [[Expr.of(x) if isinstance(x, int) else self.required(x, op) for x in side] for side in (low, high)]
            return [a + s + b for s, a, b in zip(self.dims(op.operands[0]), *sides, strict=True)]
        if name == "tensor.concat":
            axis = integer(op.attributes["dim"])
            parts = [self.dims(v) for v in op.operands]
            total = list(parts[0])
            for p in parts[1:]:
                total[axis] = total[axis] + p[axis]
            return total
        if name == "tensor.reshape":
            shape = owner(op.operands[1])
            if shape is not None and shape.name == "tensor.from_elements":
                return [self.required(v, op) for v in shape.operands]
        raise ValueError(f"{name} at {op.location}: the extents of its result are not expressions of the dims")

    def _call(self, op: ir.Operation, result: int) -> list[Expr]:
        """Extents that the callee's `tw.dims` give a result, with the call's dims in place of the callee's."""
        callee = ir.SymbolTable(self.fn.parent)[ir.FlatSymbolRefAttr(op.attributes["callee"]).value].operation
        local: dict[str, Expr] = {}
        for operand, named in zip(op.operands, argument_attributes(callee), strict=True):
            if DIMS in named and not isinstance(operand.type, ir.RankedTensorType) \
                    and (name := read_dims(named[DIMS])[0].symbol) is not None:
                local[name] = self.required(operand, op)
        attributes = ir.DictAttr(ir.ArrayAttr(callee.attributes["res_attrs"])[result])
        return [dim.substitute(local) for dim in read_dims(attributes[DIMS])]

    def _fill(self, t: ir.RankedTensorType, dynamic: Sequence[ir.Value]) -> list[Expr]:
        sizes = iter(dynamic)
        out = []
        for i in range(t.rank):
            out.append(self.required(next(sizes)) if t.is_dynamic_dim(i) else Expr.of(t.get_dim_size(i)))
        return out

    def required(self, value: ir.Value, op: ir.Operation | None = None) -> Expr:
        """An index value over the dims; ValueError when it depends on data. op: what wants it."""
        found = self.expr(value)
        if found is None:
            at = owner(value) if op is None else op
            where = f"{at.name} at {at.location}" if at is not None else str(value)
            raise ValueError(f"{where}: a size depends on data, not on the shapes of the arguments")
        return found


def carried_from(value: ir.Value) -> ir.Value | None:
    """What a block argument of an scf.while holds the first time, with extents that it keeps; None for any other argument."""
    block = value.owner
    loop, number = block.owner, ir.BlockArgument(value).arg_number
    if loop.name != "scf.while":
        return None
    return loop.operands[number] if block == loop.regions[0].blocks[0] else _given_by(loop, number)


def _given_by(op: ir.Operation, number: int) -> ir.Value:
    """The value of the terminator of the first block that a result of scf.if or scf.while is."""
    last = list(op.regions[0].blocks[0].operations)[-1].operation
    return last.operands[number + (op.name == "scf.while")]


def evaluate_affine(e: ir.AffineExpr, dims: Sequence[Expr], symbols: Sequence[Expr] = ()) -> Expr:
    """An affine expression over Exprs."""
    at: int | None = position(e)
    if at is not None:
        return dims[at]
    if isinstance(e, ir.AffineSymbolExpr):
        return symbols[int(ir.AffineSymbolExpr(e).position)]
    if isinstance(e, ir.AffineConstantExpr):
        return Expr.of(ir.AffineConstantExpr(e).value)
    binary = ir.AffineBinaryExpr(e)
    a, b = evaluate_affine(binary.lhs, dims, symbols), evaluate_affine(binary.rhs, dims, symbols)
    apply: Mapping[type, Callable[[Expr, Expr], Expr]] = {ir.AffineAddExpr: Expr.__add__, ir.AffineMulExpr: Expr.__mul__,
                                    ir.AffineModExpr: Expr.__mod__, ir.AffineFloorDivExpr: Expr.__floordiv__,
                                    ir.AffineCeilDivExpr: Expr.ceildiv}
    for kind, function in apply.items():
        if isinstance(e, kind):
            return function(a, b)
    raise ValueError(f"affine expression {e}")


def mixed(op: ir.Operation, name: str, segment: int) -> list[int | ir.Value]:
    """Mixed static and dynamic sizes of a tensor op: ints and SSA values; `segment` counts operandSegmentSizes."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    start = sum(segments[:segment])
    dynamic = iter(list(op.operands)[start : start + segments[segment]])
    absent = ir.ShapedType.get_dynamic_size()
    return [next(dynamic) if s == absent else s for s in ir.DenseI64ArrayAttr(op.attributes[name])]


def kept_axes(op: ir.Operation) -> list[int]:
    """Source axes that survive in the result of a (possibly rank-reducing) tensor.extract_slice."""
    return _axes_of(mixed(op, "static_sizes", 2), ir.RankedTensorType(op.results[0].type))


def inserted_axes(op: ir.Operation) -> list[int]:
    """Axes of the tensor that a tensor.insert_slice writes to, one for each axis of the (possibly rank-reduced) part."""
    return _axes_of(mixed(op, "static_sizes", 3), ir.RankedTensorType(op.operands[0].type))


def _axes_of(sizes: Sequence[int | ir.Value], result: ir.RankedTensorType) -> list[int]:
    drop = len(sizes) - result.rank
    kept: list[int] = []
    for axis, size in enumerate(sizes):
        later = len(kept)
        fits = later < result.rank and (result.is_dynamic_dim(later) if not isinstance(size, int)
                                        else not result.is_dynamic_dim(later) and result.get_dim_size(later) == size)
        if drop and size == 1 and not (fits and len(sizes) - axis <= result.rank - later):
            drop -= 1
            continue
        kept.append(axis)
    return kept


def reassociation(op: ir.Operation) -> list[list[int]]:
    """Groups of axes of tensor.expand_shape or tensor.collapse_shape."""
    return [[integer(i) for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])]
