"""Choices of the family `host_matmul`: register block, where columns are read from, work units. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, product
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import Gemm, column_loop
from tilewright.passes.spaces.host.host_block import DISTANT_BYTES, over_budget, register_block, values_of_word
from tilewright.passes.spaces.padding import padded_windows, tap_depth
from tilewright.passes.spaces.tile_config import TileConfig, shared
from tilewright.passes.spaces.workload import Kind, Workload, told_once
from tilewright.runtime.limits import LINE, HostLimits, Limits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

SHORT_ROW = 4 * LINE  # bytes of a row of columns that is one stream with the rows around it
TILE_ROWS = 16  # and columns, and words of k
FEW_PRODUCTS = 32  # of an element, up to which lines of results are fetched before them (zen4-avx512.md)
TAP_COST = 8  # values of k whose products take as long as loading and storing the sums of a block


class Pack(StrEnum):
    """NONE: the vector operand is read in place where it is contiguous along the columns. PANEL: its columns are copied to
    [k][column] in the thread's workspace first; a transposed or computed operand always is."""

    NONE = "none"
    PANEL = "panel"


@dataclass(frozen=True)
class HostMatmulConfig(TileConfig):
    """mr x nv: rows and vectors of the register block; lanes: elements of a vector of the accumulator's type.

    prefetch: values of k that columns read in place are fetched ahead. mc: rows in one work unit, 0 for all. exact_tails: rows
    left over are one block of their own height, which reads the columns once, instead of blocks of 8, 4, 2 and 1. low_tail: so
    are a few, which else share two blocks with the rows before them, since a low block takes as long as reading its columns;
    where these come from afar the block before waits for them, and has more to do meanwhile the more rows it has. stream: the
    sums of nv vectors, of one row or of a chunk of them, stay in the workspace while so many values of k at a time pass; where
    the columns are transposed these are dot products along k, of one row, or of mr rows with so many columns at a time; 0 keeps
    them in registers. kc: values of k in a piece, 0 for all; it applies to one k loop. panels: panels of columns in one work
    unit. copy_rows: a chunk of rows is copied to the workspace, as [row][k]. pairs, quads: bf16 or bytes are multiplied in words
    of two or four values of k at once. tiles: 16 rows by 16 columns by 16 such words at once, of copied rows and of columns that
    are copied or prepacked. by_block: the rows of a block of tiles are copied right before all panels of a unit are multiplied by
    them. taps: the places of a window are taken one after the other, each for the rows that it reads no zero padding for; what a
    filter's infinities and NaN would make of padding is not computed. ordered: every sum is one chain over k, so that its order
    does not depend on the height of its block. next_panel: the first blocks of rows of a prepacked panel fetch the next one,
    which the hardware does not begin with before it is read. next_rows: each block of rows fetches the next one, a line for each
    value of k, for rows that pass only once. columns_outer: all points of the shared loops meet a group of panels before the next
    group, for columns that data name and neighbours have in common. turned: the rows' one loop lies along the vectors, and every
    column of all points of the shared loops is a row; for columns that fill no vector. by_rows: the panels of a unit are copied
    first, and each block of rows meets all of them, so that results are written along rows.
    """

    family: ClassVar[str] = "host_matmul"
    mr: int = 8
    nv: int = 3
    lanes: int = 16
    pack: Pack = Pack.NONE
    prefetch: int = 0
    mc: int = 0
    exact_tails: bool = False
    stream: int = 0
    kc: int = 0
    panels: int = 1
    copy_rows: bool = False
    pairs: bool = False
    quads: bool = False
    tiles: bool = False
    by_block: bool = False
    taps: bool = False
    ordered: bool = shared(False)
    next_panel: bool = shared(False)
    next_rows: bool = shared(False)
    low_tail: bool = shared(False)
    columns_outer: bool = shared(False)
    turned: bool = shared(False)
    by_rows: bool = shared(False)

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.nv * self.lanes

    @property
    def side(self) -> int:
        """Values of k that are multiplied at once."""
        return 4 if self.quads else 2 if self.pairs else 1

    def of_words(self, side: int) -> HostMatmulConfig:
        """With so many values of k at once."""
        return replace(self, pairs=side == 2, quads=side == 4)

    def in_order(self, workload: Workload, limits: Limits) -> HostMatmulConfig:
        """With sums in one chain; of one that streams, a register block of columns in place."""
        if not (self.stream or self.tiles) or not isinstance(limits, HostLimits):
            return replace(self, ordered=True)
        mr, nv = register_block(Extents.of(workload).columns.constant, self.lanes, limits)
        return HostMatmulConfig(mr, nv, self.lanes, ordered=True, columns_outer=self.columns_outer).of_words(self.side)


