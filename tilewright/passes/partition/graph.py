"""Graph: what a partition has to know of a function, found once: operations in order, kinds, extents, who reads what."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

from tilewright.passes.analysis.op_kinds import OpKind, body_names, op_kind
from tilewright.passes.analysis.row_program import RowProgram
from tilewright.passes.linalg.clone import captured, users
from tilewright.passes.linalg.strides import Views
from tilewright.passes.linalg.structured import inputs
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes
from tilewright.passes.mlir import ir, maps_of, operations, owner

COMPUTE = (OpKind.CONTRACTION, OpKind.REDUCTION, OpKind.PARTS, OpKind.WINDOW, OpKind.ELEMENTWISE, OpKind.MOVEMENT)


class Graph:
    """The operations of `fn`. bound: values known at compile time. `kinds` grows where a pass copies operations; what `operands`,
    `maps` and `users` say is kept, so that these hold while the function does not change."""

    def __init__(self, fn: ir.Operation) -> None:
        self.block = fn.regions[0].blocks[0]
        self._not_in_rows: dict[tuple[int, ...], str | None] = {}
        self._operands: dict[ir.Operation, list[ir.Value]] = {}
        self._maps: dict[ir.Operation, list[ir.AffineMap]] = {}
        self._users: dict[ir.Value, list[ir.Operation]] = {}
        self._inside: dict[ir.Operation, list[ir.Value]] = {}
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

    def operands(self, op: ir.Operation) -> list[ir.Value]:
        if op not in self._operands:
            self._operands[op] = list(op.operands)
        return self._operands[op]

    def inside(self, op: ir.Operation) -> list[ir.Value]:
        """Values that the body of an operation uses, such as a tensor that it takes elements of."""
        if op not in self._inside:
            self._inside[op] = [v for v in captured(op) if v not in self.operands(op)]
        return self._inside[op]

    def maps(self, op: ir.Operation) -> list[ir.AffineMap]:
        """Indexing maps of a linalg operation, one an operand."""
        if op not in self._maps:
            self._maps[op] = maps_of(op)
        return self._maps[op]

    def users(self, value: ir.Value) -> list[ir.Operation]:
        """Operations of the function's block that use a value, directly or inside."""
        if value not in self._users:
            self._users[value] = users(value)
        return self._users[value]

    def not_in_rows(self, ops: Iterable[ir.Operation]) -> str | None:
        """Why operations are no program over rows and columns; None where they are one. Asked once of the same ones."""
        ordered = sorted(ops, key=self.order.__getitem__)
        numbers = tuple(map(self.order.__getitem__, ordered))
        if numbers not in self._not_in_rows:
            members = set(ordered)
            results = [r for op in ordered for r in op.results if any(u not in members for u in self.users(r))]
            try:
                RowProgram(ordered, results, self.shapes)
                self._not_in_rows[numbers] = None
            except ValueError as reason:
                self._not_in_rows[numbers] = str(reason)
        return self._not_in_rows[numbers]

    def computes(self, op: ir.Operation) -> bool:
        """Does the operation need a kernel?"""
        if self.kinds[op] in COMPUTE:
            return True
        return op.name == "linalg.fill" and any(self.kinds[u] not in COMPUTE for u in self.users(op.results[0]))

    @cached_property
    def digest(self) -> str:
        """Of the operations in order, what each reads and the types of what it gives: equal where numbers mean the same ones."""
        numbers = {v: f"a{i}" for i, v in enumerate(self.block.arguments)}
        digest = hashlib.sha256(" ".join(str(a.type) for a in self.block.arguments).encode())
        for op, number in self.order.items():
            numbers.update({r: f"{number}.{i}" for i, r in enumerate(op.results)})
            reads = [numbers.get(v, "") for v in self.operands(op)]
            named = sorted(f"{name}={op.attributes[name]}" for name in op.attributes)
            digest.update(f"{op.name} {reads} {named} {[str(r.type) for r in op.results]} {body_names(op)}".encode())
        return digest.hexdigest()[:32]

    def known(self, op: ir.Operation) -> bool:
        """Does `op` read nothing but tensors that are bound at compile time?"""
        tensors = [v for v in inputs(op) if isinstance(v.type, ir.RankedTensorType)]
        return op.name == "linalg.generic" and bool(tensors) and all(v in self.bound for v in tensors)

    def constant(self, op: ir.Operation) -> bool:
        """Does `op` compute something from such tensors?"""
        return self.known(op) and len(body_names(op)) > 1
