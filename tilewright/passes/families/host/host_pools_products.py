"""Products with weights out of pools: rows side by side, tables of a few groups of the sum, columns that add from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.pools import Pools, loop_of
from tilewright.passes.analysis.whole_rows import WholeRows
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import Memory, byte_width, constant, integer_type, lane_mask, loop, vector_type, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index, delinearize
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops, row_points
from tilewright.passes.families.host.host_matmul_store import PlacedResults
from tilewright.passes.families.host.host_pools_bytes import MANY
from tilewright.passes.families.host.host_pools_narrow import LOW_ROWS, NarrowTables
from tilewright.passes.families.host.host_pools_permute import LANES, PermuteTables
from tilewright.passes.families.host.host_pools_shuffle import ShuffleTables, joined, split
from tilewright.passes.families.host.host_pools_tables import PoolTables, transposed
from tilewright.passes.mlir import arith, ir, llvm, maps_of, vector
from tilewright.passes.spaces.host.host_pools import INDICES, NARROW_BITS, PERMUTED_COLUMNS, VECTOR, HostPoolsConfig
from tilewright.runtime.limits import LINE
from tilewright.runtime.shape import Expr

_UNROLLED = 16  # groups without a loop
_TURN = 8  # groups of one turn of a loop
_PAIRS_AHEAD = 4  # of panels, whose indices are fetched while tables are made, and ahead of those that are added
_CHAINS = {1: 8, 4: 4, 8: 4}  # columns that are added to in turn, by rows


def row_bits(plan: Plan) -> int | ir.Value | None:
    """Bits of the rows, where they are whole numbers."""
    found = WholeRows.behind(plan.view.operand(plan.narrow))
    return None if found is None else found.bits


@dataclass(frozen=True)
class PoolsEmitter:
    """Emits the work units."""

    kernel: HostKernel
    config: HostPoolsConfig
    plan: Plan
    pools: Pools
    workspace: ir.Value

    @property
    def _axes(self) -> list[tuple[int, int]]:
        """Loops of the decoding along the sum, in the order of the indices, each with its extent, of the channels in vectors."""
        pools, view = self.pools, self.plan.view
        found = []
        for e in list(maps_of(pools.op)[pools.books[0].index].results)[1:-1]:
            if isinstance(e, ir.AffineConstantExpr):
                continue
            loops = [d for d in range(maps_of(pools.op)[-1].n_dims) if ir.AffineExpr.get_dim(d) in _dims_of(e)]
            extent = view.extents[loop_of(view, self.plan.wide, pools, loops[0])].constant
            assert extent is not None
            found.append((loops[0], extent // pools.vector if loops[0] == pools.channel else extent))
        return found

    @property
    def _groups(self) -> int:
        """Vectors along the sum."""
        total = 1
        for _, extent in self._axes:
            total *= extent
        return total

    @property
    def _sum(self) -> ir.Type:
        """Of a sum: i32 where rows are whole numbers."""
        return integer_type(32) if self.config.bits else ir.F32Type.get()

    @property
    def _tables(self) -> PoolTables | NarrowTables | ShuffleTables | PermuteTables:
        ev, rows = self.kernel.evaluator, self.config.rows
        if self.config.by_bytes:
            products = PoolTables(ev, self.plan, self.pools, 1, self._memory("pool", ir.F32Type.get()),
                                  self._memory("tables", ir.F32Type.get()), lanes=MANY if self.config.permute else VECTOR)
            tables = self._memory("tables", integer_type(8))
            if self.config.permute:
                return PermuteTables(products, self.config.bits, tables, self._memory("masks", integer_type(32)))
            return ShuffleTables(products, self.config.bits, tables)
        if self.config.is_narrow:
            return NarrowTables(ev, self.plan, self.pools, self.config.bits, self._memory("pool", self._sum),
                                self._memory("tables", integer_type(16)))
        wide = self._memory("tables", self._sum)
        return PoolTables(ev, self.plan, self.pools, rows, self._memory("pool", ir.F32Type.get()), wide)

    def _areas(self) -> dict[str, int]:
        """Words of 32 bits of what the workspace holds, in order. Behind the tables lies what an index beyond a pool would name,
        which no compiled model has."""
        rows, books, entries = self.config.rows, len(self.pools.books), PoolTables.padded(self.pools)
        some = min(self.config.groups, max(1, self._groups))
        if self.config.permute:
            table = some * books * ShuffleTables.planes(self.config.bits) * PermuteTables.entries(self.pools) // 4
            return {"pool": books * PoolTables.padded(self.pools, MANY) * VECTOR, "tables": table, "sums": self.config.columns,
                    "results": 0, "masks": PermuteTables.mask_words(self.pools, self.config.bits)}
        if self.config.shuffle:
            table = some * books * ShuffleTables.planes(self.config.bits) * ShuffleTables.entries(self.pools) // 4
            return {"pool": books * entries * VECTOR, "tables": table, "sums": self.config.columns, "results": 0}
        return {"pool": books * entries * VECTOR, "tables": some * books * entries * rows + (INDICES - entries) * rows,
                "sums": self.config.columns * rows, "results": self.config.columns * rows if rows > 1 else 0}

    def _memory(self, area: str, element: ir.Type) -> Memory:
        start = 0
        for name, elements in self._areas().items():
            if name == area:
                break
            start += elements
        at = self.kernel.offset_pointer(self.workspace, Index(start), byte_width(self._sum))
        return Memory(at, element, (Index(0),), (Index(1),), self.kernel.index)

    def units(self, begin: Index, end: Index) -> Grid:
        ev, plan, index = self.kernel.evaluator, self.plan, self.kernel.index
        count, at = ev.emit(plan.view.extents[plan.column]), self.kernel.loops[0].numbers(ev)

        def unit(u: Index) -> None:
            here = at(u)
            (low, high), first = here.span("rows"), here.first("columns")
            loop(low, high, self.config.rows, lambda row: self._block(row, high, first, count), index=index)

        when(begin.lt(end), self._tables.fill)
        loop(begin, end, 1, unit, index=index)
        return self._grid

    @property
    def _grid(self) -> Grid:
        return Grid(Expr.of(sum(self._areas().values()) * byte_width(self._sum)), self._guards)

    @property
    def _guards(self) -> tuple[Expr, ...]:
        """Rows have no more bits than tables of 16 bits hold."""
        bits = row_bits(self.plan)
        if not 0 < self.config.bits <= NARROW_BITS or bits is None:
            return ()
        found = Expr.of(bits) if isinstance(bits, int) else self.kernel.shapes.expr(bits)
        assert found is not None
        return ((found - self.config.bits).maximum(0),)

    def _block(self, row: Index, high: Index, first: Index, count: Index) -> None:
        """A block of rows from `row` on, of which those below `high` are there, by the columns of a unit."""
        plan, rows, index = self.plan, self.config.rows, self.kernel.index
        sums, lanes = self._memory("sums", self._sum), VECTOR
        loops: Loops = [None for _ in plan.view.extents]
        panels = (count - first).min(self.config.columns).ceildiv(self.pools.tile)
        zero = constant(self._sum, self._start, lanes)
        beside = PERMUTED_COLUMNS // self.pools.tile if self.config.permute else 1
        places = panels.ceildiv(beside) * (beside * self.pools.tile * rows)
        loop(0, places, lanes, lambda i: sums.store(zero, [Index.ramp(i, lanes)]), index=index)
        points = [self._point(loops, (row + i).min(high - 1)) for i in range(rows)]
        total, some = self._groups, min(self.config.groups, max(1, self._groups))

        def piece(g: Index, groups: int) -> None:
            panel = first // self.pools.tile

            def made(i: Index) -> None:
                if self.config.permute:
                    self._fetch_lines([panel + n for n in range(2 * _PAIRS_AHEAD)], g, [i * self.pools.tile])
                self._tables.make(self._at(points, g + i), i)

            loop(0, groups, 1, made, index=index)
            if self.config.permute:
                loop(0, panels, beside, lambda p: self._permuted_panels((panel, panels), p, g, groups), index=index)
            else:
                loop(0, panels, 1, lambda p: self._panel(panel + p, p * self.pools.tile, g, groups), index=index)

        whole = total // some * some
        loop(0, whole, some, lambda g: piece(g, some), index=index)
        if total - whole:
            piece(Index(whole), total - whole)
        if self.config.permute:
            loop(0, panels, beside, self._in_order, index=index)
        self._results(loops, (row, high), first, count)

    @property
    def _start(self) -> int:
        """What sums begin with: less the biases of all groups that will be added, modulo 2 ** 32."""
        added = ShuffleTables.bias(self.config.bits) * self._groups * len(self.pools.books) if self.config.by_bytes else 0
        return (-added + (1 << 31)) % (1 << 32) - (1 << 31)

    def _point(self, loops: Loops, row: Index) -> Loops:
        sizes = [self.kernel.evaluator.emit(self.plan.view.extents[d]) for d in self.plan.rows]
        return row_points(loops, self.plan.rows, sizes, row, 1)[0]

    def _at(self, points: Sequence[Loops], group: Index) -> list[Loops]:
        """The rows with the coordinates of a group along the sum."""
        axes = self._axes
        numbers = delinearize(group, [Index(extent) for _, extent in axes])
        found = []
        for point in points:
            here = [Index(0) if x is None and d in self.plan.view.k else x for d, x in enumerate(point)]
            for (d, _), number in zip(axes, numbers, strict=True):
                own = loop_of(self.plan.view, self.plan.wide, self.pools, d)
                here[own] = Index.ramp(number * VECTOR, VECTOR) if d == self.pools.channel else number
            found.append(here)
        return found

    def _panel(self, panel: Index, place: Index, group: Index, groups: int) -> None:
        """Adds what the indices of a panel name for `groups` groups from `group` on. place: of its columns among the sums."""
        self._fetch(panel + 1, group, groups)
        rows, tile, index = self.config.rows, self.pools.tile, self.kernel.index
        if self.config.shuffle:
            self._shuffled_panel(panel, place, group, groups)
            return
        if self.config.is_narrow:
            self._narrow_panel(panel, place, group, groups)
            return
        sums, chains = self._memory("sums", self._sum), _CHAINS[rows]
        named = [self._indices(book.index, panel, group) for book in self.pools.books]

        def columns(j: Index) -> None:
            at = [[Index.ramp((place + j + c) * rows, rows)] for c in range(chains)]
            carried = [sums.load(a) for a in at]

            def several(i: Index, many: int, given: Sequence[ir.Value]) -> list[ir.Value]:
                done = list(given)
                for n in range(many):
                    for c in range(chains):
                        done[c] = self._added(done[c], [m.load([(i + n) * tile + j + c]) for m in named], i + n)
                return done

            if groups <= _UNROLLED:
                carried = several(Index(0), groups, carried)
            else:
                whole = groups // _TURN * _TURN
                carried = loop(0, whole, _TURN, lambda i, *c: several(i, _TURN, c), carried, index)
                carried = several(Index(whole), groups - whole, carried)
            for a, value in zip(at, carried, strict=True):
                sums.store(value, a)

        loop(0, tile, chains, columns, index=index)

    def _shuffled_panel(self, panel: Index, place: Index, group: Index, groups: int) -> None:
        """The same by shuffles of bytes."""
        tables, tile = self._tables, self.pools.tile
        assert isinstance(tables, ShuffleTables)
        sums = self._memory("sums", self._sum)
        named = [self._indices(book.index, panel, group) for book in self.pools.books]
        at = [[Index.ramp(place + VECTOR * n, VECTOR)] for n in range(tile // VECTOR)]

        def one(i: Index, given: Sequence[ir.Value]) -> list[ir.Value]:
            return tables.add(given, i, [m.load([Index.ramp(i * tile, tile)]) for m in named])

        carried = split([sums.load(a) for a in at])
        carried = loop(0, groups, 1, lambda i, *c: one(i, c), carried, self.kernel.index)
        for a, value in zip(at, joined(carried), strict=True):
            sums.store(value, a)

    def _permuted_panels(self, span: tuple[Index, Index], number: Index, group: Index, groups: int) -> None:
        """The same of two panels by permutations of bytes. span: the first panel of the unit, and how many it has; number: within
        it, of the first of the two; the second one is the first again where there is no other."""
        tables, tile, (first, count) = self._tables, self.pools.tile, span
        assert isinstance(tables, PermuteTables)
        sums = self._memory("sums", self._sum)
        panels = [first + number, first + (number + 1).min(count - 1)]
        named = [[self._indices(book.index, p, group) for p in panels] for book in self.pools.books]
        ahead = [p + 2 * _PAIRS_AHEAD for p in panels]
        at = self._permuted_sums(number)

        def turn(i: Index, many: int, given: Sequence[ir.Value]) -> list[ir.Value]:
            self._fetch_lines(ahead, group, [i * tile + line for line in range(0, many * tile, LINE)])
            halves = [[[m.load([Index.ramp((i + n) * tile, tile)]) for m in pair] for pair in named] for n in range(many)]
            return tables.add(given, i, [[vector.shuffle(*pair, list(range(2 * tile))) for pair in books] for books in halves])

        before = [sums.load(a) for a in at]
        each, carried = tables.turn, tables.begin(before)
        whole = groups // each * each
        carried = loop(0, whole, each, lambda i, *c: turn(i, each, c), carried, self.kernel.index)
        carried = turn(Index(whole), groups - whole, carried) if groups > whole else carried
        for a, value in zip(at, tables.finish(before, carried), strict=True):
            sums.store(value, a)

    def _permuted_sums(self, number: Index) -> list[list[Index]]:
        """Where the sums of a panel and of the next one lie."""
        return [[Index.ramp(number * self.pools.tile + LANES * n, LANES)] for n in range(PERMUTED_COLUMNS // LANES)]

    def _in_order(self, number: Index) -> None:
        """Puts the sums of a panel and of the next one in the order of their columns."""
        tables, sums, at = self._tables, self._memory("sums", self._sum), self._permuted_sums(number)
        assert isinstance(tables, PermuteTables)
        for a, value in zip(at, tables.columns([sums.load(a) for a in at]), strict=True):
            sums.store(value, a)

    def _narrow_panel(self, panel: Index, place: Index, group: Index, groups: int) -> None:
        """The same of tables of 16 bits."""
        rows, tile, tables = self.config.rows, self.pools.tile, self._tables
        assert isinstance(tables, NarrowTables)
        sums = self._memory("sums", self._sum)
        named = [self._indices(book.index, panel, group) for book in self.pools.books]

        def column(j: Index) -> None:
            at = [[Index.ramp((place + j) * rows + half * VECTOR, VECTOR)] for half in (0, 1)]

            def several(i: Index, many: int, given: Sequence[ir.Value]) -> list[ir.Value]:
                places = [self._narrow_place(tables, i + n, book, m, (i + n) * tile + j)
                          for n in range(many) for book, m in enumerate(named)]
                return tables.add(given, places)

            carried = [sums.load(a) for a in at]
            if groups <= _UNROLLED:
                carried = several(Index(0), groups, carried)
            else:
                whole = groups // _UNROLLED * _UNROLLED
                carried = loop(0, whole, _UNROLLED, lambda i, *c: several(i, _UNROLLED, c), carried, self.kernel.index)
                carried = several(Index(whole), groups - whole, carried) if groups > whole else carried
            for a, value in zip(at, carried, strict=True):
                sums.store(value, a)

        loop(0, tile, 1, column, index=self.kernel.index)

    def _narrow_place(self, tables: NarrowTables, group: Index, book: int, named: Memory, at: Index) -> Callable[[], ir.Value]:
        return lambda: tables.load(group, book, Index(arith.extui(self.kernel.index, named.load([at]))))

    def _fetch(self, panel: Index, group: Index, groups: int) -> None:
        """The lines of the indices of a panel, which lies apart from the one before it, to the first-level cache."""
        for book in self.pools.books:
            named = self._indices(book.index, panel, group)
            lines = -(-groups * self.pools.tile // LINE)

            def line(n: Index, named: Memory = named) -> None:
                llvm.intr_prefetch(named.address([n * LINE]), 0, 3, 1)

            if lines <= _UNROLLED:
                for n in range(lines):
                    line(Index(n))
            else:
                loop(0, lines, 1, line, index=self.kernel.index)

    def _fetch_lines(self, panels: Sequence[Index], group: Index, places: Sequence[Index]) -> None:
        """The lines at some places of the indices of panels from a group on, to the second-level cache."""
        for book in self.pools.books:
            for panel in panels:
                named = self._indices(book.index, panel, group)
                for place in places:
                    llvm.intr_prefetch(named.address([place]), 0, 2, 1)

    def _indices(self, operand: int, panel: Index, group: Index) -> Memory:
        """The bytes of a panel from a group on: [group][column]."""
        memory = self.kernel.evaluator.memories[self.pools.op.operands[operand]]
        rank = len(memory.strides)
        start = memory.address([panel, *[Index(0)] * (rank - 1)])
        at = self.kernel.offset_pointer(start, group * self.pools.tile, 1)
        return Memory(at, memory.element, (Index(0),), (Index(1),), self.kernel.index)

    @property
    def _channels(self) -> int:
        """Vectors of channels."""
        return next(extent for d, extent in self._axes if d == self.pools.channel)

    @property
    def _channel_loop(self) -> int:
        return loop_of(self.plan.view, self.plan.wide, self.pools, self.pools.channel)

    def _named(self, operand: int, panel: Index, taps: Mapping[int, Index | int], channels: Index) -> Memory:
        """The bytes of a panel at a place of the window, by loop, and a vector of channels."""
        number = Index(0)
        for d, extent in self._axes:
            here = channels if d == self.pools.channel else Index(taps[loop_of(self.plan.view, self.plan.wide, self.pools, d)])
            number = number * extent + here
        return self._indices(operand, panel, number)

    def _added(self, sum_: ir.Value, named: Sequence[ir.Value], group: Index) -> ir.Value:
        """A column's sums with what its indices name of each book."""
        tables, index = self._tables, self.kernel.index
        assert isinstance(tables, PoolTables)
        add = arith.addi if self.config.bits else arith.addf
        total: ir.Value | None = None
        for number, byte in enumerate(named):
            entry = Index(arith.extui(index, byte))
            found = tables.load(group, number, entry)
            total = found if total is None else add(total, found)
        assert total is not None
        return add(sum_, total)

    def _results(self, loops: Loops, span: tuple[Index, Index], first: Index, count: Index, start: Index | int = 0,
                 wide: int = 0) -> None:
        """What follows the sums of a block, which begin at `start`, `wide` or as many as it has rows for each column."""
        (row, high), rows, index = span, self.config.rows, self.kernel.index
        width, left = self.config.columns, (count - first).min(self.config.columns)
        sums = self._memory("sums", self._sum)
        if rows > 1:
            results = self._memory("results", self._sum)
            high_rows = [r + 4 for r in LOW_ROWS]
            halves = [(0, LOW_ROWS), (1, high_rows)] if self.config.is_narrow else [(0, range(rows))]

            def turned(j: Index) -> None:
                for half, numbers in halves:
                    found = transposed([sums.load([Index.ramp((j + c) * (wide or rows) + start + half * VECTOR, len(numbers))])
                                        for c in range(VECTOR)])
                    for i, value in zip(numbers, found, strict=True):
                        results.store(value, [Index.ramp(j + i * width, VECTOR)])

            loop(0, left.ceildiv(VECTOR) * VECTOR, VECTOR, turned, index=index)
            sums = results

        def each(i: Index) -> None:
            self._vectors(self._point(loops, row + i), first, first + left,
                          lambda j, n: sums.load([Index.ramp(i * width + j, n)]))

        loop(0, (high - row).min(rows), 1, each, index=index)

    def _vectors(self, point: Loops, first: Index, end: Index, sums: Callable[[Index, int], ir.Value], lanes: int = VECTOR,
                 most: int | None = None) -> None:
        """What follows the sums of columns [first, end) of a row, at most `most`, perhaps none. sums: of a number of columns that
        begin so far behind the first."""
        ev, pools, index, f32 = self.kernel.evaluator, self.pools, self.kernel.index, ir.F32Type.get()
        stored = PlacedResults(self.kernel, self.plan, lanes)

        def vector(j: Index, mask: ir.Value | None) -> None:
            value = sums(j, lanes)
            if self.config.bits:
                value = arith.sitofp(vector_type(f32, lanes), value)
            with ev.kept():
                if pools.scale is not None:
                    value = arith.mulf(value, self._scale(first + j, mask, lanes))
                if pools.factor != 1.0:
                    value = arith.mulf(value, constant(f32, pools.factor, lanes))
                stored.store(point, first + j, value, mask)

        left = end - first if most is None else (end - first).min(most).max(0)
        whole = left - left % lanes
        loop(0, whole, lanes, lambda j: vector(j, None), index=index)
        if not self.plan.view.extents[self.plan.column].divisible_by(lanes):
            rest = left - whole
            when(Index(0).lt(rest), lambda: vector(whole, lane_mask(rest, lanes, index)))

    def _scale(self, column: Index, mask: ir.Value | None, lanes: int) -> ir.Value:
        """The scales of a vector of columns, f32."""
        pools = self.pools
        assert pools.scale is not None and pools.n is not None
        point: list[Index | None] = [None] * maps_of(pools.op)[-1].n_dims
        point[pools.n] = Index.ramp(column, lanes)
        coords = [evaluate(e, point) for e in maps_of(pools.op)[pools.scale].results]
        value = self.kernel.evaluator.element(pools.op.operands[pools.scale], coords, mask)
        return value if isinstance(ir.VectorType(value.type).element_type, ir.F32Type) else \
            arith.extf(vector_type(ir.F32Type.get(), lanes), value)


def _dims_of(e: ir.AffineExpr) -> list[ir.AffineExpr]:
    """The loop that an axis of indices runs along."""
    return [ir.AffineFloorDivExpr(e).lhs if isinstance(e, ir.AffineFloorDivExpr) else e]
