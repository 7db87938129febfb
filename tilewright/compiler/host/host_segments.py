"""Launches over the sequences of a ragged call: the kernels of dense calls, one for each sequence, as one parallel loop.

A table in the arena (sequence_tables.py) holds the number of sequences, their pieces of work, then for each of them an entry
    kernel | its first piece of work among all | its pieces | its work units | the slots of its kernel
whose slots are what a sequence adds to those of the call. A launch of a call has a record on the stack,
    the table's address | for each kernel its code, and the address of the slots that all sequences have in common
and `tw_segments_<n>` is launched with it as a kernel over all pieces, so that threads share the work of a batch rather than its
units, which take longer the longer a sequence is. It finds the sequence of its first piece by bisection and calls the kernels of
those that it has pieces of with the units that begin there, so a kernel sees one dense problem: its own dims, and operands that
begin where its sequence does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import Offsets, PlannedCall
from tilewright.passes.codegen.emit import constant, gep, integer_type, loop
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.mlir import arith, ir, llvm
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.program import Check
from tilewright.runtime.ragged_dim import factors_of, total_name
from tilewright.runtime.shape import Atom, Expr

HEAD = 8  # words before the first entry: the number of sequences, their pieces of work
PIECES_OF_ALL = 1
KERNEL, FIRST, WORK, UNITS, SLOTS = range(5)  # words of an entry; its slots are the rest

_UNITS = """
llvm.func internal @tw_segments_{number}(%record: !llvm.ptr, %from: i64, %to: i64, %workspace: !llvm.ptr) {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %words = llvm.mlir.constant({words} : i64) : i64
  %params = llvm.mlir.constant({params} : i64) : i64
  %own = llvm.alloca %params x i64 : (i64) -> !llvm.ptr
  %table = llvm.load %record : !llvm.ptr -> !llvm.ptr
  %count = llvm.load %table : !llvm.ptr -> i64
  %head = llvm.getelementptr %table[{head}] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.br ^halve(%zero, %count : i64, i64)
^halve(%low: i64, %high: i64):
  %span = llvm.sub %high, %low : i64
  %wide = llvm.icmp "sgt" %span, %one : i64
  llvm.cond_br %wide, ^middle, ^next(%low : i64)
^middle:
  %ends = llvm.add %low, %high : i64
  %mid = llvm.lshr %ends, %one : i64
  %mid_rows = llvm.mul %mid, %words : i64
  %mid_entry = llvm.getelementptr %head[%mid_rows] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %mid_at = llvm.getelementptr %mid_entry[{first}] : (!llvm.ptr) -> !llvm.ptr, i64
  %mid_first = llvm.load %mid_at : !llvm.ptr -> i64
  %before = llvm.icmp "sle" %mid_first, %from : i64
  %low_next = llvm.select %before, %mid, %low : i1, i64
  %high_next = llvm.select %before, %high, %mid : i1, i64
  llvm.br ^halve(%low_next, %high_next : i64, i64)
^next(%b: i64):
  %more = llvm.icmp "slt" %b, %count : i64
  llvm.cond_br %more, ^look, ^exit
^look:
  %rows = llvm.mul %b, %words : i64
  %entry = llvm.getelementptr %head[%rows] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %pf = llvm.getelementptr %entry[{first}] : (!llvm.ptr) -> !llvm.ptr, i64
  %first = llvm.load %pf : !llvm.ptr -> i64
  %left = llvm.icmp "slt" %first, %to : i64
  llvm.cond_br %left, ^mine, ^exit
^mine:
  %pw = llvm.getelementptr %entry[{work}] : (!llvm.ptr) -> !llvm.ptr, i64
  %pu = llvm.getelementptr %entry[{units}] : (!llvm.ptr) -> !llvm.ptr, i64
  %work = llvm.load %pw : !llvm.ptr -> i64
  %units = llvm.load %pu : !llvm.ptr -> i64
  %a = llvm.sub %from, %first : i64
  %z = llvm.sub %to, %first : i64
  %begin = llvm.intr.smax(%a, %zero) : (i64, i64) -> i64
  %end = llvm.intr.smin(%z, %work) : (i64, i64) -> i64
  %any = llvm.icmp "slt" %begin, %end : i64
  llvm.cond_br %any, ^share, ^on
^share:
  %chosen = llvm.load %entry : !llvm.ptr -> i64
  %pair = llvm.shl %chosen, %one : i64
  %code_at = llvm.getelementptr %record[%pair] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %kernel_at = llvm.getelementptr %code_at[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %common_at = llvm.getelementptr %code_at[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %kernel = llvm.load %kernel_at : !llvm.ptr -> !llvm.ptr
  %common = llvm.load %common_at : !llvm.ptr -> !llvm.ptr
  %slots = llvm.getelementptr %entry[{slots}] : (!llvm.ptr) -> !llvm.ptr, i64
  llvm.br ^slot(%zero : i64)
^slot(%i: i64):
  %from_call_at = llvm.getelementptr %common[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %from_entry_at = llvm.getelementptr %slots[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %to_at = llvm.getelementptr %own[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %from_call = llvm.load %from_call_at : !llvm.ptr -> i64
  %from_entry = llvm.load %from_entry_at : !llvm.ptr -> i64
  %word = llvm.add %from_call, %from_entry : i64
  llvm.store %word, %to_at : i64, !llvm.ptr
  %following = llvm.add %i, %one : i64
  %rest = llvm.icmp "slt" %following, %params : i64
  llvm.cond_br %rest, ^slot(%following : i64), ^filled
^filled:
  llvm.call @tw_share(%kernel, %own, %units, %work, %begin, %end, %workspace)
      : (!llvm.ptr, !llvm.ptr, i64, i64, i64, i64, !llvm.ptr) -> ()
  llvm.br ^on
^on:
  %after = llvm.add %b, %one : i64
  llvm.br ^next(%after : i64)
^exit:
  llvm.return
}}
"""


def slot_count(table: DispatchTable) -> int:
    """Slots of any kernel of the table; 1 at least."""
    return max(1, *(len(k.params) for k in table.kernels))


def entry_words(table: DispatchTable) -> int:
    """Words of one sequence's entry, of any kernel of the table."""
    return SLOTS + slot_count(table)


def segments_ir(plan: HostPlan, tables: Sequence[DispatchTable], table_of: Sequence[int]) -> str:
    """The functions that are launched, one for each table with such a call: how long a unit takes is learnt by function."""
    numbers = sorted({t for t, call in zip(table_of, plan.calls, strict=True) if call.segments is not None})
    return "".join(_UNITS.format(number=n, words=entry_words(tables[n]), params=slot_count(tables[n]), head=HEAD, first=FIRST,
                                 work=WORK, units=UNITS, slots=SLOTS) for n in numbers)


@dataclass(frozen=True)
class OneSequence:
    """One sequence within the loop over all. number: its own; starts: ragged dim -> the sum of the lengths before; dims: the
    model's, with its lengths; sums: products of lengths, and lengths that are aligned -> their sum over the sequences before."""

    number: Index
    starts: Mapping[str, Index]
    dims: Mapping[str, Index]
    sums: Mapping[Expr, Index]

    def base(self, elements: Expr) -> Index:
        """Where it begins in a buffer of which a sequence takes so many elements."""
        found = Index(0)
        for own, rest in split(elements, self.starts):
            start = self.number if own == Expr.of(1) else self.starts[own.symbol] if own.symbol is not None else self.sums[own]
            found = found + start * emit_expr(rest, self.dims)
        return found


def split(elements: Expr, ragged: Mapping[str, object]) -> list[tuple[Expr, Expr]]:
    """The terms of an Expr as (product of what depends on lengths, the rest)."""
    found = []
    for factors, coefficient in elements.terms:
        own = [_expr(a) for a in factors if _expr(a).symbols & ragged.keys()]
        rest = [_expr(a) for a in factors if not _expr(a).symbols & ragged.keys()]
        found.append((reduce(mul, own, Expr.of(1)), reduce(mul, rest, Expr.of(coefficient))))
    return found


class SequenceLoop:
    """Emits loops over the sequences of a call.

    Args:
        dims: of the model. offsets: address of each ragged dim's offsets. sums: dims that are sums over the sequences, of lengths
            that are aligned or of products of lengths.
    """

    def __init__(self, ragged: Sequence[Offsets], dims: Mapping[str, Index], offsets: Sequence[ir.Value],
                 sums: Sequence[str] = ()) -> None:
        self.ragged, self.dims, self.offsets = ragged, dims, offsets
        gaps = {o.dim.name for o in ragged if o.dim.has_gaps}
        self.summed = [s for s in sums if len(factors_of(s)) > 1 or gaps.intersection(factors_of(s))]
        self.i64 = integer_type(64)
        self.count = dims[ragged[0].dim.over]

    def lengths(self, checks: Sequence[tuple[int, Check]], first: int) -> ir.Value:
        """A status: 0, or 1 + the number of a check that a sequence fails, or `first` + the number of a dim whose offsets do not
        begin at 0, do not end at the rows that there are, or make a length that is out of range, or of one that is part of a
        sum that does not add up to its dim."""
        begin = [self._at(p, Index(0)) for p in self.offsets]
        status = Index(0).value(self.i64)
        for number, (offsets, start) in enumerate(zip(self.ragged, begin, strict=True)):
            rows = total_name(offsets.dim.name)
            right = [start.eq(0)]
            if rows not in self.summed:
                right.append(self._at(self.offsets[number], self.count).eq(self.dims[rows]))
            for holds in right:
                status = arith.select(holds, status, self._number(first + number))

        def body(b: Index, before: ir.Value, *sums: ir.Value) -> list[ir.Value]:
            sequence, after = self._sequence(b, {}), before
            for number, offsets in enumerate(self.ragged):
                dim, length = offsets.dim, sequence.dims[offsets.dim.name]
                inside = arith.andi(Index(dim.lo).le(length), length.le(dim.hi))
                if dim.multiple_of > 1:
                    inside = arith.andi(inside, (length % dim.multiple_of).eq(0))
                after = arith.select(inside, after, self._number(first + number))
            good = Index(after).eq(0)
            for number, check in checks:
                holds = emit_expr(Expr.parse(check.expr), sequence.dims).eq(0)
                holds = holds if not isinstance(holds, bool) else constant(integer_type(1), int(holds))
                failed = arith.andi(good, arith.xori(holds, constant(integer_type(1), 1)))
                after = arith.select(failed, self._number(number + 1), after)
            stored = [emit_expr(self._stored(s), sequence.dims) for s in self.summed]
            return [after, *((Index(s) + p).value(self.i64) for s, p in zip(sums, stored, strict=True))]

        status, *sums = loop(0, self.count, 1, body, [status, *(self._number(0) for _ in self.summed)], self.i64)
        names = [o.dim.name for o in self.ragged]
        for name, found in zip(self.summed, sums, strict=True):
            wrong = arith.andi(Index(status).eq(0), arith.xori(Index(found).eq(self.dims[name]), constant(integer_type(1), 1)))
            status = arith.select(wrong, self._number(first + names.index(factors_of(name)[0])), status)
        return status

    def _stored(self, name: str) -> Expr:
        """What one sequence adds to a sum."""
        return reduce(mul, (self._names[n].dim.stored_length for n in factors_of(name)), Expr.of(1))

    def fill(self, call: PlannedCall, room: ir.Value, words: int, fill: Callable[[OneSequence, ir.Value], None]) -> None:
        """Fill the table of a call.

        Args:
            room: address of the table. fill: writes one sequence's entry, all words but its first piece.
        """
        llvm.StoreOp(self.count.value(self.i64), room)
        entries = gep(room, self._number(HEAD), self.i64)

        def body(sequence: OneSequence, pieces: ir.Value) -> ir.Value:
            entry = gep(entries, (sequence.number * words).value(self.i64), self.i64)
            fill(sequence, entry)
            llvm.StoreOp(pieces, gep(entry, self._number(FIRST), self.i64))
            own = Index(llvm.LoadOp(self.i64, gep(entry, self._number(WORK), self.i64)).result)
            return (Index(pieces) + own).value(self.i64)

        llvm.StoreOp(self._over(call, body), gep(room, self._number(PIECES_OF_ALL), self.i64))

    def _over(self, call: PlannedCall, body: Callable[[OneSequence, ir.Value], ir.Value]) -> ir.Value:
        """Loop over the sequences with a value that begins at 0. call: whose operands say which sums of products are needed."""
        terms = [own for e in call.segments or () if e is not None for own, _ in split(e, self._names)]
        products = sorted({t for t in terms if t != Expr.of(1) and t.symbol is None})

        def one(b: Index, carried: ir.Value, *sums: ir.Value) -> list[ir.Value]:
            sequence = self._sequence(b, dict(zip(products, map(Index, sums), strict=True)))
            after = body(sequence, carried)
            return [after, *((Index(s) + emit_expr(p, sequence.dims)).value(self.i64)
                             for p, s in zip(products, sums, strict=True))]

        return loop(0, self.count, 1, one, [self._number(0) for _ in ("carried", *products)], self.i64)[0]

    @property
    def _names(self) -> dict[str, Offsets]:
        return {o.dim.name: o for o in self.ragged}

    def _sequence(self, b: Index, sums: Mapping[Expr, Index]) -> OneSequence:
        starts = {o.dim.name: self._at(p, b) for o, p in zip(self.ragged, self.offsets, strict=True)}
        lengths = {o.dim.name: self._at(p, b + 1) - starts[o.dim.name] for o, p in zip(self.ragged, self.offsets, strict=True)}
        return OneSequence(b, starts, {**self.dims, **lengths}, sums)

    def _at(self, base: ir.Value, number: Index) -> Index:
        return Index(llvm.LoadOp(self.i64, gep(base, number.value(self.i64), self.i64)).result)

    def _number(self, value: int) -> ir.Value:
        return Index(value).value(self.i64)


def store_entry(entry: ir.Value, kernel: int, units: Index, work: ir.Value) -> None:
    """What a sequence launches. kernel: its number in the table of its dispatch. work: its pieces, 1 at least; a sequence without
    units has none."""
    i64 = integer_type(64)
    llvm.StoreOp(Index(kernel).value(i64), entry)
    number = units.value(i64)
    llvm.StoreOp(number, gep(entry, Index(UNITS).value(i64), i64))
    none = Index(0).value(i64)
    llvm.StoreOp(arith.select(Index(number).eq(0), none, work), gep(entry, Index(WORK).value(i64), i64))


def slots_of(entry: ir.Value) -> ir.Value:
    """Address of the slots in an entry."""
    i64 = integer_type(64)
    return gep(entry, Index(SLOTS).value(i64), i64)


def _expr(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))
