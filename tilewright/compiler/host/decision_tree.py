"""The decision tree of a dispatch table as code: nested compares over dims and layout; the caller says what a leaf does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.passes.codegen.emit import when
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import ir, llvm
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Node, symbols
from tilewright.runtime.program.kernel import offset_symbol, stride_symbol
from tilewright.runtime.shape import Expr


def layout_of(call: PlannedCall, table: DispatchTable) -> dict[str, Expr]:
    """The layout symbols of a table's tree for one call, over the model dims."""
    wanted = symbols(table.root)
    found: dict[str, Expr] = {}
    for i, operand in enumerate(call.operands):
        found[offset_symbol(i)] = operand.offset
        found.update({stride_symbol(i, axis): s for axis, s in enumerate(operand.strides)})
    return {name: e for name, e in found.items() if name in wanted}


def store_leaf(value: ir.Value, slot: ir.Value) -> None:
    """Keep which kernel a leaf chose."""
    llvm.StoreOp(value, slot)


def emit_tree(node: Node, env: Mapping[str, Index], leaf: Callable[[Leaf], None]) -> None:
    """Nested conditions of a decision tree; `leaf` emits the code of each leaf."""
    if isinstance(node, Leaf):
        leaf(node)
        return
    below = emit_expr(Expr.parse(node.expr), env).le(node.bound)
    when(below, lambda: emit_tree(node.below, env, leaf), lambda: emit_tree(node.above, env, leaf))
