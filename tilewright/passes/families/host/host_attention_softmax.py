"""The softmax of a block of scores in the workspace: rows side by side, so that their chains overlap.

Logits and their maxima in one sweep along the keys, exponentials and their sums in another; division is left to the caller.
Where the logits are a positive multiple of the scores, the scores stand for them, only those of unseen keys are replaced, and
the exponential takes the factor. The maximum need not keep NaN: a NaN logit makes its own exponential, the sum and with it
the whole row NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.analysis.signs import NONPOSITIVE
from tilewright.passes.codegen.attention_mask import AttentionMask
from tilewright.passes.codegen.emit import Memory, constant, lane_mask, lanes_of, loop, when_values
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.families.host.host_matmul_words import rounded_to_bf16
from tilewright.passes.mlir import arith, ir, math, vector

Join = Callable[[ir.Value, ir.Value], ir.Value]
_LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class VectorSoftmax:
    """scores: [row][key] in f32, rows whole vectors long; exponentials replace them, or are rounded to `weights`."""

    evaluator: Evaluator
    view: Attention
    hidden: AttentionMask
    scores: Memory
    lanes: int
    weights: Memory

    def limits(self, points: Sequence[Loops], end: Index) -> list[Index]:
        """For each row the number of keys up to the last one that it sees, at most `end`."""
        if self.hidden.reach is None:
            return [end] * len(points)
        known = [{d: x for d, x in enumerate(point) if x is not None} for point in points]
        if self.hidden.row is None:
            return [self.hidden.seen(self.evaluator, known[0]).min(end)] * len(points)
        return [self.hidden.seen(self.evaluator, point).min(end) for point in known]

    def logits(self, points: Sequence[Loops], first: Index, count: Index, limits: Sequence[Index]) -> list[ir.Value]:
        """Replaces the scores of `count` keys from `first` on by the logits, -inf beyond the last; the maximum of each row,
        in all lanes. points: loops of each row; limits: as above, their greatest at most first + count."""
        start = [constant(ir.F32Type.get(), -inf, self.lanes)] * len(points)
        if self.hidden.scale is not None:
            least = limits[0]
            for limit in limits[1:]:
                least = least.min(limit)
            clear = (least - first).max(0)
            clear = clear - clear % self.lanes
            found = loop(0, clear, self.lanes, lambda j, *c: self._larger(j, c), start, self.scores.index)
            found = loop(clear, count, self.lanes, lambda j, *c: self._hide(first, j, limits, c), found, self.scores.index)
            return across_rows(found, larger)
        whole = count - count % self.lanes
        found = loop(0, whole, self.lanes, lambda j, *c: self._logits(points, first, j, None, c), start, self.scores.index)
        mask = lane_mask(count - whole, self.lanes, self.scores.index)
        found = when_values(whole.lt(count), found, lambda: self._logits(points, first, whole, mask, found))
        return across_rows(found, larger)

    def _larger(self, j: Index, greatest: Sequence[ir.Value]) -> list[ir.Value]:
        here = Index.ramp(j, self.lanes)
        return [larger(self.scores.load([Index(i), here]), g) for i, g in enumerate(greatest)]

    def _hide(self, first: Index, j: Index, limits: Sequence[Index], greatest: Sequence[ir.Value]) -> list[ir.Value]:
        """-inf for the keys of a vector that a row does not see."""
        here = Index.ramp(j, self.lanes)
        lowest = constant(ir.F32Type.get(), -inf, self.lanes)
        found = []
        for i, (limit, g) in enumerate(zip(limits, greatest, strict=True)):
            seen = lane_mask(limit - first - j, self.lanes, self.scores.index)
            value = self.scores.load([Index(i), here])
            value = value if seen is None else arith.select(seen, value, lowest)
            self.scores.store(value, [Index(i), here])
            found.append(larger(value, g))
        return found

    def _logits(self, points: Sequence[Loops], first: Index, j: Index, mask: ir.Value | None,
                greatest: Sequence[ir.Value]) -> list[ir.Value]:
        ev, view = self.evaluator, self.view
        source = view.scores.op.results[0]
        here = Index.ramp(first + j, self.lanes)
        values = []
        with ev.kept():
            for i, point in enumerate(points):
                at = list(point)
                at[view.key] = here
                raw = ProductCode(view.scores.product).round(self.scores.load([Index(i), Index.ramp(j, self.lanes)]))
                ev.known[source] = _given(raw)
                coords = [at[d] for d in view.place]
                value = splat_to(ev.element(view.logits, [c for c in coords if c is not None], mask), self.lanes)
                value = _widened(value)
                values.append(value if mask is None else arith.select(mask, value, constant(ir.F32Type.get(), -inf, self.lanes)))
        if mask is not None or view.logits != source:
            for i, value in enumerate(values):
                self.scores.store(value, [Index(i), Index.ramp(j, self.lanes)])
        return [larger(v, g) for v, g in zip(values, greatest, strict=True)]

    def exponentials(self, greatest: Sequence[ir.Value], count: Index) -> list[ir.Value]:
        """The exponentials of the logits' distance to `greatest`; the sum of each row before they are rounded, in all lanes."""
        def step(j: Index, *sums: ir.Value) -> list[ir.Value]:
            done = []
            for i, (top, total) in enumerate(zip(greatest, sums, strict=True)):
                at = [Index(i), Index.ramp(j, self.lanes)]
                value = self.exponential(arith.subf(self.scores.load(at), top))
                self.weights.store(value if self.weights.element == self.scores.element else rounded_to_bf16(value), at)
                done.append(arith.addf(total, value))
            return done

        zero = constant(ir.F32Type.get(), 0, self.lanes)
        sums = loop(0, count, self.lanes, step, [zero] * len(greatest), self.scores.index)
        return across_rows(sums, lambda a, b: arith.addf(a, b))

    def exponential(self, x: ir.Value) -> ir.Value:
        """exp of a difference of logits that is not above 0, in the unit that the scores are kept in: 2 ulp near 0, 1 ulp more
        for each factor e^-2.8."""
        f32 = ir.F32Type.get()
        factor = constant(f32, _LOG2E * (1.0 if self.hidden.scale is None else self.hidden.scale), lanes_of(x))
        value = math.exp2(arith.mulf(x, factor), fastmath=ir.Attribute.parse("#arith.fastmath<afn>"))
        value.owner.attributes[NONPOSITIVE] = ir.UnitAttr.get()
        return value


