"""lift-control-flow: bodies of branches and loops become functions of their own, which other passes read as they read @main."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.passes.analysis.control_flow import CONTROL, positive_where
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.clone import captured, clone, erase_dead
from tilewright.passes.linalg.shape_values import ShapeValues
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import CHEAP_OPS, FRAME, main_of
from tilewright.passes.linalg.symbolic import (
    CONSTANT,
    COUNTERS,
    DIMS,
    RANGES,
    SymbolicShapes,
    argument_attributes,
    read_ranges,
    write_dims,
    write_ranges,
)
from tilewright.passes.mlir import arith, func, ir, operations, owner, tensor
from tilewright.runtime.shape import Expr

_CLONED = (*VIEW_OPS, *CHEAP_OPS)


@dataclass(frozen=True)
class LiftControlFlow(Pass):
    """Each scf.if and scf.while becomes a call of a function that holds it, `tw.frame`, whose regions only call functions of
    their bodies. The dims keep their names, and the counters of the loops around are dims too. `inline-control-flow` puts all
    of it back.
    """

    name: ClassVar[str] = "lift-control-flow"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            if any(op.name in CONTROL for op in operations(fn.regions[0].blocks[0])):
                _Lifter(module, fn).run()


def lift(module: ir.Module, fn: ir.Operation) -> None:
    """Likewise what is in one function, lifted itself."""
    _Lifter(module, fn).run()


def lifted(module: ir.Module, fn: ir.Operation, ops: Sequence[ir.Operation], wanted: Sequence[ir.Value],
           before: ir.Operation) -> list[ir.Value]:
    """The values `wanted` of some operations, as results of a call in front of `before` of a function that does what they do."""
    lifter = _Lifter(module, fn)
    return lifter.lifted(ops, wanted, lifter.dims(), before, False)


@dataclass
class _Captured:
    """What operations use of what is around them: tensors and scalars, each once, in order."""

    tensors: list[ir.Value] = field(default_factory=list)
    scalars: list[ir.Value] = field(default_factory=list)


class _Lifter:
    """Lifts what is in `fn`, inner bodies first."""

    def __init__(self, module: ir.Module, fn: ir.Operation) -> None:
        self.module, self.fn = module, fn
        self.sizes = ShapeValues(fn)
        self.number = 0
        entry = fn.regions[0].blocks[0]
        named = zip(entry.arguments, argument_attributes(fn), strict=True)
        self.constants = {v for v, attributes in named if CONSTANT in attributes}
        self.ranges = read_ranges(fn)

    def run(self) -> None:
        block = self.fn.regions[0].blocks[0]
        self.block(block, self.dims())
        erase_dead(block)

    def dims(self) -> dict[str, ir.Value]:
        """The values of the function's dims."""
        known = {name for named in argument_attributes(self.fn) if DIMS in named
                 for text in ir.ArrayAttr(named[DIMS]) if isinstance(text, ir.StringAttr)
                 for name in Expr.parse(ir.StringAttr(text).value).symbols}
        return {name: self.sizes.value(Expr.dim(name)) for name in sorted(known)}

    def block(self, block: ir.Block, dims: Mapping[str, ir.Value]) -> None:
        """dims: the values of the dims here."""
        for op in operations(block):
            if op.name not in CONTROL:
                continue
            for region in op.regions:
                for inner in region.blocks:
                    here = {**dims, **_counted(op, inner)}
                    self.block(inner, here)
                    self._region(inner, here)
            if op.name == "scf.if" and positive_where(op.operands[0], SymbolicShapes(self.fn)) is None:
                with ir.InsertionPoint(op):
                    op.operands[0] = tensor.ExtractOp(_tensor_of(op.operands[0]), []).result
            self._frame(op, dims)

    def _region(self, block: ir.Block, dims: Mapping[str, ir.Value]) -> None:
        """The body of a region becomes a call."""
        *body, last = operations(block)
        shapes = SymbolicShapes(self.fn)
        at_test = last.name == "scf.condition"
        if at_test:
            read = [] if positive_where(last.operands[0], shapes) is not None else [0]
        else:
            read = [i for i, v in enumerate(last.operands) if isinstance(v.type, ir.RankedTensorType)]
        wanted = [last.operands[i] for i in read]
        if wanted and (body or not at_test):
            found = self.lifted(body, wanted, dims, last, False)
            with ir.InsertionPoint(last):
                for i, value in zip(read, found, strict=True):
                    last.operands[i] = tensor.ExtractOp(value, []).result if at_test else value
        for inner in reversed(body):
            if all(next(iter(r.uses), None) is None for r in inner.results):
                inner.erase()

    def _frame(self, op: ir.Operation, dims: Mapping[str, ir.Value]) -> None:
        found = self.lifted([op], list(op.results), dims, op, True)
        for old, new in zip(op.results, found, strict=True):
            old.replace_all_uses_with(new)
        op.erase()

    def lifted(self, ops: Sequence[ir.Operation], wanted: Sequence[ir.Value], dims: Mapping[str, ir.Value], before: ir.Operation,
               frame: bool) -> list[ir.Value]:
        """Results of a call, in front of `before`, of a function that does what `ops` do. frame: it holds a branch or loop."""
        shapes = SymbolicShapes(self.fn)
        kept = [v for v in wanted if isinstance(v.type, ir.RankedTensorType) or not frame]
        used = self._captured(ops, kept, shapes, frame)
        built = _Function(self, shapes, used, list(dims), frame)
        name = built.build(ops, kept, f"{'frame' if frame else 'body'}_{self.number}")
        self.number += 1
        with ir.InsertionPoint(before):
            call = ir.Operation.create("func.call", results=built.types, operands=[*used.tensors, *dims.values(), *used.scalars],
                                       attributes={"callee": ir.FlatSymbolRefAttr.get(name)})
        results = iter(call.results)
        return [next(results) if v in kept else v for v in wanted]  # nobody reads the counters of a loop behind it

    def _captured(self, ops: Sequence[ir.Operation], wanted: Sequence[ir.Value], shapes: SymbolicShapes,
                  frame: bool) -> _Captured:
        found, seen = _Captured(), {r for op in ops for r in op.results}

        def visit(value: ir.Value) -> None:
            if value in seen:
                return
            seen.add(value)
            source = owner(value)
            if isinstance(value.type, ir.RankedTensorType):
                if source is None or frame or source.name not in _CLONED:
                    found.tensors.append(value)
                    return
            elif shapes.expr(value) is not None:
                return
            elif source is None:
                found.scalars.append(value)
                return
            for operand in captured(source):
                visit(operand)

        for value in [*(v for op in ops for v in captured(op)), *wanted]:
            visit(value)
        return found