@dataclass(frozen=True)
class Extents:
    """Of a workload as this family sees it: rows stream, columns lie along the vectors; Exprs over the local dims.

    transposed: is the operand of the columns contiguous along k?
    """

    rows: Expr
    columns: Expr
    depth: Expr
    element_bytes: int
    transposed: bool

    @staticmethod
    @told_once
    def of(workload: Workload) -> Extents:
        return Extents._of(workload, Gemm.of(workload), column_loop(workload))

    @staticmethod
    @told_once
    def turned(workload: Workload) -> Extents | None:
        """With the rows' loop along the vectors; None where it cannot be."""
        gemm = Gemm.turned(workload)
        return None if gemm is None else Extents._of(workload, gemm, gemm.column)

    @staticmethod
    def _of(workload: Workload, gemm: Gemm | None, column: int | None) -> Extents:
        rows = workload.size("m")
        if gemm is not None:
            rows = Expr.of(1)
            for d in gemm.rows:
                rows = rows * workload.loops[d].extent
        columns = Expr.of(1) if column is None else workload.loops[column].extent
        floats = workload.accumulator is not None and workload.accumulator.is_float
        read = [o for o in workload.inputs if o.dtype.is_float or not floats]  # places are wide, but read one by one
        widest = max(4, *(o.dtype.bytes for o in (*read, *workload.outputs)))
        return Extents(rows, columns, workload.size("k"), widest, gemm is not None and gemm.b_transposed)


