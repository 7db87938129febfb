"""Does a function compute each entry along one dim from the same entry alone? Then sequences of a batch do not mix.

Every tensor value has at most one axis that the dim is in, and every operation has to keep it: its loop is parallel, operands and
results are indexed by it plainly, no slice or pad cuts it, and neither its number nor its extent is data. Where reshapes join the
axis with others its place among them is followed, so that [B, H] read as [H, B] is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.loop_groups import mentions
from tilewright.passes.linalg.structured import iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, kept_axes, mixed, reassociation
from tilewright.passes.mlir import ir, maps_of, operations, position, walk
from tilewright.runtime.shape import Expr

_ONE = Expr.of(1)
_MADE = ("tensor.empty", "tensor.splat", "arith.constant")
_ORDERED = ("linalg.softmax",)
_CASTS = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.trunci")
_LESS = 2  # slt of arith.cmpi
# What a scalar of a body is: data; the number of its entry; that of a step that is more than an entry; a condition that never
# holds. Any other text says how it mixes entries, which matters where it is used.
PLAIN, NUMBER, STEP, NEVER = "data", "number", "step", "never"


@dataclass(frozen=True)
class EntryAxis:
    """Where entries lie in a tensor: the axis, and how many steps are outside and inside of an entry's number on it; None: equal
    values lie all along it."""

    axis: int
    outside: Expr | None = _ONE
    inside: Expr = _ONE


@dataclass(frozen=True)
class MixingError(Exception):
    """An operation that may make an entry from another one."""

    op: ir.Operation
    reason: str

    def __str__(self) -> str:
        return f"{self.op.name} {self.reason}"


class Independence:
    """Looks at all operations of a function's body, in their order.

    Args:
        symbol: the dim along which entries lie.
    """

    def __init__(self, fn: ir.Operation, shapes: SymbolicShapes, symbol: str) -> None:
        self.fn, self.shapes, self.symbol = fn, shapes, symbol
        self.axes: dict[ir.Value, EntryAxis | None] = {}
        self.counts: set[ir.Value] = set()  # scalars that are made from the number of entries
        self.numbers: set[ir.Value] = set()  # tensors whose elements are the numbers of their entries

    def check(self) -> None:
        """Raises: MixingError: of the first operation that does not keep entries apart."""
        block = self.fn.regions[0].blocks[0]
        for argument in block.arguments:
            if isinstance(argument.type, ir.RankedTensorType):
                self.axes[argument] = self._found(self.fn, argument)
        for op in operations(block):
            if op.name != "func.return":
                self._look(op)

    def _look(self, op: ir.Operation) -> None:
        tensors = [r for r in op.results if isinstance(r.type, ir.RankedTensorType)]
        if op.name == "tensor.dim":
            return
        if not tensors:
            if any(map(self._axis, op.operands)):
                raise MixingError(op, f"reads single elements of an array with an axis of {self.symbol}")
            if any(map(self._counts, op.operands)):
                self.counts.update(op.results)
        elif op.name in _MADE or op.name == "tensor.from_elements":
            self._not_counted(op, [v for v in op.operands if op.name != "tensor.empty"])
            self.axes[tensors[0]] = self._found(op, tensors[0], None)
        elif op.name == "linalg.fill":
            self._not_counted(op, op.operands)
            self.axes[tensors[0]] = self._axis(op.operands[1])
        elif op.name in _ORDERED:
            self._softmax(op)
        elif op.name.startswith("linalg."):
            self._loops(op)
        elif op.name == "tensor.cast":
            self.axes[tensors[0]] = self._axis(op.operands[0])
            self._keep_numbers(op)
        elif op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            self._reshape(op)
        elif op.name in ("tensor.extract_slice", "tensor.insert_slice", "tensor.pad"):
            self._part(op)
        elif op.name == "tensor.concat":
            self._concat(op)
        elif any(map(self._axis, op.operands)) or any(self.symbol in e.symbols for t in tensors for e in self.shapes.dims(t)):
            raise MixingError(op, "is not known to keep the entries apart")
        else:
            self.axes.update(dict.fromkeys(tensors))

    # -- values

    def _axis(self, value: ir.Value) -> EntryAxis | None:
        return self.axes.get(value)

    def _found(self, op: ir.Operation, value: ir.Value, outside: Expr | None = _ONE) -> EntryAxis | None:
        """By the extents: of arguments and of what holds equal values."""
        dims = self.shapes.dims(value)
        found = [a for a, e in enumerate(dims) if self.symbol in e.symbols]
        if not found or (outside is None and len(found) > 1):  # whoever reads it has a loop for each of these axes
            return None
        if len(found) > 1 or (outside is not None and dims[found[0]].symbol != self.symbol):
            shown = ", ".join(map(str, dims))
            raise MixingError(op, f"has an array of extents [{shown}], where {self.symbol} is no axis of its own")
        return EntryAxis(found[0], outside)

    def _counts(self, value: ir.Value) -> bool:
        """Is a scalar made from the number of entries?"""
        if isinstance(value.type, ir.RankedTensorType):
            return False
        expr = self.shapes.expr(value)
        return self.symbol in expr.symbols if expr is not None else value in self.counts

    def _not_counted(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        if any(map(self._counts, values)):
            raise MixingError(op, f"computes with the number of entries of {self.symbol}")

    def _same(self, op: ir.Operation, a: EntryAxis, b: EntryAxis) -> EntryAxis:
        """Two values whose entries lie along one loop."""
        if a.outside is None or b.outside is None:
            return b if a.outside is None else a
        if (a.outside, a.inside) != (b.outside, b.inside):
            raise MixingError(op, f"takes different entries of {self.symbol} together: they lie in another order in its operands")
        return a

    # -- operations

    def _loops(self, op: ir.Operation) -> None:
        maps = maps_of(op)
        try:
            extents = loop_extents(op, self.shapes)
        except ValueError:
            raise MixingError(op, "has loops of unknown extents") from None
        self._not_counted(op, [v for v in op.operands if not isinstance(v.type, ir.RankedTensorType)])
        own = [d for d, e in enumerate(extents) if self.symbol in e.symbols]
        loop = own[0] if own else None
        if len(own) > 1:
            raise MixingError(op, f"pairs every entry of {self.symbol} with every other")
        if loop is not None and iterator_kinds(op)[loop] == "reduction":
            raise MixingError(op, f"combines all entries of {self.symbol}")
        shared: EntryAxis | None = None
        for value, access in zip(op.operands, maps, strict=True):
            found = self._axis(value)
            for axis, e in enumerate(access.results):
                own_axis = found is not None and axis == found.axis
                if own_axis and (loop is None or position(e) != loop):
                    raise MixingError(op, f"reads other entries of {self.symbol} than its own")
                if not own_axis and loop is not None and mentions(e, loop):
                    raise MixingError(op, f"reads by the number of an entry of {self.symbol}")
            if found is not None:
                shared = found if shared is None else self._same(op, shared, found)
        yielded = self._body(op, loop, shared, loop is not None and extents[loop].symbol == self.symbol)
        results = zip(op.results, maps[len(maps) - len(op.results):], yielded, strict=True)
        for result, access, kind in results:
            if kind == NUMBER:
                self.numbers.add(result)
            at = [a for a, e in enumerate(access.results) if position(e) == loop] if loop is not None else []
            if loop is not None and not at:
                raise MixingError(op, f"has a result without an axis of {self.symbol}")
            if at:
                base = shared or EntryAxis(0, _ONE if kind == NUMBER else None)
                self.axes[result] = EntryAxis(at[0], base.outside, base.inside)
            else:
                self.axes[result] = None

    def _body(self, op: ir.Operation, loop: int | None, shared: EntryAxis | None, pure: bool) -> list[str]:
        """What the body yields. pure: the loop walks entries alone, so that its number is that of an entry."""
        kinds: dict[ir.Value, str] = {}
        for argument, value in zip(op.regions[0].blocks[0].arguments, op.operands, strict=True):
            kinds[argument] = NUMBER if value in self.numbers else PLAIN
        yielded: list[str] = []
        for inner in walk(op):
            own = [kinds.get(v) or (self._count_kind if self._counts(v) else PLAIN) for v in inner.operands]
            if inner.name == "linalg.index":
                kind = PLAIN if integer(inner.attributes["dim"]) != loop else NUMBER if pure else STEP
            elif inner.name == "tensor.extract":
                self._element(inner, own, shared)
                kind = PLAIN
            elif inner.name.startswith("tensor.") and any(map(self._axis, inner.operands)):
                raise MixingError(inner, "is not known to keep the entries apart")
            else:
                kind = self._scalar(inner, own)
            if inner.name == "linalg.yield":
                yielded = own
            kinds.update(dict.fromkeys(inner.results, kind))
        if wrong := [k for k in yielded if k not in (PLAIN, NUMBER, NEVER)]:
            raise MixingError(op, self._step_kind if wrong[0] == STEP else wrong[0])
        return yielded

    @property
    def _count_kind(self) -> str:
        return f"computes with the number of entries of {self.symbol}"

    @property
    def _step_kind(self) -> str:
        return f"computes with the number of an entry of {self.symbol}"

    def _scalar(self, op: ir.Operation, own: Sequence[str]) -> str:
        """What a scalar operation makes: an entry's number stays one behind casts and the usual care for negative indices."""
        if op.name in _CASTS:
            return own[0]
        if op.name == "arith.select":
            return own[2] if own[0] == NEVER else next((k for k in own if k != PLAIN), PLAIN)
        if own[:1] == [NUMBER] and len(own) == 2:
            bound = self.shapes.expr(op.operands[1])
            last = Expr.dim(self.symbol) - 1
            if bound == Expr.of(0) and op.name == "arith.cmpi" and integer(op.attributes["predicate"]) == _LESS:
                return NEVER
            if (op.name, bound) in (("arith.maxsi", Expr.of(0)), ("arith.minsi", last), ("arith.minui", last)):
                return NUMBER
        mixed_up = [k for k in own if k not in (PLAIN, NEVER)]
        return PLAIN if not mixed_up else self._step_kind if mixed_up[0] in (NUMBER, STEP) else mixed_up[0]

    def _element(self, op: ir.Operation, own: Sequence[str], shared: EntryAxis | None) -> None:
        """An element that a body reads at indices of its own."""
        found = self._axis(op.operands[0])
        for axis, kind in enumerate(own[1:]):
            if found is not None and axis == found.axis:
                pure = found.outside in (None, _ONE) and found.inside == _ONE
                if not (kind == NUMBER and pure) and (kind != STEP or shared is None):
                    raise MixingError(op, f"reads other entries of {self.symbol} than its own")
                if kind == STEP and shared is not None:
                    self._same(op, shared, found)
            elif kind not in (PLAIN, NEVER):
                raise MixingError(op, f"reads by the number of an entry of {self.symbol}")

    def _softmax(self, op: ir.Operation) -> None:
        found = self._axis(op.operands[0])
        if found is not None and found.axis == integer(op.attributes["dimension"]):
            raise MixingError(op, f"combines all entries of {self.symbol}")
        self.axes[op.results[0]] = found

    def _reshape(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        found, groups = self._axis(source), reassociation(op)
        if found is None:
            self.axes[result] = None
        elif op.name == "tensor.collapse_shape":
            dims = self.shapes.dims(source)
            number = next(n for n, group in enumerate(groups) if found.axis in group)
            outside, inside = found.outside, found.inside
            for axis in groups[number]:
                if axis < found.axis:
                    outside = None if outside is None else outside * dims[axis]
                elif axis > found.axis:
                    inside = inside * dims[axis]
            self.axes[result] = EntryAxis(number, outside, inside)
        else:
            self.axes[result] = self._expanded(op, found, groups[found.axis])
        self._keep_numbers(op)

    def _keep_numbers(self, op: ir.Operation) -> None:
        if op.operands[0] in self.numbers:
            self.numbers.update(op.results)

    def _expanded(self, op: ir.Operation, found: EntryAxis, group: Sequence[int]) -> EntryAxis:
        dims = self.shapes.dims(op.results[0])
        own = [a for a in group if self.symbol in dims[a].symbols]
        if len(own) == 1:
            outside, inside = _ONE, _ONE
            for axis in group:
                outside = outside * dims[axis] if axis < own[0] else outside
                inside = inside * dims[axis] if axis > own[0] else inside
            if found.outside is None:
                return EntryAxis(own[0], None)
            left, right = found.outside // outside, found.inside // inside
            if left * outside == found.outside and right * inside == found.inside:
                return EntryAxis(own[0], left, right)
        raise MixingError(op, f"makes an axis of {self.symbol} whose entries are parts of others")

    def _part(self, op: ir.Operation) -> None:
        """A slice, what takes its place, and padding: nothing of it along the entries."""
        whole = op.operands[1] if op.name == "tensor.insert_slice" else op.operands[0]
        found = self._axis(whole)
        if op.name == "tensor.insert_slice" and (part := self._axis(op.operands[0])) is not None:
            if found is None:
                raise MixingError(op, f"puts entries of {self.symbol} side by side")
            self._same(op, found, part)
        self.axes[op.results[0]] = found
        if found is None:
            return
        if op.name == "tensor.pad":
            zeros = [Expr.of(x) if isinstance(x, int) else self.shapes.expr(x)
                     for s, n in (("static_low", 1), ("static_high", 2)) for x in [mixed(op, s, n)[found.axis]]]
            if any(e != Expr.of(0) for e in zeros):
                raise MixingError(op, f"pads along the entries of {self.symbol}")
            return
        segment = 2 if op.name == "tensor.extract_slice" else 3
        size, step = mixed(op, "static_sizes", segment)[found.axis], mixed(op, "static_strides", segment + 1)[found.axis]
        extent = Expr.of(size) if isinstance(size, int) else self.shapes.expr(size)
        if extent != self.shapes.dims(whole)[found.axis] or step != 1:
            raise MixingError(op, f"takes some entries of {self.symbol} out of all")
        if op.name == "tensor.extract_slice":
            self.axes[op.results[0]] = EntryAxis(kept_axes(op).index(found.axis), found.outside, found.inside)

    def _concat(self, op: ir.Operation) -> None:
        shared: EntryAxis | None = None
        for value in op.operands:
            if (found := self._axis(value)) is not None:
                if found.axis == integer(op.attributes["dim"]):
                    raise MixingError(op, f"joins along the entries of {self.symbol}")
                shared = found if shared is None else self._same(op, shared, found)
        self.axes[op.results[0]] = shared

