"""Row reductions with vectors along the columns: a row at a time, or a few of them sweep by sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.analysis.op_kinds import body_names, is_transcendental
from tilewright.passes.codegen.emit import Memory, byte_width, gep, integer_type, lane_mask, loop, when, when_values
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index, delinearize
from tilewright.passes.families.host.host_row_emitter import HostRowEmitter
from tilewright.passes.families.row_emitter import Accumulators, At
from tilewright.passes.mlir import ir, llvm, owner
from tilewright.runtime.limits import LINE
from tilewright.runtime.shape import Expr

_LONG = 8192  # columns of a row that fills the first cache
_FAR = 3 << 20  # elements; logarithms of sums of exponentials of 2^23 take 1/1.5 of their time, of 2^21 1/.97
Walk = Callable[[int, At], list[ir.Value]]


class RowColumns(HostRowEmitter):
    """Vectors along the last column axis. fetching: the sweep that fetches the next row, while such rows are emitted."""

    fetching: int | None = None

    def emit(self, begin: Index, end: Index, workspace: ir.Value) -> Grid:
        c, program = self.config, self.program
        if c.vectors and len(program.columns) > 1:
            raise ValueError(f"{len(program.columns)} column loops cannot be unrolled as one row")
        self.inner = program.columns[-1]
        length = program.frame[self.inner]
        self.extent = self.sizes[self.inner]
        self.whole = self.extent - self.extent % (c.lanes * c.unroll)
        self.full = self.extent - self.extent % c.lanes
        self.slot = Index(0)  # number of the row within its block
        self.mask: ir.Value | None = None  # of the last columns, where a loop walks them
        guards: tuple[Expr, ...] = ()
        if not c.held:
            stored = Expr.of(c.vectors * c.lanes) if c.vectors else length.ceildiv(c.lanes) * c.lanes
            pitch = product_of([*(program.frame[a] for a in program.columns[:-1]), stored])
            row, self.padded = self.ev.emit(pitch), self.ev.emit(stored)
            self.keep_values(workspace, pitch * c.rows, lambda at: self.slot * row + self._column(at))
        self.arrays, self.totals = self._arrays(), self._totals()
        if c.vectors:
            over = (length - c.vectors * c.lanes).maximum(0)
            if over.constant is None:
                guards = (over,)
            elif over.constant > 0:
                raise ValueError(f"{length} columns do not fit {c.vectors} vectors of {c.lanes} lanes")
            self._variants(length, lambda walk: self.walk_units(begin, end, walk))
        else:
            tail = self.extent - self.full
            self.mask = lane_mask(tail, c.lanes, self.index)
            self._near_or_far(lambda: self.walk_units(begin, end, self._looped))
        return Grid(self.workspace, guards)

    def _column(self, at: At) -> Index:
        """Linear number of a column, rows of the last column axis padded to whole vectors."""
        linear = Index(0)
        for a in self.program.columns:
            linear = linear * (self.padded if a == self.inner else self.sizes[a]) + at[a]
        return linear

    def _arrays(self) -> dict[ir.Value, Memory]:
        """Stack arrays for what the rows of a block know between sweeps."""
        if self.config.rows == 1:
            return {}
        values = [r for s in self.program.sweeps for op in s.reductions for r in op.results]
        values += [v for s in self.program.sweeps for v in s.scalars]
        return {v: self.array(ir.RankedTensorType(v.type).element_type, self.config.rows) for v in values}

    def _totals(self) -> dict[int, list[Memory]]:
        """Stack arrays for the totals of sweeps whose rows are finished side by side, a row a lane: four logarithms take as
        long as one."""
        if self.config.rows == 1 or len(self.program.rows) != 1 or self.program.parts:
            return {}
        return {n: [self.array(c.wide, self.config.rows) for c in self.joins(n)]
                for n, sweep in enumerate(self.program.sweeps) if sweep.walks and any(map(_is_slow, sweep.scalars))}

    # -- rows

    def walk_units(self, begin: Index, end: Index, walk: Walk) -> None:
        """All rows of the work units [begin, end)."""
        at = self.kernel.loops[0].numbers(self.ev)
        self.walk_rows(at(begin).first("rows"), at(end - 1).span("rows")[1], walk)

    def walk_rows(self, lo: Index, hi: Index, walk: Walk) -> None:
        """All sweeps of rows [lo, hi); `walk(sweep, at)` walks the columns and gives the totals."""
        sweeps = range(len(self.program.sweeps))
        if self.config.rows == 1:
            def single(row: Index) -> None:
                self.forget()
                at = self.row_at(row)
                with self.ev.kept():
                    for number in sweeps:
                        self.finish(number, at, walk(number, at))

            loop(lo, hi, 1, single, index=self.index)
            return

        def block(first: Index) -> None:
            count = (hi - first).min(self.config.rows)
            known: list[ir.Value] = []
            for number in sweeps:
                known += self._sweep_rows(number, first, count, known, walk)

        loop(lo, hi, self.config.rows, block, index=self.index)

    def _sweep_rows(self, number: int, first: Index, count: Index, known: Sequence[ir.Value], walk: Walk) -> list[ir.Value]:
        """One sweep of `count` rows from `first` on; row scalars go through stack arrays. Returns what is known after it."""
        made: list[ir.Value] = []
        totals = self.totals.get(number)

        def finish(at: At, i: Index, ends: Sequence[ir.Value], mask: ir.Value | None) -> None:
            for value, element in self.finish(number, at, ends, mask):
                self.arrays[value].store(element, [i])
                made.append(value)

        def recall(at: At, i: Index) -> None:
            for value in known:
                self.publish(value, at, self.arrays[value].load([i]))

        def row(i: Index) -> None:
            self.forget()
            self.slot = i
            at = self.row_at(first + i)
            with self.ev.kept():
                recall(at, i)
                ends = walk(number, at)
                if totals is None:
                    finish(at, i, ends, None)
                else:
                    for memory, total in zip(totals, ends, strict=True):
                        memory.store(total, [i])

        loop(0, count, 1, row, index=self.index)
        if totals is not None:
            self.forget()
            rows, every = self.config.rows, Index.ramp(0, self.config.rows)
            at = self.row_at(Index.ramp(first, rows))
            with self.ev.kept():
                recall(at, every)
                finish(at, every, [memory.load([every]) for memory in totals], lane_mask(count, rows, self.index))
        return made

    def row_at(self, row: Index) -> list[Index]:
        at = [Index(0)] * len(self.sizes)
        for a, x in zip(self.program.rows, delinearize(row, [self.sizes[a] for a in self.program.rows]), strict=True):
            at[a] = x
        return at

    # -- columns

    def _variants(self, length: Expr, rows: Callable[[Walk], None]) -> None:
        """One body for each number of vectors; the last vector of a row is masked."""
        c = self.config
        static = length.constant
        counts = list(range(1, c.vectors + 1)) if static is None else [max(1, -(-static // c.lanes))]

        def variant(count: int) -> None:
            mask = lane_mask(self.extent - (count - 1) * c.lanes, c.lanes, self.index)
            rows(lambda number, at: self._unrolled(number, at, count, mask))

        def choose(left: Sequence[int]) -> None:
            if len(left) == 1:
                variant(left[0])
                return
            half = len(left) // 2
            fits = self.extent.le(left[half - 1] * c.lanes)
            when(fits, lambda: choose(left[:half]), lambda: choose(left[half:]))

        choose(counts)

    def _unrolled(self, number: int, at: At, count: int, mask: ir.Value | None) -> list[ir.Value]:
        joins, unroll = self.joins(number), self.config.unroll
        late = bool(self.program.sweeps[number].kept)  # costly values' constants take the registers: they are joined after them
        made: list[list[ir.Value]] = []
        for k in range(count):
            here = self._with(at, Index.ramp(k * self.lanes, self.lanes))
            earlier: Accumulators = made[k - unroll] if k >= unroll and not late else None
            if late:
                self._ask_ahead(number, k, here)
            made.append(self.step(number, here, mask if k == count - 1 else None, earlier, self.config.held))
        for k in range(unroll, count if late else 0):
            made[k] = [c(v, a) for c, v, a in zip(joins, made[k], made[k - unroll], strict=True)]
        ends = [made[range(i, count, unroll)[-1]] for i in range(min(unroll, count))]
        return [c.across(c.join([acc[i] for acc in ends])) for i, c in enumerate(joins)]

    def _ask_ahead(self, number: int, k: int, at: At) -> None:
        """Fetches the lines that the next sweep stores results to."""
        for n in self.program.sweeps[number + 1].results if number + 1 < len(self.program.sweeps) else ():
            memory = self.kernel.outputs[n]
            if k * self.lanes * byte_width(memory.stored) % LINE == 0:
                address = memory.address([c.base for c in self.coords(self.program.result_places[n], at)])
                llvm.intr_prefetch(address, 1, 3, 1)

    def _looped(self, number: int, at: At) -> list[ir.Value]:
        if not self.program.sweeps[number].walks:
            return []
        return self.joined(number, self.nest(number, list(at), self.program.columns[:-1], self.neutral(number)))

    def neutral(self, number: int) -> list[ir.Value]:
        """What the accumulators of a sweep start from."""
        return [c.neutral(self.lanes) for _ in range(self.config.unroll) for c in self.joins(number)]

    def joined(self, number: int, ends: Sequence[ir.Value]) -> list[ir.Value]:
        """The totals of a sweep."""
        joins = self.joins(number)
        return [c.across(c.join(ends[i :: len(joins)])) for i, c in enumerate(joins)]

    def nest(self, number: int, at: list[Index], outer: Sequence[int], carried: Sequence[ir.Value]) -> list[ir.Value]:
        """Loops over the outer column axes around the walk along the last one."""
        if outer:
            def body(i: Index, *accumulators: ir.Value) -> list[ir.Value]:
                here = list(at)
                here[outer[0]] = i
                return self.nest(number, here, outer[1:], accumulators)

            return loop(0, self.sizes[outer[0]], 1, body, carried, self.index)
        per = len(self.joins(number))

        def steps(count: int) -> Callable[..., list[ir.Value]]:
            def body(i: Index, *accumulators: ir.Value) -> list[ir.Value]:
                made: list[ir.Value] = []
                for k in range(count):
                    here = self._with(at, Index.ramp(i + k * self.lanes, self.lanes))
                    made += self.step(number, here, None, list(accumulators[k * per : (k + 1) * per]))
                return made

            return body

        wide = self.lanes * self.config.unroll
        ends = loop(0, self.whole, wide, steps(self.config.unroll), carried, self.index)
        first, rest = ends[:per], ends[per:]
        if self.config.unroll > 1:
            first = loop(self.whole, self.full, self.lanes, steps(1), first, self.index)
        at_end = self._with(at, Index.ramp(self.full, self.lanes))
        first = when_values(self.full.lt(self.extent), first, lambda: self.step(number, at_end, self.mask, first))
        return [*first, *rest]

    def step(self, number: int, at: At, mask: ir.Value | None, accumulators: Accumulators, held: bool = False) -> list[ir.Value]:
        if number == self.fetching:
            self._fetch_next(at)
        return super().step(number, at, mask, accumulators, held)

    def _near_or_far(self, walk: Callable[[], None]) -> None:
        """Where rows are so long that no first cache holds one, so many that the others hardly hold them, and taken one at a
        time, the last of several sweeps fetches what the first one will read of the next row: memory would rest while it
        computes."""
        program, columns = self.program, [self.program.frame[a].constant for a in self.program.columns]
        last = max((n for n, sweep in enumerate(program.sweeps) if sweep.walks), default=0)
        if not last or not program.rows or self.config.rows > 1 or len(columns) > 1 or (columns[0] or 0) < _LONG:
            walk()
            return
        elements = self.extent
        for a in program.rows:
            elements = elements * self.sizes[a]

        def far() -> None:
            self.fetching = last
            walk()
            self.fetching = None

        when(Index(_FAR).le(elements), far, walk)

    def _fetch_next(self, at: At) -> None:
        here = list(at)
        here[self.program.rows[-1]] = here[self.program.rows[-1]] + 1
        for value, (place, sweep) in self.program.first_reads().items():
            if sweep == 0:
                memory = self.ev.memories[value]
                address = memory.address([c.base for c in self.coords(place, here)])
                for line in range(0, self.lanes * byte_width(memory.stored), LINE):
                    llvm.intr_prefetch(gep(address, Index(line).value(self.index), integer_type(8)), 0, 2, 1)

    def _with(self, at: At, column: Index) -> list[Index]:
        here = list(at)
        here[self.inner] = column
        return here


def _is_slow(scalar: ir.Value) -> bool:
    """Is an element of it made by an exponential, a logarithm or the like?"""
    op = owner(scalar)
    return op is not None and any(map(is_transcendental, body_names(op)))


def product_of(extents: Sequence[Expr]) -> Expr:
    total = Expr.of(1)
    for e in extents:
        total = total * e
    return total
