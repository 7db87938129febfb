"""The code of an attention: a unit's copies, its blocks of queries, what is kept between blocks of keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.analysis.named_rows import shown_by
from tilewright.passes.analysis.placement import place
from tilewright.passes.codegen.attention_mask import AttentionMask
from tilewright.passes.codegen.emit import Memory, constant, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.families.host.host_attention_range import KeyRange, KeySpan
from tilewright.passes.families.host.host_attention_softmax import VectorSoftmax, larger
from tilewright.passes.families.host.host_matmul_block import Block, Columns
from tilewright.passes.families.host.host_matmul_dot import Dot
from tilewright.passes.families.host.host_matmul_panel import PanelCopy
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_row_copy import RowCopy
from tilewright.passes.families.host.host_matmul_rows import Loops, row_blocks, row_points
from tilewright.passes.families.host.host_matmul_store import PlacedResults
from tilewright.passes.mlir import arith, ir, vector
from tilewright.passes.spaces.host.host_attention import ELEMENT, HostAttentionConfig
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.runtime.shape import Expr

_ALIGNED = 16  # elements of a cache line
_PAD = 16  # elements between rows of scores, so that rows do not share cache sets
_UNROLL = 4  # values of k in one turn of the scores' loop


class AttentionEmitter:
    """Products by vectors; a family of its own forms overrides how blocks of queries are taken."""

    def __init__(self, kernel: HostKernel, config: HostAttentionConfig, workspace: ir.Value) -> None:
        self.kernel, self.config, self.workspace = kernel, config, workspace
        self.ev, self.index, self.f32 = kernel.evaluator, kernel.index, ir.F32Type.get()
        ops = kernel.ops()
        self.view = Attention.of(ops, kernel.shapes)
        self.hidden = AttentionMask.of(self.view, kernel.shapes)
        view = self.view
        places = place(kernel.shapes, view.mixed.op.results[0], ops[ops.index(view.mixed.op) + 1 :], kernel.results)
        self.product = Plan.along(kernel, view.scores, view.key)
        self.mixing = Plan.along(kernel, view.mixed, view.column, tuple(places))
        self.block = HostMatmulConfig(config.mr, config.nv, config.lanes, ordered=config.ordered, pairs=config.pairs)
        self.value_vectors = -(-view.columns // config.lanes)
        *outer, last = view.scores.k
        self.depth = view.scores.size(outer) * view.scores.extents[last].ceildiv(config.side)  # steps of k
        self.used = Expr.of(0)
        self.direct = config.direct and self.product.transposed
        self._carve()
        self.range = KeyRange.of(self._softmax())

    # -- workspace

    def _carve(self) -> None:
        c, width = self.config, self.value_vectors * self.config.lanes
        self.pitch = c.keys + _PAD
        self.scores = self._take(Expr.of(c.mr * self.pitch), self.pitch)
        self.weights = self.scores
        if c.pairs:
            words = c.keys // 2 + _PAD
            self.weights = self._factors(Expr.of(c.mr * words), words)
        self.keys = None if self.direct else self._factors((self.depth * c.keys) + c.lanes * c.panel, c.panel)
        self.queries = None if self._reads_queries else self._factors((self.depth + _PAD) * c.mr, self.depth + _PAD)
        self.values = None if self._reads_values else self._factors(
            Expr.of((-(-c.keys // c.side) + c.lanes) * width), width)
        if c.online:
            self._carve_sums(c.mc)

    def _carve_sums(self, rows: int) -> None:
        """What is kept of so many queries between blocks of keys."""
        width = self.value_vectors * self.config.lanes
        self.mixed = self._take(Expr.of(rows * width), width)
        self.greatest = self._take(Expr.of(rows), 1)
        self.total = self._take(Expr.of(rows), 1)
        self.ranges = replace(self._take(Expr.of((rows + 1) * 4), 2), element=self.index)

    @property
    def _reads_queries(self) -> bool:
        """Are the queries read where they are?"""
        if self.config.pairs:
            return self.direct or (self.product.runs_along and self._in_memory(self.view.scores, self.view.query))
        return self.direct or self._plain(self.product, self.view.query)

    @property
    def _reads_values(self) -> bool:
        """Are the values, because nothing is to be converted, or only once since the queries are few?"""
        which = 1 - self.view.weights
        few = self.direct and self._in_memory(self.view.mixed, which)
        return self.mixing.in_place and (few or (not self.config.pairs and self._plain(self.mixing, which)))

    def _factors(self, elements: Expr, pitch: int | Expr) -> Memory:
        """Likewise, of factors as they are multiplied: f32, or words of two of bf16."""
        taken = self._take(elements, pitch)
        return replace(taken, element=integer_type(32)) if self.config.pairs else taken

    def _take(self, elements: Expr, pitch: int | Expr) -> Memory:
        """The next `elements` of the workspace as rows of f32, `pitch` apart."""
        at = self.kernel.offset_pointer(self.workspace, self.ev.emit(self.used), ELEMENT)
        self.used = self.used + elements.ceildiv(_ALIGNED) * _ALIGNED
        strides = (self.ev.emit(pitch) if isinstance(pitch, Expr) else Index(pitch), Index(1))
        return Memory(at, self.f32, strides, strides, self.index)

    def _plain(self, plan: Plan, which: int) -> bool:
        """Is an operand f32 in memory, as it is multiplied, whole or in rows that data name?"""
        memory = self.ev.memories.get(shown_by(plan.view.operand(which)))
        return memory is not None and memory.element == self.f32 and not plan.view.product.casts[which]

    def _in_memory(self, view: Contraction, which: int) -> bool:
        """Is an operand, whatever its type?"""
        return shown_by(view.operand(which)) in self.ev.memories

    # -- units

    def units(self, begin: Index, end: Index) -> Grid:
        view, c, units = self.view, self.config, self.kernel.loops[0]
        at, chunks = units.numbers(self.ev), self.ev.emit(units.counts[-1])

        def unit(u: Index, before: ir.Value) -> list[ir.Value]:
            here, head = at(u), u // chunks
            loops: Loops = [here.first(f"d{d}") if d in view.shared else None for d in range(len(view.scores.extents))]
            self._unit(loops, *here.span("rows"), head.compare(arith.CmpIPredicate.ne, Index(before)))
            return [head.value(self.index)]

        loop(begin, end, 1, unit, [constant(self.index, -1)], self.index)
        over = (view.keys - c.keys).maximum(0)
        guards = () if c.online or over == Expr.of(0) else (over,)
        return Grid(self.used * ELEMENT, guards)

    def _unit(self, loops: Loops, low: Index, high: Index, fresh: ir.Value | bool) -> None:
        """fresh: is it another point of the shared loops than that of the unit before?"""
        keys = self.ev.emit(self.view.keys)
        if not self.config.online:
            span = KeySpan(Index(0), keys)
            when(fresh, lambda: self._copy(loops, span))
            self._all_keys(loops, low, high, span)
            return
        loop(0, high - low, 1, self._clear, index=self.index)

        start, end = self._surveyed(loops, low, high) if self.range.narrows else (Index(0), keys)

        def piece(first: Index) -> None:
            span = KeySpan(first, (end - first).min(self.config.keys))
            self._copy(loops, span)
            self._some_keys(loops, low, high, span)

        loop(start - start % self.config.keys, end, self.config.keys, piece, index=self.index)
        self._rows(low, high, lambda row, height: self._finish(loops, row, height, low))

    def _surveyed(self, loops: Loops, low: Index, high: Index) -> tuple[Index, Index]:
        """Notes which keys each block of queries sees; first and end of those that some block sees."""
        total = [[Index(self.config.mc), Index(i)] for i in range(2)]
        for at, value in zip(total, (self.ev.emit(self.view.keys), Index(0)), strict=True):
            self.ranges.store(value.value(self.index), at)

        def note(row: Index, found: tuple[Index, Index]) -> None:
            for i, (at, value, join) in enumerate(zip(total, found, (Index.min, Index.max), strict=True)):
                self.ranges.store(value.value(self.index), [row - low, Index(i)])
                self.ranges.store(join(value, Index(self.ranges.load(at))).value(self.index), at)

        self._survey(loops, low, high, note)
        start, end = (Index(self.ranges.load(at)) for at in total)
        return start, end

    def _survey(self, loops: Loops, low: Index, high: Index, note: Callable[[Index, tuple[Index, Index]], None]) -> None:
        """note(first query, bounds of the keys) of each block of queries."""
        self._rows(low, high, lambda row, height: note(row, self.range.bounds(self._points(loops, row, height))))

    def _all_keys(self, loops: Loops, low: Index, high: Index, span: KeySpan) -> None:
        """The queries of a unit, each block of them from its scores to its results."""
        self._rows(low, high, lambda row, height: self._whole(loops, row, height, span))

    def _some_keys(self, loops: Loops, low: Index, high: Index, span: KeySpan) -> None:
        """The queries of a unit with one block of keys."""
        self._rows(low, high, lambda row, height: self._rescaled(loops, row, height, low, span))

    def _rows(self, low: Index, high: Index, run: Callable[[Index, int], None]) -> None:
        row_blocks(low, high, self.config.mr, self.config.exact_tails, self.index, run)

    def _points(self, loops: Loops, row: Index, height: int) -> list[Loops]:
        rows = self.view.rows
        return row_points(loops, rows, [self.ev.emit(self.view.scores.extents[d]) for d in rows], row, height)

    def _mixed_point(self, point: Loops) -> Loops:
        """Loops of the mixing at a point of those of the scores."""
        return [None if d is None else point[d] for d in self.view.loops]

    # -- copies

    def _copy(self, loops: Loops, span: KeySpan) -> None:
        """Keys and values of a block to their panels where they are not read in place."""
        if self.keys is not None:
            keys = self.keys
            loop(0, span.count, self.config.panel, lambda at: self._copy_keys(loops, span, at, self._panel(keys, at)),
                 index=self.index)
        if self.values is not None:
            wide = replace(self.block, nv=self.value_vectors)
            columns = Index(self.view.columns)
            PanelCopy(self.ev, self.mixing, wide, self.values, (span.first, span.first + span.count)).copy(
                self._mixed_point(loops), Index(0), columns, columns)

    def _copy_keys(self, loops: Loops, span: KeySpan, at: Index, panel: Memory) -> None:
        """The panel of keys from number `at` of a block on."""
        PanelCopy(self.ev, self.product, self.block, panel).copy(
            loops, span.first + at, span.count - at, self.ev.emit(self.view.keys))

    def _panel(self, keys: Memory, at: Index) -> Memory:
        """The panel whose first key is number `at` of its block."""
        start = at * self.ev.emit(self.depth)
        return replace(keys, pointer=self.kernel.offset_pointer(keys.pointer, start, ELEMENT))

    def _query_copy(self, memory: Memory) -> RowCopy:
        """Copies queries as [row][k], as they are multiplied."""
        plan = replace(self.product, rows=self.view.rows)
        return RowCopy(self.ev, plan, self.config.lanes, memory, side=self.config.side)

    # -- a block of queries

    def _scores(self, loops: Loops, row: Index, points: list[Loops], span: KeySpan) -> None:
        """The scores of a block of queries."""
        if self.keys is None:
            self._dots(points, span)
            return
        if self.queries is not None:
            self._query_copy(self.queries).copy(loops, row, row + len(points))
        self._products(points, span, self.keys)

    def _dots(self, points: list[Loops], span: KeySpan) -> None:
        """Of keys that are read in place, for one query after the other while they are in the first-level cache."""
        dot = Dot(Block(self.ev, self.product, self.block, None))

        def some(at: Index) -> None:
            for i, point in enumerate(points):
                def store(_point: Loops, key: Index, value: ir.Value, _mask: ir.Value | None, row: int = i) -> None:
                    self.scores.store(value, [Index(row), Index.ramp(key - span.first, self.config.lanes)])

                dot.row(point, span.first + at, span.count - at, store)

        loop(0, span.count, self.config.panel, some, index=self.index)

    def _products(self, points: list[Loops], span: KeySpan, keys: Memory) -> None:
        """Of whole panels, then of one of as many vectors as are left."""
        c = self.config

        def panel(at: Index, vectors: int) -> None:
            copied = self._panel(keys, span.skipped + at)
            block = Block(self.ev, self.product, self.block, copied, self.queries, unroll=_UNROLL)
            places = tuple(Index(j * c.lanes) for j in range(vectors))
            columns = Columns(tuple(span.first + at + x for x in places), (None,) * vectors, places)
            for i, sums in enumerate(block.accumulate(points, columns)):
                for x, value in zip(places, sums, strict=True):
                    self.scores.store(value, [Index(i), Index.ramp(at + x, c.lanes)])

        whole = span.count - span.count % c.panel
        if whole.const != 0:
            loop(0, whole, c.panel, lambda at: panel(at, c.nv), index=self.index)
        vectors = (span.count - whole).ceildiv(c.lanes)
        for count in range(1, c.nv + 1):
            when(vectors.eq(count), _bound(panel, whole, count))

    def _softmax(self, before: Index = Index(0)) -> VectorSoftmax:  # noqa: B008 - immutable
        """Of the scores behind those of so many queries."""
        scores, weights = (replace(m, pointer=m.address([before, Index(0)])) for m in (self.scores, self.weights))
        if self.config.pairs:
            weights = replace(weights, element=ir.BF16Type.get(), strides=(weights.strides[0] * 2, Index(1)))
        return VectorSoftmax(self.ev, self.view, self.hidden, scores, self.config.lanes, weights)

    def _within(self, span: KeySpan, points: list[Loops], bounds: tuple[Index, Index]) -> tuple[KeySpan, list[Index]]:
        """The keys of a block that some query may see, and the end of those that each query sees."""
        span = span.within(*bounds, self.config.panel, self.config.lanes)
        return span, self._softmax().limits(points, span.first + span.count)

    def _whole(self, loops: Loops, row: Index, height: int, span: KeySpan) -> None:
        """All keys at once."""
        points = self._points(loops, row, height)
        limits = [span.count] * height
        if self.range.narrows:
            span, limits = self._within(span, points, self.range.bounds(points))
        self._scores(loops, row, points, span)
        greatest = self._softmax().logits(points, span.first, span.count, limits)
        totals = self._softmax().exponentials(greatest, span.count)
        self._store(points, [self._share(t) for t in totals], lambda columns: self._mix(points, columns, span))

    def _rescaled(self, loops: Loops, row: Index, height: int, low: Index, span: KeySpan) -> None:
        """One block of keys, joined with those before it."""
        points = self._points(loops, row, height)

        def joined(seen: KeySpan, limits: Sequence[Index]) -> None:
            self._scores(loops, row, points, seen)
            factors = self._exponentials(self._softmax(), points, row - low, seen, limits)
            for columns in self._columns():
                for i, (factor, row_sums) in enumerate(zip(factors, self._mix(points, columns, seen), strict=True)):
                    for x, value in zip(columns.panel, row_sums, strict=True):
                        where = [row - low + i, Index.ramp(x, self.config.lanes)]
                        self.mixed.store(arith.addf(arith.mulf(self.mixed.load(where), factor), value), where)

        if not self.range.narrows:
            joined(span, [span.first + span.count] * height)
            return
        start, end = (Index(self.ranges.load([row - low, Index(i)])) for i in range(2))
        seen, limits = self._within(span, points, (start, end))
        when(Index(0).lt(seen.count), lambda: joined(seen, limits))

    def _exponentials(self, softmax: VectorSoftmax, points: list[Loops], at: Index, span: KeySpan,
                      limits: Sequence[Index]) -> list[ir.Value]:
        """Of a block of keys, their sums and maxima joined with those before it, which are kept from place `at` on; what the
        values that were mixed before are to be multiplied by."""
        greatest = softmax.logits(points, span.first, span.count, limits)
        places = [[at + i, Index(0)] for i in range(len(points))]
        zero = constant(self.f32, 0, self.config.lanes)
        lowest = constant(self.f32, -inf, self.config.lanes)
        tops, factors = [], []
        for where, top in zip(places, greatest, strict=True):
            before = splat_to(self.greatest.load(where), self.config.lanes)
            now = larger(before, top)
            self.greatest.store(_first(now), where)
            none = arith.cmpf(arith.CmpFPredicate.OEQ, now, lowest)  # all keys so far are masked
            tops.append(arith.select(none, zero, now))
            factors.append(softmax.exponential(arith.subf(before, tops[-1])))
        totals = softmax.exponentials(tops, span.count)
        for where, factor, total in zip(places, factors, totals, strict=True):
            before = splat_to(self.total.load(where), self.config.lanes)
            self.total.store(_first(arith.addf(arith.mulf(before, factor), total)), where)
        return factors

    def _clear(self, row: Index) -> None:
        self.greatest.store(constant(self.f32, -inf), [row, Index(0)])
        self.total.store(constant(self.f32, 0), [row, Index(0)])
        for j in range(self.value_vectors):
            zero = constant(self.f32, 0, self.config.lanes)
            self.mixed.store(zero, [row, Index.ramp(j * self.config.lanes, self.config.lanes)])

    def _finish(self, loops: Loops, row: Index, height: int, low: Index) -> None:
        points = self._points(loops, row, height)
        local = [row - low + i for i in range(height)]
        shares = [self._share(splat_to(self.total.load([x, Index(0)]), self.config.lanes)) for x in local]
        self._store(points, shares, lambda columns: [
            [self.mixed.load([x, Index.ramp(p, self.config.lanes)]) for p in columns.panel] for x in local])

    # -- values

    def _columns(self) -> list[Columns]:
        """The value columns in groups of vectors, as even as they fit the register block."""
        lanes, total = self.config.lanes, self.value_vectors
        groups = -(-total // self.config.nv)
        cuts = [total * i // groups for i in range(groups + 1)]
        found = []
        for start, end in itertools.pairwise(cuts):
            places = tuple(Index(j * lanes) for j in range(start, end))
            masks = tuple(lane_mask(Index(self.view.columns - j * lanes), lanes, self.index) for j in range(start, end))
            found.append(Columns(places, masks, places))
        return found

    def _mix(self, points: list[Loops], columns: Columns, span: KeySpan) -> list[list[ir.Value]]:
        """Sums over a block of keys of exponentials times values, [row][vector]."""
        end, values = span.first + span.count, self.values
        if values is not None:
            values = self._values_at(values, span.skipped)
        block = Block(self.ev, self.mixing, self.block, values, self.weights, (span.first, end))
        return block.accumulate([self._mixed_point(p) for p in points], columns)

    def _values_at(self, values: Memory, key: Index) -> Memory:
        """The copied values from that of a key of the block on, the first one of a panel."""
        before = key // self.config.side * (self.value_vectors * self.config.lanes)
        return replace(values, pointer=self.kernel.offset_pointer(values.pointer, before, ELEMENT))

    def _share(self, total: ir.Value) -> ir.Value:
        """1 / total; 1 where there are no keys at all."""
        one = constant(self.f32, 1, self.config.lanes)
        share = arith.divf(one, total)
        none = self.ev.emit(self.view.keys).eq(0)
        if isinstance(none, bool):
            return one if none else share
        return arith.select(none, one, share)

    def _store(self, points: list[Loops], shares: list[ir.Value], sums: Callable[[Columns], list[list[ir.Value]]]) -> None:
        """Divides the mixed values by the sum of their exponentials and stores what follows from them."""
        results = PlacedResults(self.kernel, self.mixing, self.config.lanes)
        for columns in self._columns():
            values = sums(columns)
            with self.ev.kept():
                for point, share, row in zip(points, shares, values, strict=True):
                    for first, mask, value in zip(columns.first, columns.masks, row, strict=True):
                        results.store(self._mixed_point(point), first, arith.mulf(value, share), mask)


def _bound(run: Callable[[Index, int], None], at: Index, count: int) -> Callable[[], None]:
    return lambda: run(at, count)


def _first(value: ir.Value) -> ir.Value:
    """Lane 0 of a vector."""
    return vector.extract(value, [], [0])