def space(workload: Workload, limits: HostLimits) -> Iterator[HostMatmulConfig]:
    """All legal configurations."""
    widest = limits.lanes(Extents.of(workload).element_bytes)
    shapes = [(mr, nv) for mr in range(1, 13) for nv in range(1, 7)] + [(1, nv) for nv in (8, 12, 16)]
    lanes = (widest, widest // 2)
    blocks = product(shapes, lanes, Pack, (0, 8, 16), (0, 8, 32), (False, True))
    streams = product((12, 24, 48), lanes, (0, 2, 4, 8), (2, 4, 8))
    chunks = product((3, 4, 6), (8, 16, 24), (0, 4), (2, 3, 4), (2, 4, 6, 8, 10)) if not Extents.of(workload).transposed else ()
    filled = [(mr, nv) for mr, nv in shapes if mr * nv >= 8]
    long = filled if is_long(workload, 2048) else []
    pieces = product(long, Pack, (0, 16), (16, 32, 64), (512, 1024), (4, 8, 16), (False, True))
    short = product(filled, (0, 8), (8, 16, 32), (96, 128, 192, 256), (4, 8, 16)) if is_long(workload, 256) else ()
    ready, afar = prepacked(workload) > 0, limits.l3 >= DISTANT_BYTES
    copied = product(filled, (32, 64), (128, 192, 256), (8, 16), (False, True)) if afar and is_long(workload, 256) else ()
    padded = shapes if padded_windows(workload) else []
    taps = product(padded, lanes, Pack, (0, 16), (8, 16, 32, 64), (False, True))
    tiled = product((16, 32), (1, 2, 3), Pack, (64, 128, 256, 512), (1, 2, 4, 8, 16), (False, True)) \
        if limits.bf16_tiles or limits.tiles else ()
    side = word_of(workload, limits)
    every = chain(
        (HostMatmulConfig(mr, nv, w, pack, ahead, chunk * mr, exact) for (mr, nv), w, pack, ahead, chunk, exact in blocks),
        (HostMatmulConfig(1, nv, w, prefetch=ahead, stream=stream) for nv, w, ahead, stream in streams),
        (HostMatmulConfig(mr, nv, widest, prefetch=ahead, stream=stream, mc=chunk * mr, exact_tails=True)
         for mr, nv, ahead, stream, chunk in chunks),
        (HostMatmulConfig(mr, nv, widest, pack, ahead, chunk * mr, kc=kc, panels=panels, copy_rows=rows)
         for (mr, nv), pack, ahead, chunk, kc, panels, rows in pieces),
        (HostMatmulConfig(mr, nv, widest, Pack.NONE, ahead, chunk * mr, True, kc=kc, panels=panels)
         for (mr, nv), ahead, chunk, kc, panels in short),
        (HostMatmulConfig(mr, nv, widest, Pack.PANEL, 0, chunk * mr, True, kc=kc, panels=panels, copy_rows=rows)
         for (mr, nv), chunk, kc, panels, rows in copied),
        (HostMatmulConfig(mr, nv, w, pack, ahead, chunk * mr, exact, taps=True)
         for (mr, nv), w, pack, ahead, chunk, exact in taps),
        (HostMatmulConfig(mr, nv, TILE_ROWS, pack, mc=rows, panels=panels, copy_rows=True, tiles=True,
                          by_block=by_block) for mr, nv, pack, rows, panels, by_block in tiled),
    )
    for config in (c.of_words(side) for c in every):
        if ready and config.columns > prepacked(workload) and not (afar and config.prefetch):
            continue
        if afar and config.exact_tails and (ready or (config.kc and config.pack is Pack.PANEL)):
            config = replace(config, low_tail=True)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: HostMatmulConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    extents = Extents.turned(workload) if config.turned else Extents.of(workload)
    if extents is None or (config.turned and (config.side > 1 or config.taps or config.tiles or config.kc or config.stream)):
        return "turned: rows are one loop that lies along the vectors of whole sums in registers"
    size = extents.element_bytes
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    if config.mr < 1 or config.nv < 1:
        return f"block-positive: {config.mr} x {config.nv}"
    if config.lanes < 2 or config.lanes & (config.lanes - 1):
        return f"lanes-power-of-two: {config.lanes} lanes"
    if config.lanes * size > limits.vector_bytes:
        return f"lanes-fit: {config.lanes} lanes of {size} bytes are wider than a {limits.vector_bytes}-byte register"
    tile = prepacked(workload)
    if tile % config.columns and (config.columns % tile or config.side > 1 or config.next_panel or config.taps):
        return f"prepacked-panels: panels of {tile} columns are read in equal blocks, or several in turns, not {config.columns}"
    if tile and (config.stream or config.pack is Pack.PANEL):
        return "prepacked-in-place: panels are read where they lie, with whole sums"
    packed, side = packed_word(workload), config.side
    if side > 1 and (packed != side if tile else side > word_of(workload, limits)):
        return f"words: the target, the element types or the layout have no products of {side} values at once"
    if packed > 1 and side != packed:
        return f"prepacked-words: an operand holds {packed} values of k side by side"
    if config.kc % side or config.stream % side:
        return f"words-whole: {config.kc or config.stream} values of k are no words of {side}"
    if config.stream and ((config.mr > 1 and not config.mc) or config.pack is Pack.PANEL):
        return "stream-in-place: streaming takes one row at a time or a chunk of them, mc, of columns in place"
    if config.stream and (config.kc or config.copy_rows or config.panels > 1):
        return "stream-whole-k: streaming takes all of k, of rows and columns in place"
    if config.stream and config.ordered:
        return "stream-in-chains: streaming sums a single row in two chains"
    sums = max(1, config.mc) * config.columns * size
    if config.stream and sums > limits.l1 // 2:
        return f"stream-fits-l1: sums of {sums} bytes leave too little of {limits.l1} bytes to the columns"
    budget = _tiles(config, workload, limits) if config.tiles else _registers(config, extents, limits)
    if budget is not None:
        return budget
    if config.next_panel and (not tile or side > 1 or config.prefetch or config.taps or extents.depth.constant is None):
        return "next-panel: it is fetched of prepacked panels of a known depth, one value of k at a time, and nothing else is"
    if config.next_rows and not _fetches_rows(config, workload):
        return "next-rows: rows are no single loop along k in memory, of values as few to a block as fit a line, read in place"
    if config.low_tail and not config.exact_tails:
        return "low-tail: rows left over are blocks of a power of two each"
    if config.columns_outer and (config.stream or not names_columns(workload)):
        return "columns-outer: no table names the columns, or they are streamed"
    if config.mc % config.mr:
        return f"chunk-whole-blocks: {config.mc} rows are no multiple of {config.mr}"
    if (config.kc or config.copy_rows or config.panels > 1) and not config.mc:
        return "pieces-need-chunk: copied rows, sums between pieces of k and several panels are of a chunk of rows, mc"
    if config.by_rows and (config.pack is not Pack.PANEL or config.kc or config.copy_rows or config.taps or config.tiles):
        return "by-rows: panels are copied of all of k, and rows read in place"
    if config.by_block and not config.tiles:
        return "blocks-of-tiles: rows are copied block by block for products of tiles"
    if config.taps and not padded_windows(workload):
        return "taps-of-windows: no window passes over zero padding along the rows"
    if config.taps and (config.stream or config.kc or config.copy_rows or not config.mc):
        return "taps-one-by-one: taps take the rows of a chunk, mc, from their operand, with all other values of k"
    if config.kc and not is_long(workload, config.kc):
        return f"pieces-of-k: k is no single loop of more than {config.kc}"
    if min(config.kc, config.panels - 1, config.mc, config.prefetch, config.stream) < 0:
        return "counts-positive: a count is negative"
    factor = 4 // side if side > 1 else size
    copied = config.kc * factor if config.copy_rows else 0
    chunk = config.mc * (copied + (config.columns * config.panels * size if config.kc or config.taps else 0))
    if chunk > limits.l2:
        return f"chunk-fits-l2: rows and sums of a chunk take {chunk} of {limits.l2} bytes"
    depth = config.kc or (tap_depth(workload) if config.taps else extents.depth).constant
    wide = config.columns * (config.panels if config.by_rows else 1)
    if config.pack is Pack.PANEL and config.nv > 1 and depth is not None and depth * wide * factor > limits.l2:
        return f"panel-fits-l2: {depth} x {wide} elements of {factor} bytes exceed {limits.l2} bytes"
    return None


def _tiles(config: HostMatmulConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule of tiles that the configuration breaks, or None."""
    side = config.side
    bf16 = side == 2 and any(o.dtype is DType.BF16 for o in workload.inputs)
    if not (limits.bf16_tiles if bf16 else side == 4 and limits.tiles):
        return "tiles: the target or the element types have no products of tiles"
    if config.mr not in (TILE_ROWS, 2 * TILE_ROWS) or config.lanes != TILE_ROWS or config.nv > 3:
        return f"tiles-fit: {config.mr} rows by {config.nv} vectors of {config.lanes} are not one to six tiles of 16 by 16"
    if not config.copy_rows or config.kc or config.stream or config.taps or config.prefetch or config.exact_tails:
        return "tiles-of-copies: tiles are of copied rows over all of k, of whole blocks"
    if not prepacked(workload) and config.pack is not Pack.PANEL:
        return "tiles-of-panels: columns in place are not laid out as tiles are"
    depth = [loop.extent for loop in workload.loops if loop.role == "k"]
    if prepacked(workload) and not (workload.size("k").divisible_by(TILE_ROWS * side) and depth[-1].divisible_by(side)):
        return f"tiles-of-k: prepacked columns have no multiple of {TILE_ROWS * side} values of k"
    return None


def _registers(config: HostMatmulConfig, extents: Extents, limits: HostLimits) -> str | None:
    """The rule of registers that the configuration breaks, or None."""
    if config.stream and extents.transposed and config.mr > 1:
        return over_budget(config.stream, config.mr, limits)  # a column at a time meets a vector of each row
    return over_budget(config.mr, config.nv, limits, config.stream)


def _fetches_rows(config: HostMatmulConfig, workload: Workload) -> bool:
    """Can blocks of rows be fetched, a line for each value of k?"""
    gemm, copied = Gemm.of(workload), config.copy_rows or config.kc or config.side > 1
    if gemm is None or copied or config.stream or config.tiles or config.taps or config.turned or len(gemm.rows) != 1:
        return False
    along = gemm.last is not None and gemm.a.source is not None and gemm.a.linear_axis(gemm.last) == gemm.a.unit_axis
    return along and [loop.role for loop in workload.loops].count("k") == 1 and config.mr * gemm.a.dtype.bytes <= LINE


@told_once
def prepacked(workload: Workload) -> int:
    """Columns of the panels of an operand that was laid out at compile time; 0 when there is none."""
    return max((o.panel for o in workload.inputs), default=0)


@told_once
def names_columns(workload: Workload) -> bool:
    """Do data name the matrix of the columns, which is read where it lies?"""
    gemm = Gemm.of(workload)
    return gemm is not None and gemm.b.source is None and gemm.b.unit_axis is not None


@told_once
def packed_word(workload: Workload) -> int:
    """Values of k that lie side by side in an operand that was laid out at compile time."""
    return next((o.dims[-1].constant or 1 for o in workload.inputs if o.panel and o.dims[-1] != Expr.of(o.panel)), 1)


def word_of(workload: Workload, limits: HostLimits) -> int:
    """Values of k that are multiplied at once: as a factor is laid out, else as many as the target can."""
    if prepacked(workload):
        return packed_word(workload)
    bf16 = sum(o.dtype is DType.BF16 for o in workload.inputs) > 1
    signs = [f.signed for f in workload.factors if f.dtype is DType.I8]
    of_bytes = len(signs) == len(workload.factors) == 2 and workload.accumulator is DType.I32
    return values_of_word(bf16, (signs[0], signs[1]) if of_bytes else None, limits)


def is_long(workload: Workload, kc: int) -> bool:
    """Is k one loop of more than kc values for certain?"""
    sums = [loop.extent.constant for loop in workload.loops if loop.role == "k"]
    return len(sums) == 1 and sums[0] is not None and sums[0] > kc
