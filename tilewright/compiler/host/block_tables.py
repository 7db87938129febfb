"""Block tables of a ragged program for GPUs: where they lie in the arena, and what an entry of one sequence holds.

Calls that are made for each sequence are one launch for each kernel that their dispatch may choose. A block finds its sequence in
the table of its kernel (runtime/program/kernel.py, Param.by_sequence). Calls that differ in their memory alone, those of equal
layers, have one table. All are filled by one launch in front of the calls (prelude_ptx.py), from the offsets on the device. Grids
are bounds over the number of sequences and the sums of their lengths, so that nobody has to wait for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import PlacedOperand, PlannedCall
from tilewright.passes.dispatch_creation.outlined import in_whole_tiles, segmented
from tilewright.passes.spaces.segments import Segments
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.ragged_dim import total
from tilewright.runtime.shape import Atom, Expr

WORD = 8
CHOICE = 3  # words of a sequence in front of the tables of a call: the number of its kernel, of its blocks, and of those before
_ALIGNED = 64


def with_block_tables(plan: HostPlan) -> HostPlan:
    """The plan for a GPU: calls that are made for each sequence have workloads whose kernels serve all of them, products over all
    rows such whose whole tiles have no masks. In the current context."""
    ragged, sums = {o.dim.name: o.dim.stored_length for o in plan.ragged}, set(plan.sums)
    made: dict[tuple[str, str], Workload] = {}
    calls = []
    for call in plan.calls:
        if call.segments is not None:
            call = replace(call, operands=_without_idle_strides(call))
            segments = _segments(call, ragged)
            key = call.workload.key, str(segments)
            if key not in made:
                made[key] = segmented(call.workload, segments)
            call = replace(call, workload=made[key])
        elif call.workload.kind is Kind.CONTRACTION and any(e.symbols & sums for e in call.dims):
            key = call.workload.key, ""
            if key not in made:
                made[key] = in_whole_tiles(call.workload)
            call = replace(call, workload=made[key])
        calls.append(call)
    return replace(plan, calls=calls)


def _without_idle_strides(call: PlannedCall) -> tuple[PlacedOperand, ...]:
    """The operands with strides of 0 along axes of extent 1, along which nothing moves."""
    shapes = [o.dims for o in (*call.workload.inputs, *call.workload.outputs)]
    return tuple(replace(o, strides=tuple(Expr.of(0) if e.constant == 1 else s for s, e in zip(o.strides, shape, strict=True)))
                 for o, shape in zip(call.operands, shapes, strict=True))


def _segments(call: PlannedCall, stored: Mapping[str, Expr]) -> Segments:
    """What differs between the sequences of a call. stored: ragged dim -> rows from a sequence to the next."""
    assert call.segments is not None
    ragged = stored.keys()
    places = enumerate(zip(call.operands, call.segments, strict=True))
    pointers = tuple(i for i, (o, e) in places if e is not None or o.offset.symbols & ragged)
    strides = tuple((i, a) for i, o in enumerate(call.operands) for a, s in enumerate(o.strides) if s.symbols & ragged)
    dims = tuple(n for n, e in zip(call.workload.dims, call.dims, strict=True) if e.symbols & ragged)
    rows, outer = [], []
    for i, (operand, elements) in enumerate(zip(call.operands, call.segments, strict=True)):
        if elements is None or any(i == at for at, _ in strides) or operand.offset.symbols & ragged:
            continue
        extents = (*call.workload.inputs, *call.workload.outputs)[i].dims
        axes = [a for a, e in enumerate(extents) if e.symbols & set(dims)]
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        if (number := elements.constant) is not None and not axes:
            outer.append((i, number))
        elif len(axes) == 1 and (length := extents[axes[0]].substitute(local)).symbol in ragged \
                and elements == length.substitute(stored) * operand.strides[axes[0]]:
            rows.append((i, axes[0]))
    return Segments(pointers, strides, dims, tuple(rows), tuple(outer))


def equal_calls(plan: HostPlan, table_of: Sequence[int]) -> dict[int, int]:
    """Calls that are made for each sequence -> which of them have the same table, since they differ in their memory alone."""
    found: dict[int, int] = {}
    keys: dict[tuple[object, ...], int] = {}
    for number, (call, at) in enumerate(zip(plan.calls, table_of, strict=True)):
        if call.segments is not None:
            layout = tuple((o.offset, o.strides, o.dtype) for o in call.operands)
            found[number] = keys.setdefault((at, call.dims, call.segments, layout), len(keys))
    return found


@dataclass(frozen=True)
class KernelTable:
    """Of one kernel. entries, blocks: bytes from the beginning of all tables. words: of an entry; most: blocks along x that a
    launch has."""

    kernel: MicroKernel
    entries: Expr
    blocks: Expr
    words: int
    most: Expr


@dataclass(frozen=True)
class CallTables:
    """Of a call and those that are equal to it. choices: where the choice for each sequence lies, in bytes."""

    call: PlannedCall
    table: DispatchTable
    choices: Expr
    kernels: tuple[KernelTable, ...]


class BlockTables:
    """All tables of a program, and where each begins."""

    def __init__(self, plan: HostPlan, tables: Sequence[DispatchTable], table_of: Sequence[int]) -> None:
        self.plan = plan
        self.of_call = equal_calls(plan, table_of)
        first = {group: number for number, group in reversed(self.of_call.items())}
        self._calls = [(plan.calls[first[g]], tables[table_of[first[g]]]) for g in range(len(first))]

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def count(self) -> Expr:
        """The number of sequences."""
        return Expr.dim(self.plan.ragged[0].dim.over)

    @cached_property
    def _placed(self) -> tuple[list[CallTables], Expr]:
        found, at = [], Expr.of(0)
        for call, table in self._calls:
            choices, kernels = at, []
            at = _aligned(at + self.count * (CHOICE * WORD))
            for kernel in table.kernels:
                words = 1 + sum(p.by_sequence for p in kernel.params)
                most = self._most(kernel, call)
                blocks = _aligned(at + self.count * (words * WORD))
                kernels.append(KernelTable(kernel, at, blocks, words, most))
                at = _aligned(blocks + most * WORD)
            found.append(CallTables(call, table, choices, tuple(kernels)))
        return found, at

    @property
    def groups(self) -> list[CallTables]:
        return self._placed[0]

    @property
    def bytes(self) -> Expr:
        """Of all tables, over the model's dims; a multiple of 64."""
        return self._placed[1]

    def _most(self, kernel: MicroKernel, call: PlannedCall) -> Expr:
        """Blocks along x of all sequences, at most."""
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        bound = summed_bound(Expr.parse(kernel.grid[0]).substitute(local), self.count,
                             {o.dim.name: (o.dim.lo, o.dim.hi) for o in self.plan.ragged})
        return bound.ceildiv(kernel.cluster[0]) * kernel.cluster[0]


