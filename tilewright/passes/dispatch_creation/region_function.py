"""A dispatch region as a function of its own: tensors, then local dims, then scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.analysis.windows import ZEROS, windows_of, zeros_of
from tilewright.passes.linalg.builders import fill, generic, i64, renumber
from tilewright.passes.linalg.clone import captured, captured_inside, clone, producers_first, users
from tilewright.passes.linalg.collapse import Collapse, Groups, collapse, is_cheap, moves_along
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.strides import Views, collapsed_stride
from tilewright.passes.linalg.structured import inputs, iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import CONSTANT, DIMS, integer, mixed, write_dims
from tilewright.passes.mlir import arith, func, ir, maps_of, owner, position, tensor, walk
from tilewright.runtime.errors import PassError
from tilewright.runtime.shape import Expr

UNIT, PANEL = "tw.unit", "tw.panel"
_SCALAR = (ir.IndexType, ir.IntegerType)


@dataclass
class Signature:
    """What a region takes and gives: tensors of the caller, extents behind the local dims, scalars, results."""

    inputs: list[ir.Value] = field(default_factory=list)
    dims: list[Expr] = field(default_factory=list)
    scalars: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)

    def dim(self, expr: Expr) -> int:
        """Number of the local dim that stands for `expr`."""
        if expr not in self.dims:
            self.dims.append(expr)
        return self.dims.index(expr)

    def local(self, expr: Expr) -> Expr:
        return expr if expr.constant is not None else Expr.dim(f"d{self.dim(expr)}")


class RegionFunction:
    """Builds the function of one region at the top level of `module`, its axes collapsed where that is possible."""

    def __init__(self, ops: Sequence[ir.Operation], views: Views, constants: set[ir.Value]) -> None:
        members = set(ops)
        self.views, self.shapes, self.constants = views, views.shapes, constants
        self.signature = Signature()
        self.signature.outputs = [r for op in ops for r in op.results if any(u not in members for u in users(r))]
        self.ops = producers_first((v.owner.operation for v in self.signature.outputs), members)
        self.collapse: Collapse = collapse(self.ops, views)
        self._collect()

    def dims(self, value: ir.Value) -> list[Expr]:
        """Extents after collapsing, over the caller's dims."""
        return grouped(self.shapes.dims(value), self.collapse.of(value))

    def _collect(self) -> None:
        """Inputs, dims and scalars in the order of their first use."""
        signature = self.signature
        inside = {r for op in self.ops for r in op.results}
        seen: set[ir.Value] = set()

        def visit(value: ir.Value) -> None:
            if value in inside or value in seen:
                return
            seen.add(value)
            source = owner(value)
            if isinstance(value.type, ir.RankedTensorType):
                if not is_cheap(value):
                    signature.inputs.append(value)
                elif source is not None and source.name == "linalg.fill":
                    visit(source.operands[0])
            elif isinstance(value.type, _SCALAR) and self.shapes.expr(value) is not None:
                extents.append(value)
            elif source is None:
                signature.scalars.append(value)
            else:
                _require_scalar(source)
                for v in captured(source):
                    visit(v)

        extents: list[ir.Value] = []
        for op in self.ops:
            for value in captured(op):
                visit(value)
        for value in [*signature.inputs, *signature.outputs, *(r for op in self.ops for r in op.results)]:
            for extent in self.dims(value):
                signature.local(extent)
        for op in self.collapse.loops:
            for extent in self.loop_extents(op):
                signature.local(extent)
        for op in self.ops:
            for value in captured(op):
                walked = op.name == "linalg.generic" and value not in captured_inside(op)
                if isinstance(value.type, ir.RankedTensorType) and is_cheap(value) and not walked:
                    for extent in self.shapes.dims(value):
                        signature.local(extent)
        for value in extents:
            found = self.shapes.expr(value)
            if found is not None:
                signature.local(found)

    def loop_extents(self, op: ir.Operation) -> list[Expr]:
        """Extent of each loop of a collapsed generic."""
        return grouped(loop_extents(op, self.shapes), self.collapse.loops[op])

    def build(self, block: ir.Block, name: str) -> ir.Operation:
        signature = self.signature
        index = ir.IndexType.get()
        tensors = [tensor_type(self.dims(v), v.type.element_type) for v in signature.inputs]
        results = [tensor_type(self.dims(v), v.type.element_type) for v in signature.outputs]
        arguments = [*tensors, *[index] * len(signature.dims), *(v.type for v in signature.scalars)]
        made = func.FuncOp(name, (arguments, results), visibility="private", ip=ir.InsertionPoint.at_block_begin(block))
        body = made.add_entry_block()
        made.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                *(self._operand(v) for v in signature.inputs),
                *(ir.DictAttr.get({DIMS: write_dims([Expr.dim(f"d{i}")])}) for i in range(len(signature.dims))),
                *(ir.DictAttr.get({}) for _ in signature.scalars),
            ]
        )
        made.attributes["res_attrs"] = ir.ArrayAttr.get([self._result(v) for v in signature.outputs])
        with ir.InsertionPoint(body):
            emitter = _FunctionBuilder(self, list(body.arguments))
            for op in self.ops:
                emitter.emit(op)
            func.ReturnOp([as_type(emitter.values[v], t) for v, t in zip(signature.outputs, results, strict=True)])
        return made.operation

    def _operand(self, value: ir.Value) -> ir.DictAttr:
        attributes: dict[str, ir.Attribute] = {DIMS: write_dims([self.signature.local(d) for d in self.dims(value)])}
        unit = self._unit_axis(value)
        if unit is not None:
            attributes[UNIT] = i64(unit)
        if self.views.view(value).buffer in self.constants:
            attributes[CONSTANT] = ir.UnitAttr.get()
        zeros = self._zeros(value)
        if zeros:
            attributes[ZEROS] = write_dims(zeros)
        return ir.DictAttr.get(attributes)

    def _zeros(self, value: ir.Value) -> list[int]:
        """Zeros before and after each axis, where a window of a contraction of this region passes over them."""
        found = zeros_of(value)
        if found is None:
            return []
        groups = self.collapse.of(value)
        readers = [op for op in users(value) if op in self.ops and is_contraction(op)]
        if len(readers) != 1 or len(readers[0].operands) != 3:
            return []
        which = inputs(readers[0]).index(value)
        if not any(w.padded for w in windows_of(readers[0], which, found, self.shapes.dims(value))):
            return []
        ends = [found[g[0]] if len(g) == 1 else (0, 0) for g in groups]
        return [n for pair in ends for n in pair]

    def _unit_axis(self, value: ir.Value) -> int | None:
        """The unit-stride axis after collapsing: the last one that can be longer than 1."""
        dims, strides = self.shapes.dims(value), self.views.view(value).strides
        walked = [collapsed_stride([dims[a] for a in g], [strides[a] for a in g]) for g in self.collapse.of(value)]
        unit = [number for number, stride in enumerate(walked) if stride is not None and stride.constant == 1]
        extents = self.dims(value)
        return max((n for n in unit if extents[n].constant != 1), default=max(unit, default=None))

    def _result(self, value: ir.Value) -> ir.DictAttr:
        dims = self.dims(value)
        attributes: dict[str, ir.Attribute] = {DIMS: write_dims([self.signature.local(d) for d in dims])}
        if dims:
            attributes[UNIT] = i64(max((a for a, d in enumerate(dims) if d.constant != 1), default=len(dims) - 1))
        return ir.DictAttr.get(attributes)


