"""The softmax of a step of scores where mma.sync leaves them: a row is spread over the registers of four lanes, two neighbouring
keys of every eight in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import e, inf, log2

from tilewright.passes.codegen.emit import constant, element_type, lanes_of, vector_type, when_values
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import CollapsedLoops, Point
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan
from tilewright.passes.families.gpu.gpu_join import shuffle
from tilewright.passes.families.gpu.wgmma_code import unknown
from tilewright.passes.mlir import arith, ir, llvm, nvvm, vector

_LOG2_E = log2(e)
_COLUMNS = 8  # keys of an instruction
_CHAINS = 4  # maxima that do not wait for each other


@dataclass(frozen=True)
class Row:
    """A row of scores: the loops that it is at, and how many keys it sees."""

    point: Point
    seen: Index


@dataclass(frozen=True)
class Taken:
    """What a step makes of a row: the maximum so far, this lane's sum, by what sums so far are scaled, the exponentials."""

    greatest: ir.Value
    total: ir.Value
    factor: ir.Value
    weights: list[ir.Value]


class FragmentSoftmax:
    """Of one point of the shared loops. lanes: neighbouring keys whose logits are computed together, 1 or 2. plenty: are there
    registers enough to compute much at a time?"""

    def __init__(self, kernel: GpuKernel, plan: AttentionPlan, rows: CollapsedLoops, keys: CollapsedLoops, batch: Point,
                 lanes: int, plenty: bool = False) -> None:
        self.kernel, self.plan, self.rows, self.keys, self.batch, self.lanes = kernel, plan, rows, keys, batch, lanes
        self.plenty = plenty
        self.cut: ir.Value | bool | None = None  # are there keys of a step that some row does not see? None where there may be
        self.f32 = ir.F32Type.get()
        self.scale = plan.hidden.scale
        self.power = self.number(_LOG2_E * (self.scale or 1.0))  # of what the maximum is taken of

    def number(self, value: float) -> ir.Value:
        return constant(self.f32, value)

    def times(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.mulf(a, b)

    def line(self, row: Index) -> Row:
        """A row; those behind the last one are at the last one."""
        here = row.min(self.rows.extent - 1)
        point = {**self.batch, **self.rows.point(here)}
        return Row(point, self._seen(point))

    def _seen(self, point: Point) -> Index:
        if self.plan.hidden.reach is None:
            return self.keys.extent
        return self.plan.hidden.seen(self.kernel.evaluator, point).max(0).min(self.keys.extent)

    def reach(self, first: Index, last: Index) -> tuple[Index, Index]:
        """How many keys all rows from the first to the last see, and how many some row sees."""
        row = self.plan.hidden.row
        if len(self.rows.loops) > 1 and row is not None:
            extent = self.rows.extents_of()[row]
            return self._seen({**self.batch, row: Index(0)}), self._seen({**self.batch, row: extent - 1})
        return self._seen({**self.batch, **self.rows.point(first)}), self._seen({**self.batch, **self.rows.point(last)})

    def step(self, row: Row, scores: Sequence[ir.Value], key: Index, edge: bool, greatest: ir.Value, total: ir.Value) -> Taken:
        """scores: of two neighbouring keys from `key` on, from key + 8 on, ... edge: some keys may not be seen."""
        values = list(scores) if self.scale is not None else self._logits(row, scores, key, edge)
        if edge:
            values = self._seen_only(row, values, key)
        most = _CHAINS if self.plenty else 1
        chains = [reduce(_larger, values[i::most]) for i in range(min(most, len(values)))]
        now = joined(reduce(_larger, chains, greatest), _larger)
        none = arith.cmpf(arith.CmpFPredicate.OEQ, now, self.number(-inf))  # all keys so far are masked
        top = arith.mulf(arith.select(none, self.number(0), now), self.power)
        less = arith.negf(top)
        weights = [self.exponential(v, less) for v in values]
        factor = self.exponential(greatest, less)
        total = arith.mulf(total, factor)
        for w in weights:
            total = arith.addf(total, w)
        return Taken(now, total, factor, weights)

    def _seen_only(self, row: Row, values: list[ir.Value], key: Index) -> list[ir.Value]:
        """-inf in the places of keys that the row does not see. Where `cut` is asked, comparisons with an opaque number stay
        behind that question."""
        lowest, i1 = self.number(-inf), ir.IntegerType.get_signless(1)
        places = [_COLUMNS * j + q for j in range(len(values) // 2) for q in range(2)]

        def chosen(first: Index, seen: Index) -> list[ir.Value]:
            shown = [(first + place).lt(seen) for place in places]
            conditions = [constant(i1, c) if isinstance(c, bool) else c for c in shown]
            return [arith.select(c, v, lowest) for c, v in zip(conditions, values, strict=True)]

        if self.cut is None:
            return chosen(Index(0), row.seen - key) if self.plenty else chosen(key, row.seen)
        left = (row.seen - key).value(self.kernel.index)
        return when_values(self.cut, values, lambda: chosen(Index(0), Index(unknown(left, True))))

    def exponential(self, value: ir.Value, less: ir.Value) -> ir.Value:
        """2 to the value times `power` plus `less`."""
        return nvvm.ex2(llvm.intr_fma(value, self.power, less), ftz=True)

    def _logits(self, row: Row, scores: Sequence[ir.Value], key: Index, edge: bool) -> list[ir.Value]:
        """Logits without the mask of places; where keys may lie behind the last, one by one, of the last key there."""
        ev, view, plain = self.kernel.evaluator, self.plan.view, self.plan.hidden.plain
        lanes = 1 if edge else self.lanes
        source, found = view.scores.op.results[0], list[ir.Value]()
        with ev.kept():
            for first in range(0, len(scores), lanes):
                here = key + (first // 2 * _COLUMNS + first % 2)
                here = here.min(self.keys.extent - 1) if edge else here.known_multiple(lanes)
                point = {**row.point, view.key: Index.ramp(here, lanes)}
                some = list(scores[first : first + lanes])
                raw = some[0] if lanes == 1 else vector.from_elements(vector_type(self.f32, lanes), some)
                ev.known[source] = _given(ProductCode(view.scores.product).round(raw))
                value = _widened(splat_to(ev.element(plain, [point[d] for d in view.place]), lanes))
                found += [value] if lanes == 1 else [vector.extract(value, [], [i]) for i in range(lanes)]
        del ev.known[source]
        return found

    def share(self, total: ir.Value) -> ir.Value:
        """1 / total; 1 where there are no keys at all."""
        none = self.keys.extent.eq(0)
        one = self.number(1.0)
        found = arith.divf(one, total)
        if isinstance(none, bool):
            return one if none else found
        return arith.select(none, one, found)


def joined(value: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """The values of the four lanes of a row as one."""
    for distance in (1, 2):
        value = join(value, shuffle(value, distance))
    return value


def _larger(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.maxnumf(a, b)


def _given(value: ir.Value) -> Callable[[Sequence[Index]], ir.Value]:
    return lambda _: value


def _widened(value: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    t = value.type
    return value if element_type(t) == f32 else arith.extf(vector_type(f32, lanes_of(value)), value)