class _Function:
    """A function of operations of another one, over what they capture and the dims."""

    def __init__(self, lifter: _Lifter, shapes: SymbolicShapes, used: _Captured, dims: Sequence[str], frame: bool) -> None:
        self.lifter, self.shapes, self.used, self.dims, self.frame = lifter, shapes, used, dims, frame
        self.types: list[ir.Type] = []
        self.known: dict[ir.Value, ir.Value] = {}

    def build(self, ops: Sequence[ir.Operation], wanted: Sequence[ir.Value], base: str) -> str:
        """The symbol of the function."""
        symbols = ir.SymbolTable(self.lifter.module.operation)
        name = base
        while name in symbols:
            name += "_"
        self.types = [v.type if isinstance(v.type, ir.RankedTensorType) else ir.RankedTensorType.get([], v.type) for v in wanted]
        extents = [self._dims(v) for v in wanted]
        arguments = [*(v.type for v in self.used.tensors), *[ir.IndexType.get()] * len(self.dims),
                     *(v.type for v in self.used.scalars)]
        at_end = ir.InsertionPoint(self.lifter.module.body)
        made = func.FuncOp(name, (arguments, self.types), ip=at_end)
        entry = made.add_entry_block()
        made.attributes["arg_attrs"] = ir.ArrayAttr.get([
            *(ir.DictAttr.get(self._named(v)) for v in self.used.tensors),
            *(ir.DictAttr.get({DIMS: write_dims([Expr.dim(d)])}) for d in self.dims),
            *[ir.DictAttr.get({})] * len(self.used.scalars)])
        made.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({DIMS: write_dims(d)}) for d in extents])
        if self.lifter.ranges:
            made.attributes[RANGES] = write_ranges(self.lifter.ranges)
        if self.frame:
            made.attributes[FRAME] = ir.UnitAttr.get()
        self.known = dict(zip([*self.used.tensors], entry.arguments, strict=False))
        self.known.update(zip(self.used.scalars, list(entry.arguments)[len(arguments) - len(self.used.scalars) :], strict=True))
        self.sizes = ShapeValues(made.operation)
        with ir.InsertionPoint(entry):
            for op in ops:
                copy = clone(op, self._value)
                self.known.update(zip(op.results, copy.results, strict=True))
            func.ReturnOp([_tensor_of(self._value(v)) for v in wanted])
        return name

    def _dims(self, value: ir.Value) -> list[Expr]:
        return list(self.shapes.dims(value)) if isinstance(value.type, ir.RankedTensorType) else []

    def _named(self, value: ir.Value) -> dict[str, ir.Attribute]:
        bound = {CONSTANT: ir.UnitAttr.get()} if value in self.lifter.constants else {}
        return {DIMS: write_dims(self._dims(value)), **bound}

    def _value(self, value: ir.Value) -> ir.Value:
        """The value inside of the function."""
        if value in self.known:
            return self.known[value]
        source = owner(value)
        expr = None if isinstance(value.type, ir.RankedTensorType) else self.shapes.expr(value)
        if expr is not None:
            word = self.sizes.value(expr)
            self.known[value] = word if word.type == value.type else arith.index_cast(value.type, word)
        elif source is not None:
            copy = clone(source, self._value)
            self.known.update(zip(source.results, copy.results, strict=True))
        return self.known[value]


def _tensor_of(value: ir.Value) -> ir.Value:
    """A condition as a tensor of rank 0; a tensor as it is."""
    if isinstance(value.type, ir.RankedTensorType):
        return value
    return elementwise([], tensor.EmptyOp([], value.type).result, lambda _: value)


def _counted(op: ir.Operation, block: ir.Block) -> dict[str, ir.Value]:
    """The counters of a loop as values in one of its blocks."""
    if COUNTERS not in op.attributes:
        return {}
    names = [ir.StringAttr(a).value for a in ir.ArrayAttr(op.attributes[COUNTERS])]
    return {name: value for name, value in zip(names, block.arguments, strict=True) if name}