class _FunctionBuilder:
    """Writes the operations of a region into its function."""

    def __init__(self, region: RegionFunction, arguments: Sequence[ir.Value]) -> None:
        signature = region.signature
        self.region = region
        self.values = dict(zip(signature.inputs, arguments, strict=False))
        self.dims = list(arguments[len(signature.inputs) :][: len(signature.dims)])
        self.values.update(zip(signature.scalars, arguments[len(arguments) - len(signature.scalars) :], strict=True))

    def emit(self, op: ir.Operation) -> None:
        if op.name == "linalg.generic":
            made = self._generic(op)
        elif moves_along(op) and any(len(g) > 1 for g in self.region.collapse.of(op.results[0])):
            made = self._moved_along(op)
        else:
            made = clone(op, self._as_before)
            for name in [n for n in made.attributes if n.startswith("tw.")]:
                del made.attributes[name]
        self.values.update(zip(op.results, made.results, strict=True))

    def value(self, value: ir.Value) -> ir.Value:
        if is_cheap(value) and isinstance(value.type, ir.RankedTensorType):
            return self._cheap(value, list(self.region.shapes.dims(value)))
        if value not in self.values:
            source = owner(value)
            if source is not None and source.name == "arith.constant":
                self.values[value] = clone(source, self.value).results[0]
                return self.values[value]
            expr = self.region.shapes.expr(value) if isinstance(value.type, _SCALAR) else None
            if expr is not None:
                self.values[value] = self._integer(expr, value.type)
            elif source is not None:
                made = clone(source, self.value)
                self.values.update(zip(source.results, made.results, strict=True))
        return self.values[value]

    def _as_before(self, value: ir.Value) -> ir.Value:
        """The value under its type in the caller, which an operation that keeps its result types expects."""
        return as_type(self.value(value), value.type)

    def _integer(self, expr: Expr, type_: ir.Type) -> ir.Value:
        if expr.constant is not None:
            return arith.ConstantOp(type_, expr.constant).result
        dim = self.extent(expr)
        return dim if isinstance(type_, ir.IndexType) else arith.IndexCastOp(type_, dim).result

    def extent(self, expr: Expr) -> ir.Value:
        return self.dims[self.region.signature.dims.index(expr)]

    def _cheap(self, value: ir.Value, dims: Sequence[Expr]) -> ir.Value:
        """The fill or empty tensor `value` again, with extents `dims`."""
        source = owner(value)
        made = ir.Operation.create(
            "tensor.empty",
            results=[tensor_type(dims, value.type.element_type)],
            operands=[self.extent(d) for d in dims if d.constant is None],
        ).results[0]
        if source is None or source.name == "tensor.empty":
            return made
        if source.name == "arith.constant":
            splat = ir.DenseElementsAttr(source.attributes["value"]).get_splat_value()
            return fill(arith.ConstantOp(value.type.element_type, splat).result, made)
        return fill(self.value(source.operands[0]), made)

    def _generic(self, op: ir.Operation) -> ir.Operation:
        groups = self.region.collapse.loops[op]
        extents = self.region.loop_extents(op)
        new_loop = {d: n for n, g in enumerate(groups) for d in g}
        operands, maps = [], []
        for value, m in zip(op.operands, maps_of(op), strict=True):
            results, dims = self._grouped_map(value, m, groups, new_loop, extents)
            maps.append(ir.AffineMap.get(len(groups), 0, results))
            if not is_cheap(value):
                operands.append(self.value(value))
                continue
            operands.append(self._cheap(value, dims))
        kinds = [iterator_kinds(op)[g[0]] for g in groups]
        count = len(op.results)
        types = [v.type for v in operands[len(operands) - count :]]
        copy = self._with_own_body(op)
        made = generic(operands[: len(operands) - count], operands[len(operands) - count :], maps, kinds, types)
        copy.regions[0].blocks[0].append_to(made.regions[0])
        for inner in walk(made):
            if inner.name == "linalg.index":
                inner.attributes["dim"] = i64(new_loop[integer(inner.attributes["dim"])])
        copy.erase()
        return made

    def _with_own_body(self, op: ir.Operation) -> ir.Operation:
        """A copy whose body reads the function's values; its operands, which whoever asks gives anew, are the caller's."""
        inside = set(captured_inside(op))
        return clone(op, lambda v: self.value(v) if v in inside else v)

    def _moved_along(self, op: ir.Operation) -> ir.Operation:
        """A concatenation or pad of collapsed tensors."""
        result = op.results[0]
        groups = self.region.collapse.of(result)
        kind = tensor_type(self.region.dims(result), ir.RankedTensorType(result.type).element_type)
        if op.name == "tensor.concat":
            along = next(n for n, g in enumerate(groups) if integer(op.attributes["dim"]) in g)
            return ir.Operation.create(op.name, [kind], [self.value(v) for v in op.operands], {"dim": i64(along)})
        ends = [[part[g[0]] if len(g) == 1 else 0 for g in groups]
                for part in (mixed(op, "static_low", 1), mixed(op, "static_high", 2))]
        absent = ir.ShapedType.get_dynamic_size()
        dynamic = [[self.value(v) for v in part if not isinstance(v, int)] for part in ends]
        static = [[v if isinstance(v, int) else absent for v in part] for part in ends]
        copy = self._with_own_body(op)
        made = tensor.PadOp(kind, self.value(op.operands[0]), *dynamic, *static).operation
        copy.regions[0].blocks[0].append_to(made.regions[0])
        for surplus in reversed(range(len(groups), len(self.region.shapes.dims(result)))):
            made.regions[0].blocks[0].erase_argument(surplus)
        copy.erase()
        return made

    def _grouped_map(
        self, value: ir.Value, m: ir.AffineMap, groups: Groups, new_loop: dict[int, int], extents: Sequence[Expr]
    ) -> tuple[list[ir.AffineExpr], list[Expr]]:
        """Map results over the grouped loops, one for each group that the operand has, and the operand's extents."""
        results: list[ir.AffineExpr] = []
        dims: list[Expr] = []
        taken: set[int] = set()
        for e, extent in zip(m.results, self.region.shapes.dims(value) if m.results else (), strict=True):
            loop = position(e)
            group = None if loop is None else new_loop[loop]
            if group is None or len(groups[group]) == 1:
                results.append(renumber(e, new_loop))
                dims.append(extent)
            elif group not in taken:
                taken.add(group)
                results.append(ir.AffineExpr.get_dim(group))
                dims.append(extents[group])
        return results, dims


def as_type(value: ir.Value, wanted: ir.Type) -> ir.Value:
    """`value` cast to a tensor type of the same extents."""
    return value if value.type == wanted else ir.Operation.create("tensor.cast", [wanted], [value]).results[0]


def grouped(dims: Sequence[Expr], groups: Groups) -> list[Expr]:
    """Products of the extents of each group."""
    return [reduce(Expr.__mul__, (dims[a] for a in g), Expr.of(1)) for g in groups]


def _require_scalar(op: ir.Operation) -> None:
    if not op.name.startswith(("arith.", "math.", "tensor.extract")) or len(op.regions):
        raise PassError(
            f"{op.name} at {op.location}: a value that a region needs is not computed from dims, constants and "
            "scalar arguments"
        )
