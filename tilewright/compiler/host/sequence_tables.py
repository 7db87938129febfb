"""The tables of a ragged call on the host: what each sequence adds to the calls that are made for all of them.

They lie one after the other in the arena. Calls that differ in their memory alone, those of equal layers, have one table, which
is filled once, in front of all launches. An entry holds the kernel that dispatch chose for the sequence, its work, and in its
slots the extents and strides of the sequence and how far behind those of the call its operands begin (host_segments.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.compiler.host.block_tables import base_offset, equal_calls
from tilewright.compiler.host.decision_tree import emit_tree, layout_of
from tilewright.compiler.host.host_groups import PIECES, pieces
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.host_segments import (
    HEAD,
    PIECES_OF_ALL,
    OneSequence,
    SequenceLoop,
    entry_words,
    slot_count,
    slots_of,
    store_entry,
)
from tilewright.compiler.host.host_steps import Scope
from tilewright.compiler.host.host_tensor_maps import call_pointer
from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.compiler.host.run_values import RunValues
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import arith, ir, llvm
from tilewright.runtime.device import KERNELS, KERNELS_PER_CALL, PARALLEL_FOR
from tilewright.runtime.program.dispatch import DispatchTable, Leaf
from tilewright.runtime.program.kernel import Param, offset_symbol
from tilewright.runtime.shape import Expr

_LINE = 8  # words


@dataclass(frozen=True)
class _Group:
    """Equal calls. number: of their dispatch table. at: where what is filled for them lies, in bytes from the first one."""

    call: PlannedCall
    table: DispatchTable
    number: int
    at: Expr

    @property
    def layouts(self) -> list[tuple[Param, ...]]:
        """The parameters of kernels, those that several have once."""
        return list(dict.fromkeys(k.params for k in self.table.kernels))

    @property
    def record_words(self) -> int:
        """Of a launch of one of the calls."""
        return 1 + 2 * len(self.table.kernels) + len(self.layouts) * slot_count(self.table)


class SequenceTables:
    """Emits them and the launches that read them. record: room for what a launch is made with, of record_words."""

    def __init__(self, plan: HostPlan, tables: Sequence[DispatchTable], table_of: Sequence[int]) -> None:
        self.plan = plan
        self.i64 = integer_type(64)
        self.record: ir.Value | None = None
        self.ragged = {o.dim.name: o for o in plan.ragged}
        self.of_call = equal_calls(plan, table_of)
        self.groups: list[_Group] = []
        self.bytes = Expr.of(0)
        first = {group: number for number, group in reversed(self.of_call.items())}
        for group in range(len(first)):
            table = tables[table_of[first[group]]]
            self.groups.append(_Group(plan.calls[first[group]], table, table_of[first[group]], self.bytes))
            lines = -(-entry_words(table) // _LINE)
            self.bytes = self.bytes + Expr.dim(plan.ragged[0].dim.over) * (lines * _LINE * 8) + HEAD * 8

    def __bool__(self) -> bool:
        return bool(self.groups)

    @cached_property
    def record_words(self) -> int:
        """Room for the record of any launch."""
        return max((g.record_words for g in self.groups), default=0)

    # -- once a call

    def fill(self, run: RunValues, at: ir.Value, sequences: SequenceLoop) -> None:
        """All tables. at: address of the first one."""
        for group in self.groups:
            self._fill(group, run, self._table(group, run, at), sequences)

    def _fill(self, group: _Group, run: RunValues, table: ir.Value, sequences: SequenceLoop) -> None:
        call = group.call

        def entry_of(sequence: OneSequence, entry: ir.Value) -> None:
            local = {name: emit_expr(e, sequence.dims) for name, e in zip(call.workload.dims, call.dims, strict=True)}
            bases = [Index(0) if e is None else sequence.base(e) for e in call.segments or ()]
            layout = {name: emit_expr(e, sequence.dims) for name, e in layout_of(call, group.table).items()}
            layout |= {n: e + bases[i] for i in range(len(bases)) if (e := layout.get(n := offset_symbol(i))) is not None}

            def leaf(chosen: Leaf) -> None:
                kernel = group.table.kernels[chosen.kernel]
                slots = slots_of(entry)
                for place, param in enumerate(kernel.params):
                    llvm.StoreOp(self._of_sequence(param, call, bases, sequence, local), self._element(slots, place))
                units = emit_expr(Expr.parse(kernel.grid[0]), local)
                store_entry(entry, chosen.kernel, units, pieces(call.workload, local, self.i64))

            emit_tree(group.table.root, {**local, **layout}, leaf)

        sequences.fill(call, table, entry_words(group.table), entry_of)

    def _of_sequence(self, param: Param, call: PlannedCall, bases: Sequence[Index], sequence: OneSequence,
                     local: Mapping[str, Index]) -> ir.Value:
        """What a sequence adds to a slot."""
        if param.kind == "pointer":
            operand = call.operands[param.index]
            own = emit_expr(base_offset(operand, self.ragged), sequence.dims)
            return ((bases[param.index] + own) * operand.dtype.bytes).value(self.i64)
        if param.kind == "stride":
            return emit_expr(call.operands[param.index].strides[param.axis], sequence.dims).value(self.i64)
        return local[param.name].value(self.i64) if param.kind == "dim" else self._number(0)

    # -- each launch

    def launch(self, number: int, run: RunValues, at: ir.Value, scope: Scope) -> None:
        """One launch over the units of all sequences."""
        group, call, record = self.groups[self.of_call[number]], self.plan.calls[number], self.record
        assert record is not None
        table = self._table(group, run, at)
        llvm.StoreOp(table, record)
        for place, word in self._common(group, number, call, run, scope, record):
            llvm.StoreOp(word, self._element(record, place))
        total = Index(self._word(table, PIECES_OF_ALL))
        code = llvm.AddressOfOp(llvm.PointerType.get(), f"tw_segments_{group.number}").result
        fn = self._word(run.table, PARALLEL_FOR, llvm.PointerType.get())
        count = arith.select(total.le(PIECES), self._number(1), run.threads)
        call_pointer([fn, run.table, code, record, total.value(self.i64), count, run.work, run.stride.value(self.i64)])

    def _common(self, group: _Group, number: int, call: PlannedCall, run: RunValues, scope: Scope,
                record: ir.Value) -> Iterator[tuple[int, ir.Value]]:
        """The words of a record behind the first: (place, value)."""
        kernels, width = group.table.kernels, slot_count(group.table)
        codes = self._word(run.table, KERNELS, llvm.PointerType.get())
        first = 1 + 2 * len(kernels)
        layouts = group.layouts
        for k, kernel in enumerate(kernels):
            yield 1 + 2 * k, self._word(codes, number * KERNELS_PER_CALL + k, llvm.PointerType.get())
            yield 2 + 2 * k, self._element(record, first + layouts.index(kernel.params) * width)
        for own, params in enumerate(layouts):
            for slot in range(width):
                param = params[slot] if slot < len(params) else None
                yield first + own * width + slot, self._of_call(param, call, run, scope)

    def _of_call(self, param: Param | None, call: PlannedCall, run: RunValues, scope: Scope) -> ir.Value:
        """What all sequences have in common in a slot."""
        if param is not None and param.kind == "pointer":
            operand = call.operands[param.index]
            return scope.pointer(replace(operand, offset=operand.offset - base_offset(operand, self.ragged)))
        if param is not None and param.kind == "workspace":
            return run.work
        if param is not None and param.kind == "scalar":
            return self._word(run.scalars, call.scalars[param.index])
        return self._number(0)

    def _table(self, group: _Group, run: RunValues, at: ir.Value) -> ir.Value:
        return gep(at, emit_expr(group.at, run.dims).value(self.i64), integer_type(8))

    def _word(self, base: ir.Value, number: int, type_: ir.Type | None = None) -> ir.Value:
        return llvm.LoadOp(type_ or self.i64, self._element(base, number)).result

    def _element(self, base: ir.Value, number: int) -> ir.Value:
        return gep(base, self._number(number), self.i64)

    def _number(self, value: int) -> ir.Value:
        return Index(value).value(self.i64)
