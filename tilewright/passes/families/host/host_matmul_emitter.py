"""Emits the work units of host matmuls from register blocks, copies, streams and pieces of k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.passes.codegen.emit import Memory, byte_width, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.host.host_matmul_block import Block, Columns, Loops
from tilewright.passes.families.host.host_matmul_dot import Dot
from tilewright.passes.families.host.host_matmul_panel import PanelCopy
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_row_copy import RowCopy
from tilewright.passes.families.host.host_matmul_rows import forget_constants, opaque, row_blocks
from tilewright.passes.families.host.host_matmul_spans import Spans
from tilewright.passes.families.host.host_matmul_store import PlacedResults
from tilewright.passes.families.host.host_matmul_stream import Stream
from tilewright.passes.families.host.host_matmul_taps import Box, Taps
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.host_matmul import FEW_PRODUCTS, SHORT_ROW, HostMatmulConfig, Pack
from tilewright.runtime.limits import LINE
from tilewright.runtime.shape import Expr

APART = 16  # elements between copied rows, so that they do not share cache sets
Mask = Callable[["Index | int"], "ir.Value | None"]


@dataclass(frozen=True)
class MatmulUnit:
    """Rows [low, high) of the columns from `first` on, of `extent` columns in all; loops: coordinates of the shared loops."""

    loops: Loops
    first: Index
    extent: Index
    low: Index
    high: Index


@dataclass(frozen=True)
class Taken:
    """Rows [low, high) of a box."""

    box: Box
    low: Index
    high: Index


@dataclass(frozen=True)
class Piece:
    """A piece of k of a unit, with its copied rows; sums: where they lie between pieces, and whether this is the last.

    taken: rows of a space of their own, where the piece does not take all of the unit's. multiplies: else it is the last, and
    gives what the sums are.
    """

    unit: MatmulUnit
    span: tuple[Index, Index] | None
    rows: RowCopy | None
    sums: tuple[Memory, bool] | None
    taken: Taken | None = None
    multiplies: bool = True

    @property
    def low(self) -> Index:
        return self.unit.low if self.taken is None else self.taken.low

    @property
    def high(self) -> Index:
        return self.unit.high if self.taken is None else self.taken.high


@dataclass(frozen=True)
class MatmulEmitter:
    """Emits the work units. A family whose columns are made in another way says how they are copied and read."""

    kernel: HostKernel
    config: HostMatmulConfig
    plan: Plan
    workspace: ir.Value
    taps: Taps | None = None

    @property
    def _element(self) -> ir.Type:
        return self.plan.view.product.accumulator

    @property
    def _copies(self) -> bool:
        """Are the columns copied to the workspace?"""
        return not self.plan.tile and not self.config.stream and (self.config.pack is Pack.PANEL or not self.plan.in_place)

    @property
    def _fills(self) -> bool:
        """Does the first block of rows copy the columns while it reads them?"""
        alone = self._spans is None or not self._spans.of_rows
        return self._copies and self.plan.in_place and alone and not self.config.by_rows

    @property
    def _spans(self) -> Spans | None:
        return Spans.of(self.kernel.evaluator, self.plan)

    @property
    def _depth(self) -> Expr:
        """Steps of k in a piece: values, or words of the last loop."""
        each = self.config.side
        if self.config.kc:
            return Expr.of(self.config.kc).ceildiv(each)
        k = self.plan.view.k
        return self.plan.view.size(k[:-1]) * self.plan.view.extents[k[-1]].ceildiv(each) if k else Expr.of(1)

    @property
    def _copied(self) -> ir.Type:
        """Element of copied factors."""
        return integer_type(32) if self.config.side > 1 else self._element

    def _areas(self) -> dict[str, Expr]:
        """Elements of what the workspace holds, in order. A transposing copy writes up to `lanes` rows beyond the last."""
        config, plan = self.config, self.plan
        return {
            "panel": self._panel_size * (config.panels if config.by_rows else 1) if self._copies else Expr.of(0),
            "rows": (self._depth + APART) * config.mc if config.copy_rows else Expr.of(0),
            "sums": Expr.of(config.mc * config.panels * config.columns if config.kc or self.taps else 0),
            "block": Expr.of(config.columns * (max(1, config.mc) if config.stream else config.mr if plan.heavy else 0)),
        }

    @property
    def _panel_size(self) -> Expr:
        """Elements of a copied panel."""
        return (self._depth + self.config.lanes) * self.config.columns

    def _memory(self, area: str, row: Expr | int, first: Index | int = 0) -> Memory:
        """An area of the workspace with rows of so many elements, from its element `first` on."""
        start = Expr.of(0)
        for name, elements in self._areas().items():
            if name == area:
                break
            start = start + elements
        place = self.kernel.evaluator.emit(start) + first
        at = self.kernel.offset_pointer(self.workspace, place, byte_width(self._element))
        strides = (self.kernel.evaluator.emit(Expr.of(row)), Index(1))
        element = self._copied if area in ("panel", "rows") else self._element
        return Memory(at, element, strides, strides, self.kernel.index)

    def units(self, begin: Index, end: Index) -> Grid:
        ev, plan, config = self.kernel.evaluator, self.plan, self.config
        space = Expr.of(0)
        for elements in self._areas().values():
            space = space + elements
        count, at = ev.emit(plan.view.extents[plan.column]), self.kernel.loops[0].numbers(ev)

        def unit(u: Index) -> None:
            here = at(u)
            loops: Loops = [here.first(f"d{d}") if d in plan.shared else None for d in range(len(plan.view.extents))]
            (low, high), first = here.span("rows"), here.first("columns")
            if config.stream:
                self._stream(loops, first, count - first, low, high)
            elif self.taps is not None:
                self._each_tap(self.taps, MatmulUnit(loops, first, count, low, high))
            else:
                self._pieces(MatmulUnit(loops, first, count, low, high))

        loop(begin, end, 1, unit, index=self.kernel.index)
        return Grid(workspace=space * byte_width(self._element))

    def _pieces(self, unit: MatmulUnit) -> None:
        """All of k, or one piece of it after the other with the sums in the workspace in between."""
        kc, span = self.config.kc, self._needed(unit)
        if not kc:
            self._piece(unit, span, None)
            return
        sums = self._zero_sums(unit)
        begin, end = span or (Index(0), self.kernel.evaluator.emit(self.plan.depth))
        last = begin + ((end - begin).max(1) - 1) // kc * kc
        loop(begin, last, kc, lambda k: self._piece(unit, (k, k + kc), (sums, False)), index=self.kernel.index)
        self._piece(unit, (last, end), (sums, True))

    def _needed(self, unit: MatmulUnit) -> tuple[Index, Index] | None:
        """The part of k that the rows or the columns of a unit have factors other than 0 for; None for all."""
        spans = self._spans
        if spans is None:
            return None
        if spans.of_rows:
            return spans.whole(unit.low, unit.high)
        return spans.whole(unit.first, (unit.first + self.config.columns * self.config.panels).min(unit.extent))

    @property
    def _together(self) -> int:
        """Rows that are copied side by side: those of a block, where the operand is contiguous along the rows and a block is as
        long as a vector."""
        config = self.config
        return config.mr if self.plan.runs_across and config.side == 1 and config.mr in (2, 4, 8) else 0

    def _zero_sums(self, unit: MatmulUnit) -> Memory:
        width, lanes = self.config.panels * self.config.columns, self.config.lanes
        sums = self._memory("sums", width)
        zero = ProductCode(self.plan.view.product).zero(lanes)
        loop(0, (unit.high - unit.low) * width, lanes,
             lambda i: sums.store(zero, [Index(0), Index.ramp(i, lanes)]), index=self.kernel.index)
        return sums

    def _each_tap(self, taps: Taps, unit: MatmulUnit) -> None:
        """The products of one tap after the other with the rows that it reads no padding for, then the results."""
        sums = self._zero_sums(unit)

        def tap(loops: Loops, box: Box) -> None:
            taken = Taken(box, box.before(unit.low), box.before(unit.high))
            self._panels(Piece(replace(unit, loops=loops), None, None, (sums, False), taken))

        taps.each(self.kernel.evaluator, unit.loops, tap)
        self._panels(Piece(unit, None, None, (sums, True), multiplies=False))

    def _piece(self, unit: MatmulUnit, span: tuple[Index, Index] | None, sums: tuple[Memory, bool] | None) -> None:
        """span: of k; sums: where they lie between pieces, and whether this piece is the last."""
        rows = None
        if self.config.copy_rows:
            memory = self._memory("rows", self._depth + APART)
            rows = RowCopy(self.kernel.evaluator, self.plan, self.config.lanes, memory, span, self.config.side, self._together)
            rows.copy(unit.loops, unit.low, unit.high)
        self._panels(Piece(unit, span, rows, sums))

    def _panels(self, piece: Piece) -> None:
        unit, width = piece.unit, self.config.columns
        if self.config.panels == 1:
            self._panel(piece, unit.first)
            return
        panels = ((unit.extent - unit.first + (width - 1)) // width).min(self.config.panels)

        def each(body: Callable[[Index, Index], None]) -> None:
            """body(number of a panel, its first column)"""
            loop(0, panels, 1, lambda j: body(j, unit.first + j * width), index=self.kernel.index)

        if self.config.by_rows:
            self._by_rows(piece, each)
        else:
            each(lambda _, first: self._panel(piece, first))

    def _by_rows(self, piece: Piece, each: Callable[[Callable[[Index, Index], None]], None]) -> None:
        """Copies all panels, then multiplies them by one block of rows after the other."""
        unit, mr, size = piece.unit, self.config.mr, self.kernel.evaluator.emit(self._panel_size)

        def panel(number: Index) -> Memory:
            return self._memory("panel", self.config.columns, number * size)

        def rows(low: Index) -> None:
            block = replace(piece, unit=replace(unit, low=low, high=(low + mr).min(unit.high)))
            each(lambda j, first: self._multiply(block, self.reading(panel(j), piece.span), first))

        each(lambda j, first: self.copying(panel(j), piece.span).copy(unit.loops, first, unit.extent - first, unit.extent))
        loop(unit.low, unit.high, mr, rows, index=self.kernel.index)

    def _panel(self, piece: Piece, first: Index) -> None:
        """The rows of a unit times the columns of the panel from `first` on."""
        config = self.config
        panel = self._memory("panel", config.columns) if self._copies else None
        left, spans = piece.unit.extent - first, self._spans
        if spans is not None and not spans.of_rows and piece.rows is None:
            piece = replace(piece, span=spans.whole(first, first + left.min(config.columns), piece.span))
        if panel is not None and piece.multiplies:
            copy = self.copying(panel, piece.span)
            few = (piece.high - piece.low).lt(config.mr) if self._fills else True
            when(few, lambda: copy.copy(piece.unit.loops, first, left, piece.unit.extent))
        self._multiply(piece, self.reading(panel, piece.span), first)

    def _multiply(self, piece: Piece, block: Block, first: Index) -> None:
        """The rows of a piece times the columns of a panel, from `first` on."""
        config, lanes, left = self.config, self.config.lanes, piece.unit.extent - first

        def whole() -> None:
            self._rows(piece, block, first, Index(0), config.nv, None)

        def part() -> None:
            known = self.plan.view.extents[self.plan.column].constant
            if known is not None:
                count = known % config.columns
                self._rows(piece, block, first, Index(0), -(-count // lanes), Index(count))
                return

            def some(vectors: int) -> Callable[[Index], None]:
                return lambda j: self._rows(piece, block, first, j * lanes, vectors, left - j * lanes)

            every = (left + (lanes - 1)) // lanes
            even = every - every % 2 if config.nv > 2 else Index(0)
            if config.nv > 2:
                loop(0, even, 2, some(2), index=self.kernel.index)
            loop(even, every, 1, some(1), index=self.kernel.index)

        full = self._full()
        if full is None and self._tells_last:
            when(left.ge(config.columns - lanes + 1), lambda: self._rows(piece, block, first, Index(0), config.nv, left), part)
        else:
            when(left.ge(config.columns) if full is None else full, whole, part)

    def copying(self, panel: Memory, span: tuple[Index, Index] | None) -> PanelCopy:
        """What copies the columns of a panel, or of a piece of its k."""
        return PanelCopy(self.kernel.evaluator, self.plan, self.config, panel, span)

    def reading(self, panel: Memory | None, span: tuple[Index, Index] | None) -> Block:
        """What sums a register block, of copied columns or of those in place."""
        return Block(self.kernel.evaluator, self.plan, self.config, panel, span=span)

    def _stream(self, loops: Loops, first: Index, left: Index, low: Index, high: Index) -> None:
        """A chunk of rows, or one row after the other, with sums in the workspace; dot products where columns are transposed."""
        block = Block(self.kernel.evaluator, self.plan, self.config, None)
        if self.plan.transposed:
            Dot(block).rows(lambda row, height: self._points(loops, row, height), low, high, first, left, self._store)
            return

        def rows(low: Index, high: Index, alone: bool) -> None:
            sums, count = self._memory("block", self.config.columns), left.min(self.config.columns)
            Stream(block, sums, self._points, low, high, first, count, alone).run(loops, self._store)

        if self.config.mc:
            rows(low, high, alone=False)
        else:
            loop(low, high, 1, lambda i: rows(i, i + 1, alone=True), index=self.kernel.index)

    def _full(self) -> bool | None:
        """Are all panels full, or none? None: it depends on the panel."""
        columns = self.plan.view.extents[self.plan.column]
        if columns.divisible_by(self.config.columns):
            return True
        return False if columns.constant is not None and columns.constant < self.config.columns else None

    @property
    def _tells_last(self) -> bool:
        """Does a block whose last vector is not full share its code with full ones? Only its stores then have a mask, which
        some CPUs are slow with; where more has one, or the columns are known, it has code of its own."""
        known = self.plan.view.extents[self.plan.column].constant is not None
        varies = self.plan.column in self.plan.view.loops_of(self.plan.narrow)
        return self._copies and not (known or varies or self._fills or self.plan.heavy)

    def _rows(self, piece: Piece, block: Block, first: Index, at: Index, vectors: int, left: Index | None) -> None:
        """Blocks of mr rows, then what is left: one block of its height, or one of each power of two in it.

        The columns are some vectors, `at` columns into the panel; left: how many columns there are, at least one of the last
        vector, None when all.
        """
        lanes = self.config.lanes
        places = tuple(at.displace(j * lanes) for j in range(vectors))

        def mask(j: Index | int) -> ir.Value | None:
            return None if left is None else lane_mask(left - Index(j) * lanes, lanes, self.kernel.index)

        masks = tuple(mask(j) if j == vectors - 1 else None for j in range(vectors))
        whole = left.ge(vectors * lanes) if left is not None and self._tells_last else None
        columns = Columns(tuple((first + at).displace(j * lanes) for j in range(vectors)), masks, places, whole)
        low, high, mr = opaque(piece.low, self.kernel.index), piece.high, self.config.mr if piece.multiplies else 1

        def run(row: Index, height: int) -> None:
            self._block(piece, block, columns, mask, row, height)

        def rest(low: Index) -> None:
            alone = self.config.low_tail or (piece.rows is not None and bool(self._together))
            row_blocks(low, high, mr, self.config.exact_tails, self.kernel.index, run, shared=not alone)

        if not self._fills or not piece.multiplies:
            block = block if self._copies else replace(block, next_panel=self._next_panel(first))
            rest(low)
            return
        several = (high - low).ge(mr)
        filling = replace(block, fills=True, next_panel=self._next_panel(first))
        when(several, lambda: self._block(piece, filling, columns, mask, low, mr))
        rest(select(several, low + mr, low))

    def _next_panel(self, first: Index) -> Index | None:
        """First column of the panel after that of `first`; None where the hardware fetches it: prepacked panels, and short rows
        of columns, follow one another in memory."""
        columns = self.plan.view.extents[self.plan.column].constant
        short = columns is not None and columns * byte_width(self._element) <= SHORT_ROW
        return None if short or self.plan.tile or not self.plan.in_place else first + self.config.columns

    def _block(self, piece: Piece, block: Block, columns: Columns, mask: Mask, row: Index, height: int) -> None:
        """Sums of a block, then what follows them: unrolled when it is light, else in a loop over sums in the workspace."""
        unit = piece.unit
        box = piece.taken.box if piece.taken is not None else Box.whole(self.kernel.evaluator, self.plan)
        points = box.points(unit.loops, row, height)
        if piece.rows is not None:
            block = replace(block, rows=piece.rows.block(row - unit.low))
        block = replace(block, next_rows=height if self.config.next_rows else 0)
        if self.config.next_panel:
            after = columns.first[0] + self.config.columns
            block = replace(block, unroll=2, shared_fetch=(after, (row - unit.low) // self.config.mr))
        if (spans := self._spans) is not None and spans.of_rows:
            block = replace(block, triangle=(spans, row, row + height))
        if piece.multiplies and piece.sums is None:
            self._fetch_results(box.points(unit.loops, row + height, height) if self.config.by_rows else points, columns)
        sums = block.accumulate(points, columns) if piece.multiplies else None
        if piece.sums is not None:
            numbers = [row + i if piece.taken is None else box.number(point) for i, point in enumerate(points)]
            sums = self._carried(piece, columns, [n - unit.low for n in numbers], sums)
            if not piece.sums[1]:
                return
        assert sums is not None
        if not self.plan.heavy or height * len(columns.first) < 4:
            with self.kernel.evaluator.kept():
                for point, vectors in zip(points, sums, strict=True):
                    for j, value in enumerate(vectors):
                        self._store_of(columns, point, j, value)
            forget_constants()
            return
        scratch = self._memory("block", self.config.columns)
        for i, vectors in enumerate(sums):
            for j, value in enumerate(vectors):
                scratch.store(value, [Index(i), Index.ramp(j * self.config.lanes, self.config.lanes)])
        forget_constants()

        def each(i: Index) -> None:
            point = self._points(unit.loops, row + i, 1)[0]

            def vector(j: Index) -> None:
                at = j * self.config.lanes
                self._store(point, columns.first[0] + at, scratch.load([i, Index.ramp(at, self.config.lanes)]), mask(j))

            loop(0, len(columns.first), 1, vector, index=self.kernel.index)

        loop(0, height, 1, each, index=self.kernel.index)

    def _fetch_results(self, points: Sequence[Loops], columns: Columns) -> None:
        """Stores that follow each other by a few products wait for the lines that they write, which are asked for before these
        products. Lines that several vectors share would come too late then: whole blocks of the panel or of the rows before ask
        for them, by any number of products, unless much is computed behind these."""
        depth, shared = self.plan.view.size(self.plan.view.k).constant, LINE // (self.config.lanes * byte_width(self._element))
        ahead = 0 if shared < 2 or self.config.by_rows else self.config.columns
        if (self.plan.heavy or not self._goes_on(points, columns)) if shared > 1 else (depth is None or depth > FEW_PRODUCTS):
            return
        results = PlacedResults(self.kernel, self.plan, self.config.lanes)
        for point in points:
            for first in columns.first[:: max(1, shared)]:
                results.fetch(point, first + ahead)

    def _goes_on(self, points: Sequence[Loops], columns: Columns) -> bool:
        """Is a block a whole one of several rows, of a panel behind which there may be another where panels are outermost?"""
        extent, part = self.plan.view.extents[self.plan.column].constant, len(columns.first) < self.config.nv
        last = part or (columns.masks[-1] is not None and columns.whole is None) or \
            (extent is not None and extent <= self.config.columns)
        return len(points) == self.config.mr > 1 and (self.config.by_rows or not last)

    def _store_of(self, columns: Columns, point: Loops, j: int, value: ir.Value) -> None:
        """Vector j of a block's sums at a point; a mask that covers all lanes at run time is not used."""

        def store(mask: ir.Value | None) -> None:
            with self.kernel.evaluator.kept():
                self._store(point, columns.first[j], value, mask)

        if columns.whole is None or columns.masks[j] is None:
            self._store(point, columns.first[j], value, columns.masks[j])
        else:
            when(columns.whole, lambda: store(None), lambda: store(columns.masks[j]))

    def _carried(self, piece: Piece, columns: Columns, rows: list[Index],
                 sums: list[list[ir.Value]] | None) -> list[list[ir.Value]]:
        """The sums of all pieces so far; kept in the workspace unless the piece is the last. rows: of the unit."""
        assert piece.sums is not None
        memory, last = piece.sums
        totals = []
        for i, row in enumerate(rows):
            places = [[row, Index.ramp(c - piece.unit.first, self.config.lanes)] for c in columns.first]
            before = [memory.load(at) for at in places]
            add = ProductCode(self.plan.view.product).add
            totals.append(before if sums is None else [add(a, b) for a, b in zip(before, sums[i], strict=True)])
            if not last:
                for at, total in zip(places, totals[-1], strict=True):
                    memory.store(total, at)
        return totals

    def _points(self, loops: Loops, row: Index, height: int) -> list[Loops]:
        return Box.whole(self.kernel.evaluator, self.plan).points(loops, row, height)

    def _store(self, point: Loops, column: Index, value: ir.Value, mask: ir.Value | None) -> None:
        PlacedResults(self.kernel, self.plan, self.config.lanes).store(point, column, value, mask)
