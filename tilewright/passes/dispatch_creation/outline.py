"""outline: each dispatch region becomes a private function; @main keeps index arithmetic, views and calls."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.canonical_spec import KEY, KIND, key_of
from tilewright.passes.analysis.fused_contraction import FusedContraction
from tilewright.passes.analysis.op_kinds import OpKind, op_kind
from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.fuse import OPERATION, REGION
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.dispatch_creation.region_function import RegionFunction, as_type
from tilewright.passes.dispatch_creation.workload_name import workload_name
from tilewright.passes.linalg.builders import i64
from tilewright.passes.linalg.clone import erase_dead, producers_first
from tilewright.passes.linalg.collapse import Groups
from tilewright.passes.linalg.shape_values import ShapeValues, tensor_type
from tilewright.passes.linalg.strides import Views
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes, integer, reassociation
from tilewright.passes.mlir import functions, ir, operations, owner
from tilewright.passes.partition.structure import Structure
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.errors import PassError
from tilewright.runtime.shape import Expr

__all__ = ["Outline", "workloads_of"]


@dataclass(frozen=True)
class Outline(Pass):
    """Functions are named after what they compute; equal regions (by key) share one."""

    name: ClassVar[str] = "outline"

    def run(self, module: ir.Module) -> None:
        made = _Functions(module)
        for fn in main_of(module):
            if "sym_visibility" not in fn.attributes:
                _outline(fn, made)


class _Functions:
    """The functions of a module: the names that are taken, and the symbol of each outlined one by its key."""

    def __init__(self, module: ir.Module) -> None:
        self._body = module.body
        self._by_key: dict[str, str] = {}
        self._taken = {ir.StringAttr(f.attributes["sym_name"]).value for f in functions(module)}
        self._numbers: dict[str, int] = {}  # of a name, all lower ones are taken

    def build(self, region: RegionFunction) -> str:
        """The symbol of the region's function; a function with the same key serves again."""
        name = self._free_name(workload_name(region.ops, region.views))
        function = region.build(self._body, name)
        function.attributes[KIND] = ir.StringAttr.get(_as_taken(_kind(region.ops, region.views), function).value)
        key = key_of(function)
        function.attributes[KEY] = ir.StringAttr.get(key)
        if key in self._by_key:
            function.erase()
        else:
            self._by_key[key] = name
            self._taken.add(name)
        return self._by_key[key]

    def _free_name(self, base: str) -> str:
        number = self._numbers.get(base, 0)
        while (name := f"{base}_{number}" if number else base) in self._taken:
            number += 1
        self._numbers[base] = number
        return name


def _outline(fn: ir.Operation, made: _Functions) -> None:
    block = fn.regions[0].blocks[0]
    numbers = _numbers(block)
    extents = ShapeValues(fn)
    views = Views(SymbolicShapes(fn))
    constants = {v for v, named in zip(block.arguments, argument_attributes(fn), strict=True) if CONSTANT in named}
    constants |= {op.results[0] for op in operations(block) if op.name == "arith.constant"}
    regions: dict[int, list[ir.Operation]] = {}
    for op in operations(block):
        if REGION in op.attributes:
            regions.setdefault(integer(op.attributes[REGION]), []).append(op)
        elif op_kind(op, views) not in (OpKind.VIEW, OpKind.CHEAP, OpKind.SCALAR, OpKind.CALL):
            raise PassError(f"{op.name} at {op.location} has no region; run fuse before outline")
    built: dict[Hashable, tuple[Structure, RegionFunction, str]] = {}
    used: list[tuple[int, RegionFunction, str, dict[ir.Value, ir.Value]]] = []
    for number, ops in regions.items():
        structure = Structure(ops, views, constants, (REGION, OPERATION))
        if structure.key not in built:
            region = RegionFunction(ops, views, constants)
            built[structure.key] = structure, region, made.build(region) if region.signature.outputs else ""
        like, region, callee = built[structure.key]
        if callee:
            used.append((number, region, callee, like.image(structure)))
    replaced: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(operations(block)[-1]):
        for number, region, callee, image in used:
            replaced.update(_call(region, callee, image, numbers.get(number, ()), extents))
    for old, new in replaced.items():
        old.replace_all_uses_with(new)
    members = {op for ops in regions.values() for op in ops}
    for op in reversed(operations(block)):
        if op in members:
            op.erase()
    _cancel(block)
    _sort(block)
    erase_dead(block)


def _numbers(block: ir.Block) -> dict[int, list[int]]:
    """The numbers of the operations of each region, taken off them, since equal regions share a function."""
    found: dict[int, list[int]] = {}
    for op in operations(block):
        if OPERATION in op.attributes:
            found.setdefault(integer(op.attributes[REGION]), []).append(integer(op.attributes[OPERATION]))
            del op.attributes[OPERATION]
    return found