def larger(a: ir.Value, b: ir.Value) -> ir.Value:
    """a where it is greater, else b: one instruction on x86, `b` for a NaN."""
    return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, a, b), a, b)


def across_rows(rows: Sequence[ir.Value], join: Join) -> list[ir.Value]:
    """Joins the lanes of each vector, several vectors at a time; each result is in all lanes of a vector.

    Vectors are joined pairwise, half the lanes of each, until one holds a segment of lanes for every row; then the lanes of
    the segments are joined. The order depends on the number of lanes alone for each row.
    """
    lanes = lanes_of(rows[0])
    found: list[ir.Value] = []
    for start in range(0, len(rows), lanes):
        group = list(rows[start : start + lanes])
        count = len(group)
        size = 1 << (count - 1).bit_length()
        group += [group[-1]] * (size - count)
        segment = lanes
        while len(group) > 1:
            half = segment // 2
            low = [base + lane for base in range(0, 2 * lanes, segment) for lane in range(half)]
            high = [x + half for x in low]
            group = [join(vector.shuffle(a, b, low), vector.shuffle(a, b, high))
                     for a, b in zip(group[::2], group[1::2], strict=True)]
            segment = half
        one = group[0]
        stride = segment
        while segment > 1:
            segment //= 2
            one = join(one, vector.shuffle(one, one, [lane ^ segment for lane in range(lanes)]))
        found += [vector.shuffle(one, one, [r * stride] * lanes) for r in range(count)]
    return found


def _given(value: ir.Value) -> Callable[[Sequence[Index]], ir.Value]:
    return lambda _: value


def _widened(value: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    t = ir.VectorType(value.type)
    return value if t.element_type == f32 else arith.extf(ir.VectorType.get(t.shape, f32), value)
