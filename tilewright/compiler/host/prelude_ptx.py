"""The prelude of a ragged call on a GPU, as PTX: one launch that fills the block tables of all kernels from the offsets there.

A block of threads fills the tables of one call and of those equal to it. First every sequence gets its kernel, by the decision
tree of the call, and its number of blocks: none where its length is outside the range, where it lies outside the rows, or where
it breaks a check of the model. Then its place among those of the same kernel: the sequence with most blocks comes first; some
threads share the comparisons with all others. They write its entry, and the address of that for each of its blocks; blocks that
the grid has beyond those get 0. What the threads tell each other lies in shared memory where that holds as many sequences as the
model takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.compiler.host.block_tables import CHOICE, WORD, BlockTables, CallTables, KernelTable, base_offset
from tilewright.compiler.host.decision_tree import layout_of
from tilewright.compiler.host.host_segments import split
from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.compiler.host.ptx_writer import PtxWriter, Word
from tilewright.runtime.program.dispatch import Leaf, Node
from tilewright.runtime.program.kernel import OUTER, MicroKernel, Param, offset_symbol
from tilewright.runtime.program.program import Check
from tilewright.runtime.ragged_dim import total_name
from tilewright.runtime.shape import Expr

SYMBOL, THREADS = "tw_prelude", 256
_LANES = 8  # threads that place one sequence; a power of two
_ROOM = 32768  # bytes of shared memory, of 48 KiB that every kernel may have


def prelude_kernel(tables: BlockTables, dims: Sequence[str]) -> MicroKernel:
    """How it is launched. Slots: the address of the tables, those of the offsets of each ragged dim, then the model's dims."""
    count = 1 + len(tables.plan.ragged) + len(dims)
    return MicroKernel(SYMBOL, "", "prelude", "prelude", tuple(Param("scalar", i) for i in range(count)),
                       (str(len(tables.groups)), "1", "1"), threads=THREADS)


def prelude_ptx(tables: BlockTables, dims: Sequence[str], checks: Sequence[Check]) -> str:
    """The module. dims: of the model, in the order of its slots. checks: of each sequence."""
    return _Prelude(tables, dims, checks).text()


