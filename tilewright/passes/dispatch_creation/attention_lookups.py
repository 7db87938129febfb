"""Keys and values that a table names, such as the pages of a cache, are read through it by the attention.

A gather that only the attention reads becomes an operation of its region, over the axes that the attention sees: where it
reads is computed from these, through the reshapes between. Places in the table are kept inside of it, since a tile may run
past the last key. A mask that compares places with lengths from memory is computed there too, so that a kernel finds how many
keys there are and leaves out the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.analysis.index_terms import Elements, compared
from tilewright.passes.analysis.op_kinds import expensive
from tilewright.passes.dispatch_creation.fuse import REGION
from tilewright.passes.linalg.builders import generic
from tilewright.passes.linalg.clone import clone, producers_first, users
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper
from tilewright.passes.linalg.structured import body, inputs, iterator_kinds, looked_up
from tilewright.passes.linalg.symbolic import integer, reassociation
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner, position, tensor
from tilewright.runtime.shape import Expr

_VIEWS = (*RESHAPES, "tensor.cast")


def with_lookups(fn: ir.Operation, members: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The members of an attention's region, with what becomes members: gathers of its keys and values, masks of lengths."""
    views, found = Reshaper(fn), list(members)
    view = Attention.of(members, views.shapes)
    for contraction, which in ((view.scores, 1 - view.query), (view.mixed, 1 - view.weights)):
        lookup = _Lookup.of(contraction.operand(which))
        if lookup is not None and _readers(lookup.gather.results[0]) <= {view.scores.op, view.mixed.op}:
            made = lookup.build(contraction.op, views)
            contraction.op.operands[which] = made.results[0]
            _join(found, made, contraction.op)
    for reader in [op for op in members if op.name == "linalg.generic" and "reduction" not in iterator_kinds(op)]:
        for number, value in enumerate(inputs(reader)):
            if (made := owner(value)) is None or made not in members:
                reader.operands[number] = _copied(_length_mask(value, views), value, reader, found)
    return found


def _join(members: list[ir.Operation], op: ir.Operation, reader: ir.Operation) -> None:
    """An operation before a member that reads it becomes a member."""
    op.attributes[REGION] = reader.attributes[REGION]
    members.insert(members.index(reader), op)


def _copied(ops: Sequence[ir.Operation], value: ir.Value, reader: ir.Operation, members: list[ir.Operation]) -> ir.Value:
    """The value as copies of the operations, which become members, compute it; itself where there are none."""
    copies: dict[ir.Value, ir.Value] = {}
    for op in ops:
        with ir.InsertionPoint(reader):
            made = clone(op, partial(_mapped, copies))
        copies.update(zip(op.results, made.results, strict=True))
        _join(members, made, reader)
    return copies.get(value, value)


def _mapped(copies: Mapping[ir.Value, ir.Value], value: ir.Value) -> ir.Value:
    return copies.get(value, value)


def _length_mask(value: ir.Value, views: Reshaper) -> list[ir.Operation]:
    """The operations that make a mask by comparing places with integers from memory, producers first; none of any other value."""
    made = owner(value)
    if made is None or made.name != "linalg.generic" or REGION not in made.attributes or "reduction" in iterator_kinds(made):
        return []
    test = owner(operations(body(made))[-1].operands[0])
    if test is None or test.name != "arith.cmpi":
        return []
    elements = Elements()
    loops = {d: d for d in range(maps_of(made)[0].n_dims)}
    if compared(views.shapes, test, loops, elements) is None or not elements.found:
        return []
    return [op for op in producers_first([made], _Integers()) if REGION in op.attributes]


class _Integers:
    """Elementwise operations that compute integers."""

    def __contains__(self, op: object) -> bool:
        assert isinstance(op, ir.Operation)
        return (op.name == "linalg.generic" and len(op.results) == 1 and "reduction" not in iterator_kinds(op)
                and isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.IntegerType) and not expensive(op))


def _readers(value: ir.Value) -> set[ir.Operation]:
    """What reads a value, through reshapes and casts."""
    found: set[ir.Operation] = set()
    for user in users(value):
        found |= _readers(user.results[0]) if user.name in _VIEWS and REGION not in user.attributes else {user}
    return found


