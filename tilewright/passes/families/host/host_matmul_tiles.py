"""Products by tiles (AMX): 16 rows times 16 columns, 32 values of k of bf16 or 64 bytes at once.

Of bf16, denormal factors count as zero. Rows and columns are words of two or four values of k. A chunk of rows is copied, as are
columns that are not prepacked, and both are continued with zeros up to whole tiles of k. Sums of a block stay in tiles over all
of k, then pass through the workspace to what follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.passes.codegen.emit import Memory, constant, gep, integer_type, lane_mask, loop, when
from tilewright.passes.codegen.host_kernel import Grid
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.host import tile_registers
from tilewright.passes.families.host.host_matmul_block import Block, Loops
from tilewright.passes.families.host.host_matmul_emitter import APART, MatmulEmitter, MatmulUnit, Piece
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_row_copy import RowCopy
from tilewright.passes.families.host.tile_registers import COUNT, LINE
from tilewright.passes.mlir import ir, position
from tilewright.passes.spaces.host.host_matmul import TILE_ROWS
from tilewright.runtime.shape import Expr

_WORD = 4  # bytes
_WORDS = 16  # of k in a tile
_LINES = 4  # of results whose places follow from one division, where rows are several loops


@dataclass(frozen=True)
class TilesEmitter(MatmulEmitter):
    """`config.mr` is 16 or 32 rows, `config.nv` one to three vectors of 16 columns."""

    @staticmethod
    def takes(plan: Plan, side: int) -> bool:
        """Are there products of tiles of words of so many values, and does k run through prepacked columns of each point of the
        other loops as its loops do, in whole tiles?"""
        view = plan.view
        if not (side == 4 or (side == 2 and view.multiplies_bf16())):
            return False
        if not plan.tile:
            return True
        within = list(view.maps[plan.wide].results)[1:-2]
        order = [e if isinstance(e, ir.AffineDimExpr) else ir.AffineFloorDivExpr(e).lhs for e in within]
        whole = plan.depth.divisible_by(_WORDS * side) and view.extents[view.k[-1]].divisible_by(side)
        return whole and [position(e) for e in order[len(order) - len(view.k):]] == list(view.k)

    @property
    def _instruction(self) -> str:
        """The instruction; the first factor is that of the rows."""
        signs = self.plan.view.byte_signs()
        if signs is None:
            return "tdpbf16ps"
        first, second = ("s" if signs[which] else "u" for which in (self.plan.narrow, self.plan.wide))
        return f"tdpb{first}{second}d"

    def _areas(self) -> dict[str, Expr]:
        config, areas = self.config, {"shapes": Expr.of(LINE // _WORD), **super()._areas()}
        areas["rows"] = self._pitch * (2 * config.mr if config.by_block else config.mc)
        if config.by_block:
            areas["panel"] = areas["panel"] * config.panels
        return areas | {"block": Expr.of(config.columns * config.mr)}

    @property
    def _pitch(self) -> Expr:
        """Words from one copied row to the next: whole lines, so that a row of a tile lies in one, and one line more."""
        return (self._depth.ceildiv(_WORDS) + 1) * _WORDS

    def units(self, begin: Index, end: Index) -> Grid:
        tile_registers.shape(self._memory("shapes", 1).pointer, [(TILE_ROWS, LINE)] * COUNT, self.kernel.index)
        grid = super().units(begin, end)
        tile_registers.release()
        return replace(grid, tiles=True)

    @property
    def _is_whole(self) -> bool:
        """Is k whole tiles for certain?"""
        alone = len(self.plan.view.k) == 1 and self.plan.depth.divisible_by(_WORDS * self.config.side)
        return alone or self._depth.divisible_by(_WORDS)

    def _piece(self, unit: MatmulUnit, span: tuple[Index, Index] | None, sums: tuple[Memory, bool] | None) -> None:
        """All of k: there are no pieces."""
        if not self.config.by_block:
            self._panels(Piece(unit, None, self._copied_rows(unit, 0), None))
            return
        width, index = self.config.columns, self.kernel.index
        count = ((unit.extent - unit.first + (width - 1)) // width).min(self.config.panels)
        loop(0, count, 1, lambda j: self._copy_columns(unit, unit.first + j * width, j), index=index)

        def part(row: Index) -> MatmulUnit:
            return replace(unit, low=row, high=(row + self.config.mr).min(unit.high))

        def block(row: Index) -> None:
            """The next block's rows are copied first: what was just stored is slow to be loaded as tiles."""
            number, following = (row - unit.low) // self.config.mr, part((row + self.config.mr).min(unit.high))
            self._copied_rows(following, (number + 1) % 2)
            piece = Piece(part(row), None, self._rows_at(number % 2), None)
            loop(0, count, 1, lambda j: self._block_of_tiles(piece, unit.first + j * width, row, j), index=index)

        self._copied_rows(part(unit.low), 0)
        loop(unit.low, unit.high, self.config.mr, block, index=index)

    def _rows_at(self, number: Index | int) -> RowCopy:
        """Copied rows: all, or those of one of two blocks."""
        memory = self._memory("rows", self._pitch)
        at = (self.kernel.evaluator.emit(self._pitch * self.config.mr) * number).value(self.kernel.index)
        memory = replace(memory, pointer=gep(memory.pointer, at, memory.element))
        return RowCopy(self.kernel.evaluator, self.plan, self.config.lanes, memory, side=self.config.side)

    def _copied_rows(self, unit: MatmulUnit, number: Index | int) -> RowCopy:
        """The rows of a unit, with zeros up to whole tiles of k."""
        rows, index = self._rows_at(number), self.kernel.index
        rows.copy(unit.loops, unit.low, unit.high)
        if not self._is_whole:
            words, zero = self.kernel.evaluator.emit(self._depth), constant(integer_type(32), 0, APART)
            loop(0, unit.high - unit.low, 1, lambda i: rows.rows.store(zero, [i, Index.ramp(words, APART)]), index=index)
        return rows

    def _columns(self, number: Index) -> Memory | None:
        """Panel `number` of those that are copied; None where they are prepacked."""
        if not self._copies:
            return None
        panel, size = self._memory("panel", self.config.columns), (self._depth + self.config.lanes) * self.config.columns
        at = (number * self.kernel.evaluator.emit(size)).value(self.kernel.index)
        return replace(panel, pointer=gep(panel.pointer, at, panel.element))

    def _copy_columns(self, unit: MatmulUnit, first: Index, number: Index) -> None:
        """The columns of a panel from `first` on, with zeros up to whole tiles of k."""
        config, columns = self.config, self._columns(number)
        if columns is None:
            return
        self.copying(columns, None).copy(unit.loops, first, unit.extent - first, unit.extent)
        if not self._is_whole:
            words, zero = self.kernel.evaluator.emit(self._depth), constant(integer_type(32), 0, config.lanes)
            for i in range(_WORDS):
                for j in range(config.nv):
                    columns.store(zero, [words + i, Index.ramp(j * config.lanes, config.lanes)])

    def _panel(self, piece: Piece, first: Index) -> None:
        self._copy_columns(piece.unit, first, Index(0))
        unit, mr = piece.unit, self.config.mr
        loop(unit.low, unit.high, mr, lambda row: self._block_of_tiles(piece, first, row, Index(0)), index=self.kernel.index)

    def _block_of_tiles(self, piece: Piece, first: Index, row: Index, panel: Index) -> None:
        """The rows from `row` on times the columns of a panel."""
        columns = self._columns(panel)
        if self.config.mr == TILE_ROWS:
            self._tiles(piece, columns, first, row, 1)
            return
        few = (piece.unit.high - row).le(TILE_ROWS)
        when(few, lambda: self._tiles(piece, columns, first, row, 1), lambda: self._tiles(piece, columns, first, row, 2))

    def _tiles(self, piece: Piece, columns: Memory | None, first: Index, row: Index, high: int) -> None:
        """`high` tiles of rows times those of the columns."""
        config, rows = self.config, piece.rows
        assert rows is not None
        apart, from_row = self.kernel.evaluator.emit(self._pitch) * _WORD, row - piece.unit.low
        kept = range(high) if high * config.nv + high < COUNT else range(0)  # tiles of rows that stay for all columns
        sums = [[m * config.nv + j for j in range(config.nv)] for m in range(high)]
        shared = COUNT - 1
        for tile in (t for line in sums for t in line):
            tile_registers.clear(tile)

        def step(s: Index) -> None:
            def load(m: int, tile: int) -> None:
                tile_registers.load(tile, rows.rows.address([from_row + m * TILE_ROWS, s * _WORDS]), apart)

            for m in kept:
                load(m, high * config.nv + m)
            for j in range(config.nv):
                at, wide = self._columns_at(columns, piece.unit.loops, first + j * config.lanes, s, j)
                tile_registers.load(shared, at, wide)
                for m in range(high):
                    mine = high * config.nv + (m if m in kept else 0)
                    if m not in kept:
                        load(m, mine)
                    tile_registers.multiply_add(self._instruction, sums[m][j], mine, shared)

        steps = self.kernel.evaluator.emit(self._depth.ceildiv(_WORDS))
        loop(0, steps, 1, step, index=self.kernel.index)
        scratch = self._memory("block", config.columns)
        for m in range(high):
            for j in range(config.nv):
                at = scratch.address([Index(m * TILE_ROWS), Index(j * config.lanes)])
                tile_registers.store(sums[m][j], at, config.columns * _WORD)
        self._results(piece, scratch, first, row, (piece.unit.high - row).min(high * TILE_ROWS))

    def _columns_at(self, copied: Memory | None, loops: Loops, column: Index, step: Index, vector: int) -> tuple[ir.Value, Index]:
        """Where a tile of columns begins, and the bytes between its rows."""
        if copied is not None:
            return copied.address([step * _WORDS, Index(vector * self.config.lanes)]), Index(self.config.columns * _WORD)
        point = [Index(0) if d in self.plan.view.k else x for d, x in enumerate(loops)]
        start = Block(self.kernel.evaluator, self.plan, self.config, None).packed_address(point, column)
        word = self.plan.tile * _WORD
        return gep(start, (step * (_WORDS * word)).value(self.kernel.index), integer_type(8)), Index(word)

    def _results(self, piece: Piece, scratch: Memory, first: Index, row: Index, height: Index) -> None:
        """What follows the sums of a block."""
        lanes, left = self.config.lanes, piece.unit.extent - first

        def each(vectors: Sequence[int], mask: Callable[[], ir.Value | None]) -> None:
            def lines(i: Index, count: int) -> None:
                for n, point in enumerate(self._points(piece.unit.loops, row + i, count)):
                    with self.kernel.evaluator.kept():
                        for j in vectors:
                            value = scratch.load([i + n, Index.ramp(j * lanes, lanes)])
                            self._store(point, first + j * lanes, value, mask())

            whole = height - height % _LINES if len(self.plan.rows) > 1 else Index(0)
            loop(0, whole, _LINES, lambda i: lines(i, _LINES), index=self.kernel.index)
            loop(whole, height, 1, lambda i: lines(i, 1), index=self.kernel.index)

        def part() -> None:
            for j in range(self.config.nv):
                over = left - j * lanes
                when(Index(0).lt(over), partial(each, [j], partial(lane_mask, over, lanes, self.kernel.index)))

        full = self._full()
        when(left.ge(self.config.columns) if full is None else full, lambda: each(range(self.config.nv), lambda: None), part)
