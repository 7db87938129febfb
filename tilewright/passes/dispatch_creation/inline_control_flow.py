"""inline-control-flow: the outlined bodies of branches and loops go back to where lift-control-flow took them from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.canonical_spec import KEY
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.region_function import as_type
from tilewright.passes.mlir import functions, ir, operations, walk


@dataclass(frozen=True)
class InlineControlFlow(Pass):
    """A call of a function that is no workload becomes what the function does."""

    name: ClassVar[str] = "inline-control-flow"

    def run(self, module: ir.Module) -> None:
        named = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions(module)}
        lifted = {name: f for name, f in named.items() if KEY not in f.attributes}
        calls = Counter(_callee(op) for fn in lifted.values() for op in walk(fn) if op.name == "func.call")
        several = {name for name, count in calls.items() if count > 1 and name in lifted}
        called: set[str] = set()
        for fn in list(lifted.values()):
            _inline(fn.regions[0].blocks[0], _Lifted(lifted, several), called)
        for name in called:
            lifted[name].erase()


@dataclass(frozen=True)
class _Lifted:
    """Functions by name, and those that have several calls, each of which takes a copy."""

    functions: dict[str, ir.Operation]
    several: set[str]


def _callee(call: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _inline(block: ir.Block, lifted: _Lifted, called: set[str]) -> None:
    for op in operations(block):
        if op.name == "func.call" and (name := _callee(op)) in lifted.functions:
            called.add(name)
            fn = lifted.functions[name]
            _splice(op, fn.clone().operation if name in lifted.several else fn, lifted, called)
        elif op.name.startswith("scf."):
            for region in op.regions:
                for inner in region.blocks:
                    _inline(inner, lifted, called)


def _splice(call: ir.Operation, fn: ir.Operation, lifted: _Lifted, called: set[str]) -> None:
    body = fn.regions[0].blocks[0]
    _inline(body, lifted, called)
    *ops, last = operations(body)
    with ir.InsertionPoint(call):
        for argument, operand in zip(body.arguments, call.operands, strict=True):
            tensors = isinstance(operand.type, ir.RankedTensorType)
            argument.replace_all_uses_with(as_type(operand, argument.type) if tensors else operand)
    for op in ops:
        op.move_before(call)
    with ir.InsertionPoint(call):
        for old, new in zip(call.results, last.operands, strict=True):
            old.replace_all_uses_with(as_type(new, old.type))
    call.erase()