@dataclass(frozen=True)
class _Lookup:
    """A tensor that is a gather behind reshapes and casts, the last of which comes first."""

    value: ir.Value
    chain: tuple[ir.Operation, ...]
    gather: ir.Operation
    extract: ir.Operation

    @staticmethod
    def of(value: ir.Value) -> _Lookup | None:
        """None where it is anything else, or where what is read follows from no data."""
        chain, source = [], value
        while (op := owner(source)) is not None and op.name in _VIEWS and REGION not in op.attributes:
            chain.append(op)
            source = op.operands[0]
        extract = looked_up(op) if op is not None else None
        if op is None or extract is None or not inputs(op):
            return None
        numbers = all(isinstance(ir.RankedTensorType(v.type).element_type, ir.IntegerType) for v in inputs(op))
        plain = all(position(e) is not None for m in maps_of(op) for e in m.results)
        return _Lookup(value, tuple(chain), op, extract) if numbers and plain else None

    def build(self, reader: ir.Operation, views: Reshaper) -> ir.Operation:
        """The gather over the axes of the value, before its reader."""
        type_, dims = ir.RankedTensorType(self.value.type), views.shapes.dims(self.value)
        with ir.InsertionPoint(reader), self.gather.location:
            sizes = [views.values.value(d) for a, d in enumerate(dims) if type_.is_dynamic_dim(a)]
            into = ir.Operation.create("tensor.empty", [type_], sizes).results[0]
            made = generic([], [into], [ir.AffineMap.get_identity(type_.rank)], ["parallel"] * type_.rank, [type_])
            with ir.InsertionPoint(ir.Block.create_at_start(made.regions[0], [type_.element_type])):
                self._fill(_Places(views), type_.rank)
        return made

    def _fill(self, places: _Places, rank: int) -> None:
        """The body: that of the gather at the place that the value's element has there."""
        at = [_index(d) for d in range(rank)]
        for op in self.chain:
            at = places.behind(op, at)
        known: dict[ir.Value, ir.Value] = {}
        for argument, table, m in zip(body(self.gather).arguments, inputs(self.gather), maps_of(self.gather), strict=False):
            if next(iter(argument.uses), None) is not None:
                known[argument] = places.element(table, [at[position(e) or 0] for e in m.results])
        for op in operations(body(self.gather)):
            if op.name == "linalg.index":
                known[op.results[0]] = at[integer(op.attributes["dim"])]
                continue
            made = op.clone().operation
            for number, value in enumerate(op.operands):
                made.operands[number] = known.get(value, value)
            known.update(zip(op.results, made.results, strict=True))


@dataclass(frozen=True)
class _Places:
    """Index arithmetic in a body, over sizes that are values of the function."""

    views: Reshaper

    def behind(self, op: ir.Operation, at: Sequence[ir.Value]) -> list[ir.Value]:
        """Where an element of a reshape's result lies in its operand."""
        if op.name == "tensor.cast":
            return list(at)
        expands = op.name == "tensor.expand_shape"
        fine = self.views.shapes.dims(op.results[0] if expands else op.operands[0])
        found: list[ir.Value] = []
        for number, group in enumerate(reassociation(op)):
            if expands:
                found.append(self._linear([at[a] for a in group], [fine[a] for a in group]))
            else:
                found += self._apart(at[number], [fine[a] for a in group])
        return found

    def element(self, table: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """An element of a tensor, the last one along an axis where the place is behind it."""
        dims = self.views.shapes.dims(table)
        inside = [arith.minui(x, self._size(d - 1)) for x, d in zip(at, dims, strict=True)]
        return tensor.ExtractOp(table, inside).result

    def _linear(self, at: Sequence[ir.Value], sizes: Sequence[Expr]) -> ir.Value:
        total: ir.Value | None = None
        for place, size in zip(at, sizes, strict=True):
            if size != Expr.of(1):
                total = place if total is None else arith.addi(arith.muli(total, self._size(size)), place)
        return at[0] if total is None else total

    def _apart(self, place: ir.Value, sizes: Sequence[Expr]) -> list[ir.Value]:
        """The coordinates, slowest first, of a number in a box of these sizes."""
        found: list[ir.Value] = []
        for number in reversed(range(len(sizes))):
            size = sizes[number]
            if size == Expr.of(1):
                found.insert(0, self._size(Expr.of(0)))
            elif all(s == Expr.of(1) for s in sizes[:number]):
                found.insert(0, place)
            else:
                found.insert(0, arith.remui(place, self._size(size)))
                place = arith.divui(place, self._size(size))
        return found

    def _size(self, size: Expr) -> ir.Value:
        if size.constant is not None:
            return arith.constant(ir.IndexType.get(), size.constant)
        return self.views.values.value(size)


def _index(loop: int) -> ir.Value:
    """linalg.index of a loop."""
    at = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), loop)
    return ir.Operation.create("linalg.index", [ir.IndexType.get()], attributes={"dim": at}).results[0]