def _call(region: RegionFunction, callee: str, image: Mapping[ir.Value, ir.Value], numbers: Sequence[int],
          extents: ShapeValues) -> dict[ir.Value, ir.Value]:
    """The call of a region like `region` at the current insertion point: old result -> new value of the same type.

    image: of the values of `region`, those that stand in their places."""
    signature = region.signature
    operands = [_collapsed(image[v], region.collapse.of(v), region.dims(v)) for v in signature.inputs]
    operands += [extents.value(d) for d in signature.dims]
    types = [tensor_type(region.dims(v), v.type.element_type) for v in signature.outputs]
    call = ir.Operation.create(
        "func.call",
        results=types,
        operands=[*operands, *(image[v] for v in signature.scalars)],
        attributes={"callee": ir.FlatSymbolRefAttr.get(callee)},
    )
    if numbers:
        call.attributes[OPERATION] = ir.ArrayAttr.get([i64(n) for n in numbers])
    return {
        image[old]: _expanded(new, region.collapse.of(old), region.shapes.dims(old), extents, old.type)
        for old, new in zip(signature.outputs, call.results, strict=True)
    }


def _collapsed(value: ir.Value, groups: Groups, dims: Sequence[Expr]) -> ir.Value:
    wanted = tensor_type(dims, value.type.element_type)
    if all(len(g) == 1 for g in groups):
        return as_type(value, wanted)
    made = ir.Operation.create(
        "tensor.collapse_shape", infer_types(value, groups), [value], {"reassociation": _reassociation(groups)}
    )
    return as_type(made.results[0], wanted)


def infer_types(value: ir.Value, groups: Groups) -> list[ir.Type]:
    """Type of a collapse of `value`: static where all axes of a group are."""
    source = ir.RankedTensorType(value.type)
    sizes = []
    for group in groups:
        size = 1
        for axis in group:
            size = (
                ir.ShapedType.get_dynamic_size()
                if source.is_dynamic_dim(axis) or size < 0
                else size * source.get_dim_size(axis)
            )
        sizes.append(size)
    return [ir.RankedTensorType.get(sizes, source.element_type)]


def _expanded(value: ir.Value, groups: Groups, dims: Sequence[Expr], extents: ShapeValues, wanted: ir.Type) -> ir.Value:
    if any(len(g) != 1 for g in groups):
        full = tensor_type(dims, value.type.element_type)
        value = ir.Operation.create(
            "tensor.expand_shape",
            results=[full],
            operands=[value, *extents.dynamic(dims)],
            attributes={
                "reassociation": _reassociation(groups),
                "static_output_shape": ir.DenseI64ArrayAttr.get(
                    [ir.ShapedType.get_dynamic_size() if d.constant is None else d.constant for d in dims]
                ),
            },
        ).results[0]
    return as_type(value, wanted)


def _reassociation(groups: Groups) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.ArrayAttr.get([i64(a) for a in g]) for g in groups])


def _kind(ops: Sequence[ir.Operation], views: Views) -> Kind:
    found = [op_kind(op, views) for op in ops]
    kinds = set(found)
    if {OpKind.CONTRACTION, OpKind.REDUCTION} <= kinds:
        return Kind.ATTENTION if found.count(OpKind.CONTRACTION) > 1 else Kind.PRODUCT_ROWS
    for kind, meaning in (
        (OpKind.CONTRACTION, Kind.CONTRACTION),
        (OpKind.WINDOW, Kind.GENERIC),
        (OpKind.REDUCTION, Kind.ROWS),
        (OpKind.PARTS, Kind.ROWS),
    ):
        if kind in kinds:
            return meaning
    return Kind.POINTWISE


def _as_taken(kind: Kind, fn: ir.Operation) -> Kind:
    """GENERIC in place of a kind whose families cannot see the region as they have to; they are then not tried."""
    ops, results = operations(fn.regions[0].blocks[0])[:-1], operations(fn.regions[0].blocks[0])[-1].operands
    try:
        if kind is Kind.CONTRACTION:
            FusedContraction.of(ops, list(results), SymbolicShapes(fn))
        elif kind is Kind.ROWS:
            RowProgram(ops, list(results), SymbolicShapes(fn))
    except ValueError:
        return Kind.GENERIC
    return kind


def _cancel(block: ir.Block) -> None:
    """A collapse of the expanded result of a call is the result."""
    for op in operations(block):
        source = owner(op.operands[0]) if op.name == "tensor.collapse_shape" else None
        if (
            source is not None
            and source.name == "tensor.expand_shape"
            and reassociation(op) == reassociation(source)
            and source.operands[0].type == op.results[0].type
        ):
            op.results[0].replace_all_uses_with(source.operands[0])


def _sort(block: ir.Block) -> None:
    """Topological order, program order where it can be: a call may need values made after its region's first op."""
    *body, last = operations(block)
    for op in producers_first(body):
        op.move_before(last)