def base_offset(operand: PlacedOperand, ragged: Mapping[str, object]) -> Expr:
    """What of an operand's offset differs between sequences."""
    return operand.offset if operand.offset.symbols & ragged.keys() else Expr.of(0)


def _aligned(size: Expr) -> Expr:
    return size.ceildiv(_ALIGNED) * _ALIGNED


def summed_bound(expr: Expr, count: Expr, ragged: Mapping[str, tuple[int, int]]) -> Expr:
    """No less than the sum over all sequences of what `expr` is for one, where it is not below 0: over the dims that all
    sequences have in common.

    Args:
        count: the number of sequences. ragged: the range of each ragged dim.
    """
    found = Expr.of(0)
    for factors, coefficient in expr.terms:
        own = [a for a in factors if _expr(a).symbols & ragged.keys()]
        term = Expr.of(coefficient)
        for atom in factors:
            term = term if atom in own else term * _expr(atom)
        if coefficient < 0:  # at least 0 is taken away
            continue
        one = next((a for a in own if _sum(a, count, ragged) is not None), None)
        known = None if one is None else _sum(one, count, ragged)
        if one is not None:
            own.remove(one)
        term = term * (known if known is not None else count)
        for atom in own:
            term = term * int(max(0, _expr(atom).bounds(ragged)[1]))
        found = found + term
    return found


def _sum(atom: Atom, count: Expr, ragged: Mapping[str, tuple[int, int]]) -> Expr | None:
    """No less than the sum over all sequences of a length, or of one by the units of a tile; None of anything else."""
    if atom.op == "dim":
        return total(atom.name)
    if atom.op != "floordiv" or (step := atom.args[1].constant) is None or step < 1:
        return None
    linear = Expr.of(0)  # floor(x) + floor(y) <= floor(x + y)
    for factors, coefficient in atom.args[0].terms:
        own = [a for a in factors if _expr(a).symbols & ragged.keys()]
        if coefficient < 0 or len(own) > 1 or any(a.op != "dim" for a in own):
            return None
        term = Expr.of(coefficient)
        for other in factors:
            term = term if other in own else term * _expr(other)
        linear = linear + term * (total(own[0].name) if own else count)
    return linear // step


def _expr(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))
