"""What `host_matmul` runs untuned: configurations by the rows of a shape, and how its columns lie in memory. MLIR-free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.host.host_block import register_block, rows_beside
from tilewright.passes.spaces.host.host_matmul import (
    TAP_COST,
    TILE_ROWS,
    Extents,
    HostMatmulConfig,
    Pack,
    is_long,
    names_columns,
    prepacked,
    why_invalid,
    word_of,
)
from tilewright.passes.spaces.host.host_matmul_by_rows import with_rows_outermost
from tilewright.passes.spaces.host.host_matmul_line import PAGE, WAYS, with_columns_of_a_line
from tilewright.passes.spaces.host.host_matmul_next_rows import with_next_rows
from tilewright.passes.spaces.host.host_matmul_reading import Reading
from tilewright.passes.spaces.host.host_matmul_thresholds import Thresholds
from tilewright.passes.spaces.host.host_matmul_turned import with_turned
from tilewright.passes.spaces.padding import padded_windows, padding_share, tap_depth
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import LINE, HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_DEPTH = 1024  # stands for a k that is not known
_FAR_PIECE = 24  # vectors of a piece of columns that streams from memory past several rows, at most
_ACROSS_PANELS = 32  # panels that copied rows serve, on few cores
_WIDE = (4, 6)  # block whose sums are written as long pieces of rows, in 32 registers
_TALL = (8, 3)  # block of rows and vectors for columns that are read in place, in 32 registers
_TURNS_AHEAD = 8  # values of k that prepacked panels in turns are fetched ahead
_DOT_VECTORS = 4  # of columns in a work unit of dot products of several rows, for there to be many units
_BESIDE = 16  # panels of short pieces of k in turns, at most
_TILED_PANELS = 16  # of a work unit of tiles, at most
_UNTILED_BYTES = (6, 11)  # rows, up to which bytes are multiplied in fours where there are tiles: prepacked, and copied
_NEAR = 0.75  # of the first cache, for panels and a block of rows beside what is stored
_BLOCKS = 16  # of rows in a work unit of few panels
_SMALL_COPY = 16  # copies of a panel in the second cache, of one that k need not be cut for
_MANY_PANELS = 4  # a thread, from which it hardly matters that some have one more
_LARGEST_IMAGE = 64  # rows or columns of an image that leaving out its padding is thought of for
_AT = Thresholds()

Choice = tuple[tuple[HostMatmulConfig, ...], Node]
Cases = tuple[list[tuple[int, HostMatmulConfig]], HostMatmulConfig]  # (most rows, configuration) in order; that of more rows


def default(workload: Workload, limits: HostLimits, thresholds: Thresholds = _AT) -> Choice:
    """Of prepacked panels, one block shape. Else streaming for one row, columns in place for few rows, copied panels for many.

    Taps one by one where padding is a large part of a window's image.
    """
    return _Defaults(workload, limits, thresholds).choice()


@dataclass(frozen=True)
class _Defaults:
    workload: Workload
    limits: HostLimits
    at: Thresholds

    @property
    def extents(self) -> Extents:
        return Extents.of(self.workload)

    @property
    def lanes(self) -> int:
        return max(2, self.limits.lanes(self.extents.element_bytes))

    @property
    def factor(self) -> int:
        """Bytes of a factor where it is copied."""
        return 4 // self.side if self.side > 1 else self.extents.element_bytes

    @property
    def side(self) -> int:
        """Values of k that are multiplied at once."""
        return word_of(self.workload, self.limits)

    @property
    def rows_as_words(self) -> bool:
        """Do the words of the rows lie in memory as they are multiplied?"""
        gemm = Gemm.of(self.workload)
        if gemm is None or gemm.last is None or gemm.a.dtype.bytes * self.side != 4:
            return False
        return gemm.a.source is not None and gemm.a.linear_axis(gemm.last) == gemm.a.unit_axis

    @property
    def widens_rows(self) -> bool:
        """Are factors of 16 bits widened where they are multiplied? Those of the rows would be, one by one, for each panel."""
        halves = {f.dtype for f in self.workload.factors} <= {DType.F16, DType.BF16}
        return halves and self.side == 1 and self.workload.accumulator is DType.F32

    @property
    def copies_rows(self) -> bool:
        """Are rows copied for several panels, as they are multiplied?"""
        return self.widens_rows or (self.side > 1 and not self.rows_as_words)

    def _served(self, columns: int) -> int:
        """Panels of so many columns that copied rows serve; fewer where they would leave cores idle."""
        groups = (self.extents.columns.constant or _DEPTH) // columns // (2 * self.limits.cores)
        return max(1, min(self.at.rounded_panels, groups))

    def choice(self) -> Choice:
        extents = self.extents
        mr, nv = register_block(extents.columns.constant, self.lanes, self.limits)
        block = self._without_conflicts(mr, nv), nv
        cases, otherwise = (self._of_panels if prepacked(self.workload) else self._of_columns)(block)
        cases, otherwise = self._in_tiles(cases, otherwise)
        if names_columns(self.workload):
            cases, otherwise = [(most, _outer(c)) for most, c in cases], _outer(otherwise)
        found = padded_windows(self.workload)
        if not found or otherwise.copy_rows or otherwise.stream:
            choice = self._few_columns(*self._of_any_columns(*_tree(extents.rows, cases, otherwise)))
            choice = with_columns_of_a_line(self.workload, self.limits, choice)
            choice = with_next_rows(self.workload, self.limits, choice)
            choice = with_rows_outermost(self.workload, self.limits, choice)
            return with_turned(self.workload, self.limits, choice, self.at.chunk_rows)
        many = self._tapped(otherwise)
        if self._taps_pay(0):
            few = [(most, self._tapped(c)) for most, c in cases if not c.stream]
            return _tree(extents.rows, [(most, c) for most, c in few if c != many], many)
        usual, root = _tree(extents.rows, cases, otherwise)
        along = next((e for w in found if (e := self.workload.loops[w.row].extent).constant is None), None)
        if along is None:
            return usual, root
        most = max((n for n in range(1, _LARGEST_IMAGE) if self._taps_pay(n)), default=0)
        return (*usual, many), switch(str(along), [(most, Leaf(len(usual)))], root)

    def _without_conflicts(self, mr: int, nv: int) -> int:
        """Rows of a block. Those a multiple of a page apart lie in the same set of the first cache, which has no room for more of
        them than ways; blocks of several vectors have fewer rows anyway."""
        depth = self.extents.depth.constant
        return min(mr, WAYS) if nv == 1 and depth is not None and depth * self.factor % PAGE == 0 else mr

    def _in_tiles(self, cases: list[tuple[int, HostMatmulConfig]], otherwise: HostMatmulConfig) -> Cases:
        """With tiles for more than a few rows, where there are such. Panels of a unit share the copy of its rows: they are as
        many as keep all cores busy beside the units of rows that there are for certain, as of an image of known extents. Where
        they lie in the first cache beside a block of rows, the block is copied as it is multiplied."""
        extents, limits, tile = self.extents, self.limits, prepacked(self.workload)
        prepared, copied = _UNTILED_BYTES if self.side == 4 else (self.at.untiled_rows, self.at.untiled_copies)
        most, depth = prepared if tile else copied, extents.depth.constant or _DEPTH
        nv = next((n for n in (2, 3, 1) if tile % (n * TILE_ROWS) == 0), 1)
        each, wanted = 2 * TILE_ROWS, 2 * limits.cores
        chunk = max(1, min(self.at.chunk_rows, limits.l2 // 2 // (depth * self.factor)) // each)
        image = extents.rows.evaluate(dict.fromkeys(self.workload.dims, 1)) // each
        chunk = min(chunk, image // wanted) if image >= 2 * wanted else chunk
        panels = math.ceil((extents.columns.constant or _DEPTH) / (nv * TILE_ROWS))
        shared = min(_TILED_PANELS, panels, max(1, panels * max(1, image // chunk) // wanted))
        columns = min(panels, shared) * nv * TILE_ROWS
        near = (each + columns) * depth * self.factor <= limits.l1 * _NEAR
        tiled = HostMatmulConfig(each, nv, TILE_ROWS, Pack.NONE if tile else Pack.PANEL, mc=chunk * each, panels=shared,
                                 copy_rows=True, tiles=True, by_block=near).of_words(self.side)
        if why_invalid(tiled, self.workload, limits) is not None:
            return cases, otherwise
        few = [(bound, c) for bound, c in cases if bound < most]
        last = next((c for bound, c in cases if bound >= most), otherwise)
        return [*few, (most, last)], tiled

    def _of_any_columns(self, configs: tuple[HostMatmulConfig, ...], root: Node) -> Choice:
        """Copies of three vectors of transposed columns where these are three, five or six: two at a time would leave one vector
        alone, which has too few sums to keep the units busy, or take one copy more."""
        extents, panel = self.extents, configs[-1]
        if extents.columns.constant is not None or not extents.transposed or panel.pack is not Pack.PANEL or \
                (panel.mr, panel.nv) != (6, 2) or self.limits.vector_bytes != 32:
            return configs, root
        lanes, mr, nv = panel.lanes, 4, 3
        wide = replace(panel, mr=mr, nv=nv, **({"kc": 0, "panels": 1} | self._chunking(mr, nv * lanes)))
        if why_invalid(wide, self.workload, self.limits) is not None:
            return configs, root
        node = switch(str(extents.rows), [(mr - 1, root)], Leaf(len(configs)))
        bounds = [(2 * lanes, root), (3 * lanes, node), (4 * lanes, root), (6 * lanes, node)]
        return (*configs, wide), switch(str(extents.columns), bounds, root)

    def _few_columns(self, configs: tuple[HostMatmulConfig, ...], root: Node) -> Choice:
        """Dot products by half vectors where transposed columns fill one at most; copied, they would leave half of a vector
        empty."""
        extents, half, one = self.extents, self.lanes // 2, configs[0]
        columns, known = extents.columns, extents.columns.constant
        if not one.stream or not extents.transposed or half < 4 or (known is not None and known > half):
            return configs, root
        one = replace(one, lanes=half, nv=2 * one.nv)
        if known is not None:
            return (one,), Leaf(0)
        return (*configs, one), switch(str(columns), [(half, Leaf(len(configs)))], root)

    def _taps_pay(self, rows: int) -> bool:
        """Are there more products with padding than those that take as long as loading and storing sums for every tap?

        rows: extent of the axes of the image whose extents are not known.
        """
        depth = tap_depth(self.workload).constant or 0
        return padding_share(self.workload, padded_windows(self.workload), rows) * depth > TAP_COST

    def _tapped(self, config: HostMatmulConfig) -> HostMatmulConfig:
        """With taps one by one, in chunks of as many rows as the second-level cache holds beside a tap's panel, or as keep the
        cores busy at one image."""
        extents, limits = self.extents, self.limits
        depth, columns = tap_depth(self.workload).constant or _DEPTH, config.columns
        rows = (limits.l2 - depth * columns * self.factor) // (depth * self.factor + columns * extents.element_bytes)
        parts = -(-2 * limits.cores * columns // max(columns, extents.columns.constant or 0))
        image = extents.rows.evaluate(dict.fromkeys(self.workload.dims, 1))
        if parts > 1 and image > 1:
            rows = min(rows, max(image // parts, config.mr) + config.mr)
        chunk = max(1, min(self.at.chunk_rows, rows) // config.mr) * config.mr
        return self._divided(replace(config, taps=True, mc=chunk, exact_tails=True, prefetch=0, kc=0, panels=1))

    def _of_panels(self, block: tuple[int, int]) -> Cases:
        """Panels of few rows are one stream. Where words of the rows are made on the way, copies of them serve several panels.
        Columns of a block that are no whole lines are not fetched ahead: a fetch takes the place of a load, and two would serve
        a line and a half. One row of columns of a cache that is not distant is left to the hardware's fetches; lines of a
        distant cache are asked for earlier, and for as few rows as that leaves registers for, two panels in turns. Half vectors
        where a panel is none of whole ones, as of indices that no other family built."""
        extents, limits, side, tile = self.extents, self.limits, self.side, prepacked(self.workload)
        lanes = self.lanes if tile % self.lanes == 0 else self.lanes // 2
        nv = next((n for n in (block[1], 4, 3, 2) if tile % (n * lanes) == 0), 1)
        mr = self._without_conflicts(rows_beside(nv, limits), nv)
        ahead = 0 if nv * lanes * extents.element_bytes % LINE else 32 if self._is_distant else 16
        many = HostMatmulConfig(mr, nv, lanes, prefetch=ahead, **self._chunking(mr, nv * lanes)).of_words(side)
        if self.copies_rows:
            copied = replace(many, exact_tails=True, panels=self._served(nv * lanes), copy_rows=True)
            if why_invalid(copied, self.workload, limits) is None:
                few = HostMatmulConfig(mr, nv, lanes, prefetch=ahead, exact_tails=True)
                return [(self.at.widened_rows, few)] if self.widens_rows else [], copied
        few = HostMatmulConfig(mr, nv, lanes, prefetch=ahead, exact_tails=True, low_tail=self._is_distant).of_words(side)
        alone, least = self.at.unfetched_rows, extents.rows.evaluate(dict.fromkeys(self.workload.dims, 1))
        waits = least <= alone and side == 1 and ahead and not self._is_distant
        lone = [(alone, replace(few, mr=min(mr, alone), prefetch=0))] if waits else []
        if least >= self.at.shared_rows and self._beyond(limits.l2) and why_invalid(
                shared := replace(few, next_panel=True), self.workload, limits) is None:
            few = shared
        lone = lone or self._with_panels_in_turns(few)
        return [*lone, (self.at.panel_rows, self._divided(few))], self._with_copied_rows(many) or self._divided(many)

    def _with_panels_in_turns(self, few: HostMatmulConfig) -> list[tuple[int, HostMatmulConfig]]:
        """Two prepacked panels at a time for as few rows as that leaves registers for, of a distant cache or from beyond it: two
        streams come faster than one, and are asked for shortly before they are read. Where all threads have such a pair."""
        limits, workload, nv = self.limits, self.workload, 2 * few.nv
        found = replace(few, mr=rows_beside(nv, limits), nv=nv, prefetch=_TURNS_AHEAD)
        threads, least = limits.threads or limits.cores, self.extents.rows.evaluate(dict.fromkeys(workload.dims, 1))
        shared_line = found.columns * self.extents.element_bytes % LINE != 0
        if shared_line or least > found.mr or (self.extents.columns.constant or 0) < threads * found.columns:
            return []
        valid = self._is_distant and self._beyond(limits.l2) and why_invalid(found, workload, limits) is None
        return [(found.mr, found)] if valid else []

    def _with_copied_rows(self, config: HostMatmulConfig) -> HostMatmulConfig | None:
        """With the rows of a unit copied for all panels, where k is one loop and lines of the last cache are distant: as fast
        while a core has its caches to itself, and faster by up to a tenth while others take of them. On one thread: of several,
        those whose core is disturbed leave units to the others, and these would be few. Not where k comes in pieces, nor with 16
        registers, whose products take longer than their lines do."""
        limits, depth = self.limits, self.extents.depth.constant
        panels = -(-(self.extents.columns.constant or 0) // config.columns)
        if not self._is_distant or limits.vector_registers < 32 or (limits.threads or limits.cores) > 1:
            return None
        if self.side > 1 or config.kc or panels < self.at.copied_panels or depth is None or not is_long(self.workload, 1):
            return None
        rows = min(self.at.chunk_rows, limits.l2 // 4 * 3 // (depth * self.factor)) // config.mr * config.mr
        found = replace(config, mc=max(config.mr, rows), panels=panels, copy_rows=True)
        return found if why_invalid(found, self.workload, limits) is None else None

    def _divided(self, config: HostMatmulConfig) -> HostMatmulConfig:
        """With units of fewer rows, where panels alone leave threads idle. Each block of rows reads the panel anyway, as a rule
        from the second cache. Which tap is the first to be added depends on the rows of a unit, so with taps these go by the
        cores."""
        limits, columns = self.limits, self.extents.columns.constant
        threads = limits.cores if config.taps else limits.threads or limits.cores
        if columns is None or config.next_panel:
            return config
        panels = -(-columns // config.columns)
        if panels % threads == 0 or panels > _MANY_PANELS * threads or (panels > 1 and self._beyond(self.limits.l2)):
            return config
        products = self.at.shared_products * (2 if config.taps else 1)  # a unit has to find the rows of each tap
        rows = products // ((self.extents.depth.constant or _DEPTH) * config.columns) // config.mr * config.mr
        mc = max(rows, config.mr)
        return replace(config, mc=min(mc, config.mc or mc))

    def _of_columns(self, block: tuple[int, int]) -> Cases:
        """One row streams. A few rows stream, some more read the columns in place, and the others copy them, as the model of
        `host_matmul_reading` says, which knows the caches of the CPU. Transposed columns are copied; where they exceed the first
        cache and rows are few, they are summed by dot products. Words made of rows are copied from 16 rows on. With 16 registers
        of 32 bytes, blocks of 4 x 3 read their rows once for more columns than those of 6 x 2, which transposed columns of any
        number keep, since they leave single vectors less often; where rows of columns are a few lines, which are fetched ahead
        in one stream, copying pays from 32 rows on, or, in whole blocks of 2 x 4 whose panel fits the first cache, from 8. With
        64 bytes a register, where k is so short that a panel of six vectors stays in half of the first cache, the sums are much
        of the work: blocks of 4 x 6 write longer pieces of the rows of the result. Rows a multiple of a page apart in place, or
        a page or more where they are copied, are not worth fetching ahead: each needs a translation of its own.
        """
        extents, limits, lanes, factor, at = self.extents, self.limits, self.lanes, self.factor, self.at
        (mr, nv), columns, size = block, extents.columns.constant, extents.element_bytes
        side, transposed = self.side, extents.transposed
        words = side > 1
        aligned = columns is not None and columns * factor % PAGE == 0
        depth = extents.depth.constant or 0
        line = nv * lanes * size < 2 * LINE
        narrow = columns is not None and columns * size <= at.narrow_bytes and not transposed
        vectors = -(-(columns or 0) // lanes)
        few = columns is not None and vectors <= nv
        if (mr, nv) == (6, 2) and limits.vector_bytes == 32 and not few and not (columns is None and transposed):
            mr, nv = (2, 4) if narrow and vectors % 4 == 0 and 4 * lanes * depth * size <= limits.l1 else (4, 3)
        wide = _WIDE[1] * lanes * size
        if limits.vector_bytes == 64 and 0 < depth * wide <= limits.l1 // 2 and (columns is None or vectors >= _WIDE[1]):
            mr, nv = _WIDE
        piece = (48 if columns is not None and columns >= 96 * lanes else 24) * lanes * size
        one = HostMatmulConfig(1, min(piece, limits.l1 // 4) // size // lanes, lanes, prefetch=4, stream=4).of_words(side)
        in_place = HostMatmulConfig(mr, nv, lanes, prefetch=0 if aligned else 8, exact_tails=True).of_words(side)
        panel = HostMatmulConfig(mr, nv, lanes, Pack.PANEL, prefetch=4 if line and (columns or 0) * factor < PAGE else 0,
                                 exact_tails=True, copy_rows=self.copies_rows, **self._chunking(mr, nv * lanes)).of_words(side)
        if self.widens_rows and panel.panels == 1:
            panel = replace(panel, panels=self._served(panel.columns))
        while why_invalid(panel, self.workload, limits) is not None and panel.nv > 1:
            panel = replace(panel, nv=panel.nv - 1)
        if not words and not transposed and limits.vector_bytes == 32 and self._rows_across(panel):
            cases, _ = self._read(one, in_place, panel)
            rows = limits.l2 // 2 // ((depth or _DEPTH) * size) // panel.mr * panel.mr
            panels = _ACROSS_PANELS if limits.cores <= at.few_cores else _ACROSS_PANELS // 4
            return [*cases, (at.across_rows, panel)], replace(panel, copy_rows=True, mc=max(8 * panel.mr, rows), panels=panels)
        if transposed and not words:
            far = depth * (columns or 0) * size > limits.l1
            return self._dots(one) if far else [(1, one)], panel
        blocked = narrow and (mr, nv) in ((4, 3), (2, 4))
        if self.widens_rows and not transposed and panel.copy_rows:
            return [(1, one), (at.widened_rows, in_place)], panel
        if not (words or blocked):
            large = aligned or depth * nv * lanes * size * _SMALL_COPY > limits.l2
            pieces = self._in_near_pieces(replace(panel, copy_rows=True, low_tail=True)) if large else None
            return self._read(one, in_place, pieces or panel)
        most = mr - 1 if line else at.pair_rows
        if blocked:
            most, in_place = at.narrow_rows if nv == 3 else at.narrow_block_rows, replace(in_place, prefetch=0)
        return [(1, one), *([(most, in_place)] if most > 1 else [])], panel

    def _dots(self, one: HostMatmulConfig) -> list[tuple[int, HostMatmulConfig]]:
        """Dot products of one row, and of a few that share the columns: six rows by four columns of these have their sums in 32
        registers, three by four in 16."""
        vectors, most = math.ceil((self.extents.columns.constant or 0) / self.lanes), self.at.transposed_rows
        mr = 6 if self.limits.vector_registers >= 32 else 3
        several = replace(one, mr=mr, nv=_even(vectors, min(vectors, _DOT_VECTORS)), stream=4, mc=math.ceil(most / mr) * mr,
                          prefetch=0, exact_tails=True)
        one = replace(one, nv=_even(vectors, one.nv))
        shared = most > 1 and why_invalid(several, self.workload, self.limits) is None
        return [(1, one), (most, several)] if shared else [(1, one)]

    def _rows_across(self, panel: HostMatmulConfig) -> bool:
        """Is the factor that rows differ in contiguous along them, one loop as k is, so that the rows of a block are copied side
        by side?"""
        gemm = Gemm.of(self.workload)
        if gemm is None or len(gemm.rows) != 1 or gemm.last is None or panel.mr not in (2, 4, 8) or panel.kc:
            return False
        unit = len(gemm.a.axes) - 1 if gemm.a.source is None else gemm.a.unit_axis
        alone = [d for d, loop in enumerate(self.workload.loops) if loop.role == "k"] == [gemm.last]
        return alone and gemm.a.linear_axis(gemm.rows[0]) == unit

    def _read(self, one: HostMatmulConfig, in_place: HostMatmulConfig, panel: HostMatmulConfig) -> Cases:
        """One row, a few rows, some more, many, as the model says. Few panels are no work for all cores: some rows each."""
        limits, size, columns, streamed = self.limits, self.extents.element_bytes, self.extents.columns.constant, None
        if columns is not None and columns < 2 * limits.cores * in_place.columns:
            in_place = replace(in_place, mc=_BLOCKS * in_place.mr)
        if columns is not None and columns >= self.at.streamed_vectors * self.lanes:
            streamed = self._streamed(12)
            one = replace(one, nv=self._piece(1), prefetch=0, stream=self._beside(columns))
            if one.columns * size <= self.at.short_row and self._beyond(limits.l2):
                one = replace(one, prefetch=one.stream)
        pitch = None if columns is None else columns * size
        near = replace(panel, **self._chunking(panel.mr, panel.columns, near=True))
        few, most = Reading(limits, size, pitch, self.extents.depth.constant or _DEPTH, in_place, near, streamed).bounds()
        pieces = self._in_near_pieces(replace(in_place, prefetch=8), self.at.short_piece_rows)
        if pieces is not None:
            few, most = min(few, 1 if streamed is None else streamed.stream), 0
        cases = [(1, one)]
        if streamed is not None and few > 1:
            chunk, lowest = self._streamed(few), self._streamed(min(few, streamed.stream))
            if lowest.nv > chunk.nv:
                cases.append((streamed.stream, lowest))
            cases.append((few, chunk))
        if most > max(1, few):
            cases.append((most, in_place))
        if pieces is not None:
            cases.append((self.at.short_piece_rows, pieces))
        return cases, panel

    @property
    def _is_distant(self) -> bool:
        """Do lines of the last cache take long to come?"""
        return self.limits.l3 >= self.at.distant_bytes

    def _in_near_pieces(self, block: HostMatmulConfig, rows: int = 0) -> HostMatmulConfig | None:
        """In equal pieces of k that stay in the first cache while the rows of a unit pass, so many or the most of one. Panels in
        turns, for their rows lie in the same pages, as many to all threads. None where lines come soon, or k is short."""
        limits = self.limits
        if limits.vector_registers >= 32:
            block = replace(block, mr=_TALL[0], nv=_TALL[1])
        kc = max(1, limits.l1 * 3 // 4 // (block.columns * self.factor) // 32) * 32
        if not self._is_distant or not is_long(self.workload, kc):
            return None
        kc = math.ceil((depth := self.extents.depth.constant or _DEPTH) / math.ceil(depth / kc) / 16) * 16
        panels = math.ceil((self.extents.columns.constant or block.columns) / block.columns)
        threads = limits.threads or limits.cores
        units = math.ceil(math.ceil(panels / _BESIDE) / threads) * threads
        chunk = math.ceil(rows / block.mr) or self.at.chunk_rows // block.mr
        found = replace(block, kc=kc, mc=chunk * block.mr, panels=math.ceil(panels / units))
        return found if why_invalid(found, self.workload, limits) is None else None

    def _beside(self, columns: int) -> int:
        """Values of k that one row takes at a time: reads that wait beside each other, more of them where columns come from
        memory, as many as there are registers for, or where their sums take more than a quarter of the first cache."""
        if self._beyond(self.limits.l3):
            return 16 if self.limits.vector_registers >= 32 else 12
        return 8 if columns * self.extents.element_bytes > self.limits.l1 // 4 else 4

    def _beyond(self, cache: int) -> bool:
        """Do the columns exceed a cache?"""
        extents = self.extents
        return (extents.depth.constant or _DEPTH) * (extents.columns.constant or 0) * extents.element_bytes > cache

    def _streamed(self, rows: int) -> HostMatmulConfig:
        """Streaming for so many rows. From memory, values of k are fetched ahead; short pieces keep these near."""
        few, stream = (6, 4) if self.limits.vector_registers >= 32 else (3, 3)
        mr = min(few, rows)
        mc, far = -(-rows // mr) * mr, self._beyond(self.limits.l3)
        return HostMatmulConfig(mr, self._piece(mc, _FAR_PIECE if far else None), self.lanes, prefetch=stream if far else 0,
                                stream=stream, mc=mc, exact_tails=True)

    def _piece(self, rows: int, most: int | None = None) -> int:
        """Vectors of the equal pieces of columns that so many rows stream along: long ones, which the hardware fetches ahead, but
        fewer where they would leave threads idle, which is seen in no result."""
        vectors = -(-(self.extents.columns.constant or 0) // self.lanes)
        shared = max(self.at.streamed_vectors // 2, vectors // (self.limits.threads or self.limits.cores))
        return _even(vectors, min(self._fitting(rows), shared, most or vectors))

    def _fitting(self, rows: int) -> int:
        """Vectors whose sums take no more of the first cache than the rules allow."""
        return max(1, self.limits.l1 // 2 // (rows * self.lanes * self.extents.element_bytes))

    def _chunking(self, mr: int, columns: int, near: bool = False) -> dict[str, Any]:
        """Rows of a work unit: as many as leave half of the second-level cache to the panel, a quarter where panels are narrow,
        the panel's bytes where it is made of words, which takes longer; at most 512. Unless `near`, as many as a quarter of the
        last cache takes where they may come from there, with 16 registers, as measured, and for copied panels of few rows:
        panels are read, and copied, less often, and rows pass as streams.

        Where a panel takes most of the second cache, or leaves room for few rows and comes from a distant one again for each
        unit, or all of them take half of the last, k in pieces, and panels in groups that the rows of a piece stay in cache for;
        more rows where the columns come from memory again for each unit.
        """
        extents, limits, size, most = self.extents, self.limits, self.factor, self.at.chunk_rows
        depth, copied, narrow = extents.depth.constant or _DEPTH, not prepacked(self.workload), limits.vector_registers < 32
        whole = depth * (extents.columns.constant or 0) * size
        rows = (limits.l2 // 4 * 3 if narrow else limits.l2 // 2) // (depth * size)
        again = copied and rows <= self.at.small_chunk_rows
        streams = not near and (narrow or again) and self._streams_rows(columns)
        long = streams and narrow  # pieces of k, whose rows are streams too
        kc = self.at.piece_bytes // size * (2 if long else 1)
        pieces = (again and self._is_distant) or depth * columns * size * 4 >= limits.l2 * 3 or whole * 2 >= limits.l3
        if pieces and is_long(self.workload, kc):
            far = whole >= limits.l3 and limits.cores <= self.at.few_cores
            rows = most if long else limits.l2 // (kc * size) // (1 if far else 2)
            return {"mc": max(1, rows // mr) * mr, "kc": kc, "panels": 4 if far or long else 8}
        if self.side > 1 and copied:
            rows = max(rows, (limits.l2 - depth * columns * size) // (depth * size))
        rows = max(rows, limits.l3 // 4 // (depth * size)) if streams else rows
        return {"mc": max(8, min(most // mr, rows // mr)) * mr}

    def _streams_rows(self, columns: int) -> bool:
        """May the rows of a unit come from the last cache? Where few cores have it near; where units of panels keep threads busy;
        not rows that are copied to be near."""
        limits, panels = self.limits, -(-(self.extents.columns.constant or _DEPTH) // columns)
        near = not self._is_distant and limits.cores <= self.at.few_cores
        return near and not self.copies_rows and panels >= 2 * (limits.threads or limits.cores)


def _outer(config: HostMatmulConfig) -> HostMatmulConfig:
    """With columns outermost, unless they are streamed: rows of one expert, which are neighbours, read its columns once."""
    return config if config.stream else replace(config, columns_outer=True)


def _even(vectors: int, most: int) -> int:
    """Vectors of equal pieces, more than half of `most`, where there are such; else of pieces but for the last."""
    return next((n for n in range(most, most // 2, -1) if vectors % n == 0), most)


def _tree(rows: Expr, cases: list[tuple[int, HostMatmulConfig]], otherwise: HostMatmulConfig) -> Choice:
    """A switch on the number of rows; only the branch that is taken when it is constant."""
    if rows.constant is not None:
        chosen = next((config for bound, config in cases if rows.constant <= bound), otherwise)
        return (chosen,), Leaf(0)
    leaves: list[tuple[int, Node]] = [(bound, Leaf(number)) for number, (bound, _) in enumerate(cases)]
    root = switch(str(rows), leaves, Leaf(len(cases)))
    return (*(config for _, config in cases), otherwise), root
