"""Lookups of matrices that a contraction multiplies, with their table laid out in panels as pack-constants lays out operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import used_loops
from tilewright.passes.analysis.named_rows import NamedRows
from tilewright.passes.linalg.builders import i64, renumber
from tilewright.passes.linalg.structured import body, inits, inputs, looked_up, rebuild, use_count, users
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, replace_all_uses


@dataclass(frozen=True)
class TableLookup:
    """A lookup that one operation reads. axes: for each axis of the table the axis of the result, None where data name the
    place."""

    op: ir.Operation
    table: ir.Value
    axes: tuple[int | None, ...]

    @staticmethod
    def of(value: ir.Value) -> TableLookup | None:
        """None where a place depends on more than the axes along which data name it."""
        op = owner(value)
        named = NamedRows.of(op)
        if op is None or named is None or use_count(value) != 1:
            return None
        extract, kept = looked_up(op), {a for a in named.axes if a is not None}
        *reads, written = maps_of(op)
        made = owner(inits(op)[0])
        if made is None or made.name != "tensor.empty" or written != ir.AffineMap.get_identity(written.n_dims):
            return None
        if any(used_loops(m) & kept for m in reads):
            return None
        own = [o for o in operations(body(op)) if o.name == "linalg.index" and integer(o.attributes["dim"]) in kept]
        if any(user != extract for o in own for user in users(o.results[0])):
            return None
        return TableLookup(op, named.table, named.axes)

    def outer(self, order: Sequence[int]) -> list[int]:
        """Axes of the result: those along which data name places, then those of the axes `order` of the table."""
        rank = ir.RankedTensorType(self.op.results[0].type).rank
        return [*(r for r in range(rank) if r not in self.axes), *(r for a in order if (r := self.axes[a]) is not None)]

    def in_panels(self, order: Sequence[int], column: int, packed: Sequence[int], side: int) -> ir.Value:
        """What is looked up as [panel, outer axes, column of the panel], its table being [panel, axes of `order`, column of the
        panel].

        order, column: axes of the table; packed: extents of the new one; side: more than 1 where so many values of the last of
        `order` come last, in both.
        """
        old = ir.RankedTensorType(self.op.results[0].type)
        outer = self.outer(order)
        number = {r: n for n, r in enumerate(outer, 1)}
        own = [n for n, a in enumerate(order, 1) if self.axes[a] is not None]
        within = {number[self.axes[order[n - 1]] or 0]: packed[n] for n in own}  # of the axes that are the table's
        last = list(packed[1 + len(order):])
        shape = [packed[0], *(within.get(number[r], old.shape[r]) for r in outer), *last]
        made = owner(inits(self.op)[0])
        assert made is not None
        with ir.InsertionPoint(self.op):
            empty = ir.Operation.create("tensor.empty", [ir.RankedTensorType.get(shape, old.element_type)], list(made.operands))
        maps = [ir.AffineMap.get(len(shape), 0, [renumber(e, number) for e in m.results]) for m in maps_of(self.op)[:-1]]
        new = rebuild(self.op, inputs(self.op), [empty.results[0]], [*maps, ir.AffineMap.get_identity(len(shape))],
                      ["parallel"] * len(shape), lambda block: self._read(block, order, number, len(last)))
        return new.results[0]

    def _read(self, block: ir.Block, order: Sequence[int], number: Mapping[int, int], last: int) -> None:
        """The body reads the table in panels. number: of the new loop along each outer axis; last: loops behind them."""
        extract = owner(operations(block)[-1].operands[0])
        assert extract is not None
        named, replaced = list(extract.operands)[1:], []
        for op in [o for o in operations(block) if o.name == "linalg.index"]:
            at = integer(op.attributes["dim"])
            if at in self.axes:
                replaced.append(op)
            else:
                op.attributes["dim"] = i64(number[at])

        def loop(n: int) -> ir.Value:
            return ir.Operation.create("linalg.index", [ir.IndexType.get()], attributes={"dim": i64(n)}).results[0]

        with ir.InsertionPoint(extract):
            within = [named[a] if (r := self.axes[a]) is None else loop(number[r]) for a in order]
            places = [loop(0), *within, *(loop(1 + len(number) + n) for n in range(last))]
            found = ir.Operation.create("tensor.extract", [extract.results[0].type], [self.table, *places])
        replace_all_uses(extract.results[0], found.results[0])
        extract.erase()
        for op in replaced:
            op.erase()
