"""What operations are but for which values they read: those of equal structure are one function of their values.

Models hold many equal parts, one for each layer or parameter. To tell that two are equal takes a fraction of what it takes to cut
them into regions, or to build their functions, twice.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from tilewright.passes.analysis.windows import zeros_of
from tilewright.passes.linalg.clone import users
from tilewright.passes.linalg.collapse import is_cheap
from tilewright.passes.linalg.strides import Views
from tilewright.passes.mlir import ir, operations, owner


class Structure:
    """Of some operations in order. key: equal where they are the same function, once the values that one of them names are taken
    for those of the other one. values: all that they name, in an order that follows from the structure.

    ignored: attributes that count for nothing."""

    def __init__(self, ops: Sequence[ir.Operation], views: Views, constants: set[ir.Value],
                 ignored: Collection[str] = ()) -> None:
        self.ops, self._ignored = ops, ignored
        self.values: list[ir.Value] = []
        self._numbers: dict[ir.Value, int] = {}
        self._views, self._constants = views, constants
        members = set(ops)
        body = tuple(map(self._operation, ops))
        outputs = tuple(self._numbers[r] for op in ops for r in op.results if any(u not in members for u in users(r)))
        self.key: Hashable = (body, outputs)

    def image(self, other: Structure) -> dict[ir.Value, ir.Value]:
        """The value of `other`, which is of equal structure, for each one of this."""
        return dict(zip(self.values, other.values, strict=True))

    def _named(self, value: ir.Value) -> int:
        number = self._numbers[value] = len(self.values)
        self.values.append(value)
        return number

    def _operation(self, op: ir.Operation) -> Hashable:
        read = tuple(map(self._read, op.operands))
        types = tuple(r.type for r in op.results)
        for r in op.results:
            self._named(r)
        return op.name, self._attributes(op), read, types, tuple(self._block(b) for region in op.regions for b in region.blocks)

    def _block(self, block: ir.Block) -> Hashable:
        for argument in block.arguments:
            self._named(argument)
        return tuple(a.type for a in block.arguments), tuple(map(self._operation, operations(block)))

    def _attributes(self, op: ir.Operation) -> Hashable:
        return tuple((name, op.attributes[name]) for name in op.attributes if name not in self._ignored)

    def _read(self, value: ir.Value) -> Hashable:
        """A value by its number, the first time with all that a function of it depends on."""
        if value in self._numbers:
            return self._numbers[value]
        number, shapes, source = self._named(value), self._views.shapes, owner(value)
        if not isinstance(value.type, ir.RankedTensorType):
            expr = shapes.expr(value) if isinstance(value.type, ir.IndexType | ir.IntegerType) else None
            if expr is not None or source is None:
                return number, value.type, expr
            return number, value.type, self._made(source)
        if source is not None and is_cheap(value):
            return number, value.type, tuple(shapes.dims(value)), self._made(source)
        view, zeros = self._views.view(value), zeros_of(value)
        return (number, value.type, tuple(shapes.dims(value)), view.offset, view.strides, view.buffer in self._constants,
                None if zeros is None else tuple(zeros))

    def _made(self, source: ir.Operation) -> Hashable:
        """An operation outside that the function repeats."""
        return source.name, self._attributes(source), tuple(map(self._read, source.operands)), tuple(
            self._block(b) for region in source.regions for b in region.blocks)
