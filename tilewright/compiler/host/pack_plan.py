"""pack_plan: the plan of a model for one sequence becomes that for all sequences of a call, one after the other in each buffer.

Everything that depends on the sequence has, in its buffer, what it is for the first sequence, then for the second, and so on;
where sequences are aligned, the rows up to the next one are those of nobody. A call that computes every row from the same row
alone runs once over all rows. Any other is made for each sequence, all of them in one launch (host_segments.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul

import numpy as np

from tilewright.compiler.dims.ragged_dims import rows_of
from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import (
    CallerMemory,
    Copy,
    If,
    Launch,
    Loop,
    Offsets,
    Place,
    PlacedOperand,
    PlannedCall,
    Step,
    Temp,
)
from tilewright.passes.analysis.independence import Independence, MixingError
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import IngestError
from tilewright.runtime.program.arena_plan import Temporary, plan
from tilewright.runtime.program.program import Argument, DimInfo
from tilewright.runtime.ragged_dim import factors_of, total, total_name
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Sequences:
    """The ragged dims of a model. inputs: of the model for one sequence, tensors alone, in the order of their places, those of
    the offsets last; whether each depends on the sequence. results: of the whole model. sums: the sums over all sequences that
    are dims of the program. constants: number of a bound argument that has an entry for each sequence -> its array, with an
    axis of these in front."""

    dims: tuple[DimInfo, ...]
    inputs: tuple[tuple[tuple[Expr, ...], bool], ...]
    results: tuple[Argument, ...]
    sums: tuple[DimInfo, ...]
    constants: Mapping[int, np.ndarray]

    @property
    def outer(self) -> str:
        return next(d.over for d in self.dims if d.over)

    @property
    def longest(self) -> dict[str, int]:
        """Ragged dim -> the most rows that one sequence may take."""
        return {d.name: d.stored(d.hi) for d in self.dims if d.over}

    def stored(self, elements: Expr | None) -> Expr | None:
        """From the beginning of a sequence to that of the next, where one takes so many elements."""
        aligned = {d.name: d.stored_length for d in self.dims if d.over and d.has_gaps}
        return elements.substitute(aligned) if elements is not None and aligned else elements

    def rows(self, expr: Expr) -> Expr:
        """The sum over all sequences."""
        return rows_of(expr, self.outer, self.longest, [d.name for d in self.sums])


def pack_plan(single: HostPlan, sequences: Sequences) -> HostPlan:
    """The plan over the number of sequences and the sums of their lengths.

    Raises:
        IngestError: a result of the model depends on the sequence and has no axis for it.
    """
    return _Packer(single, sequences).run()


class _Packer:
    def __init__(self, single: HostPlan, sequences: Sequences) -> None:
        self.single, self.sequences = single, sequences
        self.ragged = frozenset(sequences.longest)
        self.elements: dict[Place, Expr] = {}  # of one sequence in a buffer; of those that depend on it
        self.parts: dict[str, Expr] = {}  # bytes of one sequence in a temporary
        self.kept: dict[tuple[str, str], bool] = {}  # (workload, local dim) -> is it computed row by row?

    def run(self) -> HostPlan:
        single, sequences = self.single, self.sequences
        if any(isinstance(s, If | Loop) for s in single.steps):
            raise IngestError("a model with ragged dims branches or loops, which is not compiled for sequences of different "
                              "lengths; declare the dims as plain ones, and pad")
        for number, (dims, depends) in enumerate(sequences.inputs):
            if depends:
                self.elements[CallerMemory(number)] = _product(dims)
        bound = [replace(b, each=b.argument in sequences.constants) for b in single.bound]
        for number, constant in enumerate(bound, len(sequences.inputs)):
            if constant.each:
                entries = sequences.constants[constant.argument]
                self.elements[CallerMemory(number)] = Expr.of(constant.elements(entries) // len(entries))
        calls = [self._call(c) for c in single.calls]
        first_result = len(sequences.inputs) + len(single.bound)
        for number, result in enumerate(sequences.results):
            if CallerMemory(first_result + number) in self.elements and not self._has_sequences(result):
                raise IngestError(f"result {result.name} depends on the sequence and has no axis for it; a ragged model gives "
                                  f"one for each: keep the axis of {sequences.outer} in the result")
        temporaries = self._temporaries()
        ranges = {sequences.outer: self._range(sequences.outer), **{d.name: (d.lo, d.hi) for d in sequences.sums}}
        steps = [step for s in single.steps for step in self._steps(s, calls)]
        names = [d for d in sequences.dims if d.over]
        first = len(sequences.inputs) - len(names)
        return replace(single, calls=calls, steps=steps, bound=bound, arena=plan(temporaries, ranges),
                       ragged=tuple(Offsets(d, CallerMemory(first + i)) for i, d in enumerate(names)),
                       sums=tuple(d.name for d in sequences.sums), parts=self.parts)

    def _has_sequences(self, result: Argument) -> bool:
        used: frozenset[str] = frozenset().union(*(Expr.parse(d).symbols for d in result.dims or ()), frozenset())
        return bool(used & {self.sequences.outer, *self.ragged})

    def _range(self, name: str) -> tuple[int, int]:
        return next((d.lo, d.hi) for d in self.sequences.dims if d.name == name)

    def _temporaries(self) -> list[Temporary]:
        """The buffers of the arena with the sizes they have now."""
        birth: dict[Temp, int] = {}
        death: dict[Temp, int] = {}
        size: dict[Temp, Expr] = {}
        phases = [phase for launch in self.single.launches() for phase in launch.phases()]
        for moment, number in ((m, n) for m, members in enumerate(phases) for n in members):
            call = self.single.calls[number]
            local = dict(zip(call.workload.dims, call.dims, strict=True))
            count = len(call.workload.inputs)
            for i, operand in enumerate(call.operands):
                if not isinstance(operand.place, Temp):
                    continue
                death[operand.place] = moment
                if i >= count:
                    birth[operand.place] = moment
                    one = _product([e.substitute(local) for e in call.workload.outputs[i - count].dims])
                    rows = self.sequences.rows(one) if operand.place in self.elements else one
                    size[operand.place] = rows * operand.dtype.bytes
                    if operand.place in self.elements:
                        self.parts[operand.place.name] = one * operand.dtype.bytes
        for step in self.single.steps:
            if isinstance(step, Copy) and isinstance(step.source, Temp):
                death[step.source] = len(phases)
        return [Temporary(t.name, size[t], at, death[t]) for t, at in birth.items()]

    def _steps(self, step: Step, calls: Sequence[PlannedCall]) -> list[Step]:
        """What a step becomes: a call that is made for each sequence is a launch of its own."""
        if isinstance(step, Copy) and step.source in self.elements:
            if not self._is_exact(step.bytes):
                raise IngestError("donate names an argument that a result of lengths times lengths is copied to; leave it out")
            return [replace(step, bytes=self.sequences.rows(step.bytes))]
        if not isinstance(step, Launch) or len(step.calls) == 1:
            return [step]
        found: list[Step] = []
        rest: list[tuple[int, ...]] = []
        for phase in step.phases():
            alone = [n for n in phase if calls[n].segments is not None]
            rest += [own] if (own := tuple(n for n in phase if n not in alone)) else []
            if alone:
                found += [*_launched(rest), *(Launch((n,)) for n in alone)]
                rest = []
        return [*found, *_launched(rest)]

    def _is_exact(self, expr: Expr) -> bool:
        """Is the sum over all sequences known, or only what is no less?"""
        known = {d.name for d in self.sequences.sums}
        for factors, _ in expr.terms:
            own = [a for a in factors if Expr((((a,), 1),)).symbols & self.ragged]
            if own and (any(a.op != "dim" for a in own) or total_name(*(a.name for a in own)) not in known):
                return False
        return True

    def _call(self, call: PlannedCall) -> PlannedCall:
        """What a call becomes; what its results are in their buffers is written down."""
        own = [self.elements.get(o.place) for o in call.operands]
        depends = any(e is not None for e in own) or any(self.ragged & e.symbols for e in call.dims)
        if not depends:
            return call
        local = dict(zip(call.workload.dims, call.dims, strict=True))
        count = len(call.workload.inputs)
        for operand, output in zip(call.operands[count:], call.workload.outputs, strict=True):
            self.elements[operand.place] = _product([e.substitute(local) for e in output.dims])
        own = [self.elements.get(o.place) for o in call.operands]
        dim = self._rows_along(call, own)
        if dim is None:
            return replace(call, segments=tuple(map(self.sequences.stored, own)))
        return replace(call, dims=tuple(e.substitute({dim: total(dim)}) for e in call.dims))

    def _rows_along(self, call: PlannedCall, elements: Sequence[Expr | None]) -> str | None:
        """The ragged dim that a call computes row by row, so that it may run over all rows at once."""
        along = [(name, e) for name, e in zip(call.workload.dims, call.dims, strict=True) if e.symbols & self.ragged]
        if len(along) != 1:
            return None
        local, extent = along[0]
        dim = next(iter(extent.symbols))
        if len(extent.symbols) != 1 or not _is_multiple(extent, dim):
            return None
        operands = (*call.workload.inputs, *call.workload.outputs)
        if any(e is None and any(local in d.symbols for d in o.dims) for e, o in zip(elements, operands, strict=True)):
            return None  # the first rows of what all sequences share
        if any(not _is_multiple(e, dim) for e in elements if e is not None):
            return None
        if any(_symbols(o) & self.ragged for o in call.operands):
            return None
        return dim if self._by_row(call.workload, local) else None

    def _by_row(self, workload: Workload, local: str) -> bool:
        key = workload.key, local
        if key not in self.kept:
            module = ir.Module.parse(workload.ir)
            fn = next(functions(module))
            try:
                Independence(fn, SymbolicShapes(fn), local).check()
                self.kept[key] = True
            except MixingError:
                self.kept[key] = False
        return self.kept[key]


def _launched(phases: Sequence[tuple[int, ...]]) -> list[Launch]:
    """One launch of phases; none where there are none."""
    counts = tuple(map(len, phases))
    return [Launch(tuple(n for phase in phases for n in phase), counts if len(counts) > 1 else ())] if phases else []


def _is_multiple(expr: Expr, dim: str) -> bool:
    """Is it so many times the dim, whatever that is?"""
    times = expr // Expr.dim(dim)
    return times.constant is not None and times * Expr.dim(dim) == expr


def _product(dims: Sequence[Expr]) -> Expr:
    return reduce(mul, dims, Expr.of(1))


def _symbols(operand: PlacedOperand) -> frozenset[str]:
    """What the offset and the strides of an operand depend on."""
    return frozenset().union(operand.offset.symbols, *(s.symbols for s in operand.strides))


def sequences_of(dims: Sequence[DimInfo], inputs: Sequence[Argument], results: Sequence[Argument],
                 bound: Mapping[int, np.ndarray], each: Collection[int], own: Sequence[DimInfo]) -> Sequences:
    """From the arguments of the whole model, those of the offsets last, what is bound of them, which of that has an entry for
    each sequence, and the dims of the program."""
    outer = next(d.over for d in dims if d.over)
    names = {d.name for d in dims if d.over}
    found = []
    for number, argument in enumerate(inputs):
        if argument.dims is None or number in bound:
            continue
        exprs = tuple(Expr.parse(d) for d in argument.dims)
        used = frozenset().union(*(e.symbols for e in exprs), frozenset())
        found.append((tuple(e.substitute({outer: 1}) for e in exprs), bool(used & {outer, *names})))
    sums = tuple(d for d in own if factors_of(d.name))
    return Sequences(tuple(dims), tuple(found), tuple(results), sums, {number: bound[number] for number in each})