class _Prelude:
    def __init__(self, tables: BlockTables, dims: Sequence[str], checks: Sequence[Check]) -> None:
        self.tables, self.checks, self.ragged = tables, checks, tables.plan.ragged
        self.ptx = ptx = PtxWriter()
        self.base = ptx.parameter(0)
        self.offsets = {o.dim.name: ptx.parameter(1 + n) for n, o in enumerate(self.ragged)}
        self.dims = {name: ptx.parameter(1 + len(self.ragged) + n) for n, name in enumerate(dims)}
        self.parameters = 1 + len(self.ragged) + len(dims)
        self.count = self.dims[self.ragged[0].dim.over]
        self.thread, self.block = ptx.special("tid.x"), ptx.special("ctaid.x")
        self.names = {o.dim.name: o for o in self.ragged}
        most = tables.plan.bounds[self.ragged[0].dim.over][1] * CHOICE
        self.space = "shared" if most * WORD <= _ROOM else "global"
        self.room = ptx.shared("choices", max(1, int(most))) if self.space == "shared" else None
        self.used = ptx.shared("used", max(len(g.kernels) for g in tables.groups))

    def text(self) -> str:
        for number, group in enumerate(self.tables.groups):
            other = self.ptx.condition("ne", self.block, self.ptx.number(number))
            self.ptx.unless(other, lambda group=group: self._fill(group))  # type: ignore[misc]
        return self.ptx.entry(SYMBOL, self.parameters, THREADS)

    def _at(self, offset: Expr) -> Word:
        return self.base + self.ptx.expr(offset, self.dims)

    def _sequence(self, number: Word) -> tuple[dict[str, Word], dict[str, Word]]:
        """Where a sequence begins among the rows of each ragged dim, and the model's dims with its lengths."""
        starts, lengths = {}, dict(self.dims)
        for name, offsets in self.offsets.items():
            at = offsets + number * self.ptx.number(WORD)
            starts[name], end = self.ptx.load(at), self.ptx.load(at, WORD)
            lengths[name] = self.ptx.made("sub.s64", end, starts[name])
        return starts, lengths

    def _fill(self, group: CallTables) -> None:
        ptx = self.ptx
        choices = self._at(group.choices) if self.room is None else self.room
        placed = [(self._at(k.entries), self._at(k.blocks), ptx.expr(k.most, self.dims)) for k in group.kernels]
        first, lane = ptx.expr(Expr.dim("t") // _LANES, {"t": self.thread}), ptx.expr(Expr.dim("t") % _LANES, {"t": self.thread})
        with ptx.counted(self.thread, ptx.number(len(group.kernels)), THREADS) as kernel:
            ptx.store(ptx.number(0), self.used + kernel * ptx.number(WORD), space="shared")
        ptx.barrier()
        with ptx.counted(self.thread, self.count, THREADS) as number:
            self._choose(group, number, choices + number * ptx.number(CHOICE * WORD))
        ptx.barrier()
        with ptx.counted(first, self.count, THREADS // _LANES) as number:
            self._order(number, lane, choices)
        ptx.barrier()
        with ptx.counted(first, self.count, THREADS // _LANES) as number:
            self._enter(group, number, lane, choices, placed)
        for number_of_kernel, (_, blocks, most) in enumerate(placed):
            used = ptx.load(self.used, number_of_kernel * WORD, "shared")
            with ptx.counted(used + self.thread, most, THREADS) as block:
                ptx.store(ptx.number(0), blocks + block * ptx.number(WORD))

    def _choice(self, at: Word) -> tuple[Word, Word]:
        return self.ptx.load(at, 0, self.space), self.ptx.load(at, WORD, self.space)

    # -- the kernel of a sequence

    def _choose(self, group: CallTables, number: Word, at: Word) -> None:
        ptx, call = self.ptx, group.call
        starts, dims = self._sequence(number)
        local = {n: ptx.expr(e, dims) for n, e in zip(call.workload.dims, call.dims, strict=True)}
        layout = {n: ptx.expr(e, dims) for n, e in layout_of(call, group.table).items()}
        for operand, elements in enumerate(call.segments or ()):
            name = offset_symbol(operand)
            if name in layout and elements is not None:
                layout[name] = layout[name] + self._begin(elements, number, starts, dims, self._sums_before(call, number))
        kernel, units = ptx.register(ptx.number(0)), ptx.register(ptx.number(0))

        def tree(node: Node) -> None:
            if isinstance(node, Leaf):
                ptx.put(kernel, ptx.number(node.kernel))
                ptx.put(units, ptx.expr(Expr.parse(group.table.kernels[node.kernel].grid[0]), local))
                return
            below = ptx.condition("le", ptx.expr(Expr.parse(node.expr), {**local, **layout}), ptx.number(node.bound))
            ptx.branch(below, lambda: tree(node.below), lambda: tree(node.above))

        tree(group.table.root)
        for wrong in self._wrong(number, starts, dims, self._sums_before(call, number)):
            ptx.put(units, ptx.chosen(wrong, ptx.number(0), units))
        for place, value in enumerate((kernel, units, ptx.number(0))):
            ptx.store(value, at, place * WORD, self.space)
        ptx.add_to(self.used + kernel * ptx.number(WORD), units, space="shared")

    def _wrong(self, number: Word, starts: Mapping[str, Word], dims: Mapping[str, Word],
               sums: Mapping[Expr, Word]) -> list[str]:
        """Conditions under which a sequence is left out, since nobody waits to be told of it."""
        ptx, found = self.ptx, []
        for name, offsets in self.names.items():
            dim, length = offsets.dim, dims[name]
            start = self._begin(dim.stored_length, number, starts, dims, sums)
            end = start + length
            found += [ptx.condition("lt", start, ptx.number(0)), ptx.condition("gt", end, self.dims[total_name(name)]),
                      ptx.condition("lt", length, ptx.number(dim.lo)), ptx.condition("gt", length, ptx.number(dim.hi))]
            if dim.multiple_of > 1:
                left = ptx.expr(Expr.dim("n") % dim.multiple_of, {"n": length})
                found.append(ptx.condition("ne", left, ptx.number(0)))
        found += [ptx.condition("ne", ptx.expr(Expr.parse(c.expr), dims), ptx.number(0)) for c in self.checks]
        return found

    # -- its place and its entry

    def _products(self, call: PlannedCall) -> list[Expr]:
        """Products of lengths, and lengths that are aligned, whose sums over the sequences before say where a sequence begins."""
        elements = [*(e for e in call.segments or () if e is not None), *(o.dim.stored_length for o in self.ragged)]
        terms = [own for e in elements for own, _ in split(e, self.names)]
        return sorted({t for t in terms if t != Expr.of(1) and t.symbol is None})

    def _sums_before(self, call: PlannedCall, number: Word) -> dict[Expr, Word]:
        sums = {p: self.ptx.register(self.ptx.number(0)) for p in self._products(call)}
        if sums:
            with self.ptx.counted(self.ptx.number(0), number, 1) as other:
                _, dims = self._sequence(other)
                for product, held in sums.items():
                    self.ptx.put(held, held + self.ptx.expr(product, dims))
        return sums

    def _begin(self, elements: Expr, number: Word, starts: Mapping[str, Word], dims: Mapping[str, Word],
               sums: Mapping[Expr, Word]) -> Word:
        """Where a sequence begins in a buffer of which each takes so many elements."""
        found = self.ptx.number(0)
        for own, rest in split(elements, self.names):
            start = number if own == Expr.of(1) else starts[own.symbol] if own.symbol is not None else sums[own]
            found = found + start * self.ptx.expr(rest, dims)
        return found

    def _order(self, number: Word, lane: Word, choices: Word) -> None:
        """Add the blocks of the sequences before this one, of those that a thread looks at, to what the others find."""
        ptx, size = self.ptx, self.ptx.number(CHOICE * WORD)
        at = choices + number * size
        chosen, units = self._choice(at)
        found = ptx.register(ptx.number(0))
        with ptx.counted(lane, self.count, _LANES) as other:
            kernel, others = self._choice(choices + other * size)
            more, equal = ptx.condition("gt", others, units), ptx.condition("eq", others, units)
            earlier, same = ptx.condition("lt", other, number), ptx.condition("eq", kernel, chosen)
            ptx.line(f"and.pred {equal}, {equal}, {earlier};")
            ptx.line(f"or.pred {more}, {more}, {equal};")
            ptx.line(f"and.pred {more}, {more}, {same};")
            ptx.put(found, found + ptx.chosen(more, others, ptx.number(0)))
        ptx.add_to(at, found, 2 * WORD, self.space)

    def _enter(self, group: CallTables, number: Word, lane: Word, choices: Word,
               placed: Sequence[tuple[Word, Word, Word]]) -> None:
        ptx = self.ptx
        at = choices + number * ptx.number(CHOICE * WORD)
        chosen, units = self._choice(at)
        first = ptx.load(at, 2 * WORD, self.space)
        starts, dims = self._sequence(number)
        sums = self._sums_before(group.call, number)
        for kernel_number, (table, (entries, blocks, most)) in enumerate(zip(group.kernels, placed, strict=True)):
            entry = entries + number * ptx.number(table.words * WORD)

            def fill(table: KernelTable = table, entry: Word = entry, blocks: Word = blocks, most: Word = most) -> None:
                ptx.unless(ptx.condition("ne", lane, ptx.number(0)),
                           lambda: self._entry(group.call, table, entry, first, (number, starts, dims, sums)))
                end = ptx.made("min.s64", first + units, most)
                with ptx.counted(first + lane, end, _LANES) as block:
                    ptx.store(entry, blocks + block * ptx.number(WORD))

            ptx.unless(ptx.condition("ne", chosen, ptx.number(kernel_number)), fill)

    def _entry(self, call: PlannedCall, table: KernelTable, entry: Word, first: Word,
               sequence: tuple[Word, Mapping[str, Word], Mapping[str, Word], Mapping[Expr, Word]]) -> None:
        ptx, (number, starts, dims, sums) = self.ptx, sequence
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        ptx.store(first, entry)
        for place, param in enumerate((p for p in table.kernel.params if p.by_sequence), 1):
            if param.kind == "dim":
                value = ptx.expr(local[param.name], dims)
            elif param.kind == "stride":
                value = ptx.expr(call.operands[param.index].strides[param.axis], dims)
            elif param.kind == "tensor_map":
                whole = param.axis == OUTER
                value = number if whole else self._begin(self._rows_of(call, param), number, starts, dims, sums)
            else:
                operand, elements = call.operands[param.index], (call.segments or ())[param.index]
                value = ptx.expr(base_offset(operand, self.names), dims)
                if elements is not None:
                    value = value + self._begin(elements, number, starts, dims, sums)
                value = value * ptx.number(operand.dtype.bytes)
            ptx.store(value, entry, place * WORD)

    def _rows_of(self, call: PlannedCall, param: Param) -> Expr:
        """Rows from a sequence to the next, along an axis of an operand whose sequences are rows."""
        shape = (*call.workload.inputs, *call.workload.outputs)[param.index].dims
        name = shape[param.axis].substitute(dict(zip(call.workload.dims, call.dims, strict=True))).symbol
        assert name is not None
        return self.names[name].dim.stored_length
