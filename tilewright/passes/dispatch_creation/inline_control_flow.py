"""inline-control-flow: the outlined bodies of branches and loops go back to where lift-control-flow took them from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.canonical_spec import KEY
from tilewright.passes.base import Pass
from tilewright.passes.dispatch_creation.region_function import as_type
from tilewright.passes.mlir import functions, ir, operations


@dataclass(frozen=True)
class InlineControlFlow(Pass):
    """A call of a function that is no workload becomes what the function does; each has one call."""

    name: ClassVar[str] = "inline-control-flow"

    def run(self, module: ir.Module) -> None:
        named = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions(module)}
        lifted = {name: f for name, f in named.items() if KEY not in f.attributes}
        called: set[str] = set()
        for fn in list(lifted.values()):
            _inline(fn.regions[0].blocks[0], lifted, called)
        for name in called:
            lifted[name].erase()


def _inline(block: ir.Block, lifted: dict[str, ir.Operation], called: set[str]) -> None:
    for op in operations(block):
        if op.name == "func.call" and (name := ir.FlatSymbolRefAttr(op.attributes["callee"]).value) in lifted:
            called.add(name)
            _splice(op, lifted[name], lifted, called)
        elif op.name.startswith("scf."):
            for region in op.regions:
                for inner in region.blocks:
                    _inline(inner, lifted, called)


def _splice(call: ir.Operation, fn: ir.Operation, lifted: dict[str, ir.Operation], called: set[str]) -> None:
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
