"""Graph: what a partition has to know of a function, found once: operations in order, kinds, extents, who reads what."""

from __future__ import annotations

from functools import cached_property

from tilewright.passes.analysis.op_kinds import OpKind, body_names, op_kind
from tilewright.passes.linalg.clone import captured, users
from tilewright.passes.linalg.strides import Views
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes
from tilewright.passes.mlir import ir, operations, owner

COMPUTE = (OpKind.CONTRACTION, OpKind.REDUCTION, OpKind.PARTS, OpKind.WINDOW, OpKind.ELEMENTWISE, OpKind.MOVEMENT)


class Graph:
    """The operations of `fn`. bound: values known at compile time. `kinds` grows where a pass copies operations."""

    def __init__(self, fn: ir.Operation) -> None:
        self.block = fn.regions[0].blocks[0]
        self.shapes = SymbolicShapes(fn)
        self.views = Views(self.shapes)
        self.order = {op: i for i, op in enumerate(operations(self.block))}
        self.kinds = {op: op_kind(op, self.views) for op in self.order}
        named = zip(self.block.arguments, argument_attributes(fn), strict=True)
        self.bound = {v for v, attributes in named if CONSTANT in attributes}
        for op in self.order:
            if self.known(op) or (self.kinds[op] is OpKind.VIEW and op.operands[0] in self.bound):
                self.bound.update(op.results)

    @cached_property
    def producers(self) -> dict[ir.Operation, list[ir.Operation]]:
        """Of each operation those whose values it needs."""
        return {op: [p for v in captured(op) if (p := owner(v)) is not None] for op in self.order}

    def computes(self, op: ir.Operation) -> bool:
        """Does the operation need a kernel?"""
        if self.kinds[op] in COMPUTE:
            return True
        return op.name == "linalg.fill" and any(self.kinds[u] not in COMPUTE for u in users(op.results[0]))

    def known(self, op: ir.Operation) -> bool:
        """Does `op` read nothing but tensors that are bound at compile time?"""
        tensors = [v for v in inputs(op) if isinstance(v.type, ir.RankedTensorType)]
        return op.name == "linalg.generic" and bool(tensors) and all(v in self.bound for v in tensors)

    def constant(self, op: ir.Operation) -> bool:
        """Does `op` compute something from such tensors?"""
        return self.known(op) and len(body_names(op)) > 1
