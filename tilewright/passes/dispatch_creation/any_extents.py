"""Workloads that differ in their extents alone: each as one of dims, which then serves all of them.

Axes that a loop runs along have one extent. Of every set of such axes the extent is a dim, but where it follows from others, as
the number of parts does from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.canonical_spec import KEY, key_of
from tilewright.passes.dispatch_creation.outlined import workload_of
from tilewright.passes.linalg.clone import captured_inside, erase_dead
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.structured import inits, inputs
from tilewright.passes.linalg.symbolic import DIMS, argument_attributes, result_attributes, write_dims
from tilewright.passes.mlir import functions, ir, linalg, maps_of, operations, owner, position
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.shape import Expr

_KINDS = (Kind.POINTWISE, Kind.ROWS)
_MADE_ANEW = ("tensor.empty", "linalg.fill")
_PLAIN = (*_MADE_ANEW, "arith.constant", "linalg.generic", "func.return")


@dataclass(frozen=True)
class AnyExtents:
    """key: equal for workloads that differ in extents alone. extents: those of one, by the numbers of the dims."""

    key: str
    extents: tuple[int, ...]

    @staticmethod
    def of(workload: Workload) -> AnyExtents | None:
        """None where it has dims already, or operations whose extents this does not follow. In the current context."""
        if workload.kind not in _KINDS or workload.dims or workload.scalars:
            return None
        module = ir.Module.parse(workload.ir)
        axes = _Axes(fn := next(functions(module)))
        if not axes.known:
            return None
        axes.widen({number: f"d{number}" for number in range(len(axes.extents))})
        return AnyExtents(key_of(fn), axes.extents)


def dims_of(extents: Sequence[tuple[int, ...]]) -> dict[int, str]:
    """The dims of a workload that serves several: by the number of an extent that differs between them its name, one name for
    those that are always equal. extents: those of each."""
    found: dict[tuple[int, ...], str] = {}
    columns = {number: own for number, own in enumerate(zip(*extents, strict=True)) if len(set(own)) > 1}
    return {number: found.setdefault(own, f"d{len(found)}") for number, own in columns.items()}


def with_dims(workload: Workload, names: Mapping[int, str]) -> Workload:
    """The workload with dims of these names for its extents of these numbers. In the current context."""
    module = ir.Module.parse(workload.ir)
    fn = next(functions(module))
    _Axes(fn).widen(names)
    fn.attributes[KEY] = ir.StringAttr.get(key_of(fn))
    return workload_of(fn, workload.name)


class _Axes:
    """The axes of all tensors of a function, joined by the loops that run along them. known: is it one that this follows?
    extents: of those axes that none other tells."""

    def __init__(self, fn: ir.Operation) -> None:
        self._fn, self._block = fn, fn.regions[0].blocks[0]
        self._joined: dict[object, object] = {}
        self._parts: dict[object, tuple[object, int]] = {}  # an axis of parts -> the loop that is cut, steps of a part
        self._generics = [op for op in operations(self._block) if op.name == "linalg.generic"]
        self.known = all(op.name in _PLAIN for op in operations(self._block)) and all(map(self._join, self._generics))
        self._values = [*self._block.arguments, *(r for op in self._generics for r in op.results)]
        self._numbers: dict[object, int] = {}
        found: list[int] = []
        for value in self._values:
            shape = ir.RankedTensorType(value.type).shape if isinstance(value.type, ir.RankedTensorType) else []
            for axis, extent in enumerate(shape):
                root = self._find((value, axis))
                if root not in self._parts and root not in self._numbers:
                    self._numbers[root] = len(found)
                    found.append(extent)
        self.extents = tuple(found)

    def _find(self, node: object) -> object:
        while (up := self._joined.setdefault(node, node)) is not node:
            node = up
        return node

    def _join(self, op: ir.Operation) -> bool:
        """Join the axes of one operation; False where the extent of one follows from no loop."""
        if any(isinstance(v.type, ir.RankedTensorType) for v in captured_inside(op)):
            return False
        maps = maps_of(op)
        kept = [*inputs(op), *(v for v in inits(op) if not _is_made_anew(v))]
        walked = [*zip(kept, maps, strict=False), *zip(op.results, maps[len(inputs(op)):], strict=True)]
        for value, m in walked:
            for axis, e in enumerate(m.results):
                if (loop := position(e)) is not None:
                    self._joined[self._find((value, axis))] = self._find((op, loop))
                elif isinstance(e, ir.AffineFloorDivExpr) and (cut := _cut(e)) is not None:
                    self._parts[self._find((value, axis))] = (op, cut[0]), cut[1]
                else:
                    return False
        return True

    def _dims(self, value: ir.Value, names: Mapping[int, str]) -> list[Expr]:
        return [self._dim((value, axis), extent, names) for axis, extent in enumerate(ir.RankedTensorType(value.type).shape)]

    def _dim(self, node: object, extent: int | None, names: Mapping[int, str]) -> Expr:
        root = self._find(node)
        if root in self._parts:
            loop, size = self._parts[root]
            return self._dim(loop, None, names).ceildiv(size)
        number = self._numbers[root]
        return Expr.dim(names[number]) if number in names else Expr.of(self.extents[number] if extent is None else extent)

    def widen(self, names: Mapping[int, str]) -> None:
        """Extents of these numbers become dims of the function, of these names."""
        fn, index = self._fn, ir.IndexType.get()
        dims = {v: self._dims(v, names) for v in self._values if isinstance(v.type, ir.RankedTensorType)}
        arguments = list(self._block.arguments)
        given = [{**named, DIMS: write_dims(dims[v])} for v, named in zip(arguments, argument_attributes(fn), strict=True)]
        returned = list(operations(self._block)[-1].operands)
        results = [{**named, DIMS: write_dims(dims[v])} for v, named in zip(returned, result_attributes(fn), strict=True)]
        own = list(dict.fromkeys(names.values()))
        given += [{DIMS: write_dims([Expr.dim(name)])} for name in own]
        for value, extents in dims.items():
            value.set_type(tensor_type(extents, ir.RankedTensorType(value.type).element_type))
        for _ in own:
            self._block.add_argument(index, ir.Location.unknown())
        types = [v.type for v in self._block.arguments], [v.type for v in returned]
        fn.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        fn.attributes["arg_attrs"] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, given)))
        fn.attributes["res_attrs"] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, results)))
        tensors = Reshaper(fn)
        for op in self._generics:
            for number, (value, result) in enumerate(zip(inits(op), op.results, strict=True), len(inputs(op))):
                if _is_made_anew(value):
                    with ir.InsertionPoint(op), op.location:
                        op.operands[number] = _anew(value, dims[result], tensors)
        erase_dead(self._block)


def _is_made_anew(value: ir.Value) -> bool:
    """Is it an empty tensor, or one filled with a number?"""
    made = owner(value)
    return made is not None and made.name in _MADE_ANEW


def _anew(value: ir.Value, dims: list[Expr], tensors: Reshaper) -> ir.Value:
    """An empty or filled tensor of other extents."""
    made = owner(value)
    assert made is not None
    empty = tensors.empty(dims, ir.RankedTensorType(value.type).element_type)
    return empty if made.name == "tensor.empty" else linalg.fill(made.operands[0], outs=[empty])


def _cut(e: ir.AffineExpr) -> tuple[int, int] | None:
    """The loop and the steps of a loop that is divided by a number."""
    cut = ir.AffineBinaryExpr(e)
    loop, known = position(cut.lhs), isinstance(cut.rhs, ir.AffineConstantExpr)
    return (loop, ir.AffineConstantExpr(cut.rhs).value) if loop is not None and known else None
