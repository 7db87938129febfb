"""Choices of the family `host_matmul`: register block, where columns are read from, work units. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, product
from typing import Any, ClassVar

from passes.spaces.gemm_operands import Gemm, column_loop
from passes.spaces.host_block import over_budget
from passes.spaces.padding import padded_windows, padding_share, tap_depth
from passes.tile_config import TileConfig
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, switch
from runtime.limits import LINE, HostLimits, Limits
from runtime.shape import Expr
from runtime.tensor import DType

_PAGE = 4096  # bytes
_STREAM = 4 * LINE  # of a row of columns, so that rows are read as one stream
_PIECE = 2048  # bytes of k in a piece
_ROUNDED_FOR = 8  # panels that copied rows serve
TAP_COST = 8  # values of k whose products take as long as loading and storing the sums of a block
_LARGEST_IMAGE = 64  # rows or columns of an image that leaving out its padding is thought of for
_LEAST_STREAMED = 8  # vectors of a row that is streamed, in two pieces at least
_FEW_CORES = 4  # that large units keep busy


class Pack(StrEnum):
    """NONE: the vector operand is read in place where it is contiguous along the columns. PANEL: its columns are copied to
    [k][column] in the thread's workspace first; a transposed or computed operand always is."""

    NONE = "none"
    PANEL = "panel"


@dataclass(frozen=True)
class HostMatmulConfig(TileConfig):
    """mr x nv: rows and vectors of the register block; lanes: elements of a vector of the accumulator's type.

    prefetch: values of k that columns read in place are fetched ahead. mc: rows in one work unit, 0 for all. exact_tails: rows
    left over are one block of their own height, which reads the columns once, instead of blocks of 8, 4, 2 and 1. stream: the
    sums of nv vectors, of one row or of a chunk of them, stay in the workspace while so many values of k at a time pass (dot
    products of one row along k where the columns are transposed); 0 keeps them in registers. kc: values of k in a piece, 0 for
    all; it applies to one k loop. panels: panels of columns in one work unit. copy_rows: a chunk of rows is copied to the
    workspace, as [row][k]. pairs: bf16 is multiplied as it is, two values of k at once. taps: the places of a window are taken
    one after the other, each for the rows that it reads no zero padding for; what a filter's infinities and NaN would make of
    padding is not computed. ordered: every sum is one chain over k, so that its order does not depend on the height of its block.
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
    taps: bool = False
    ordered: bool = False

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.nv * self.lanes

    def in_order(self, workload: Workload, limits: Limits) -> HostMatmulConfig:
        """With sums in one chain; of one that streams, a register block of columns in place."""
        if not self.stream or not isinstance(limits, HostLimits):
            return replace(self, ordered=True)
        mr, nv = register_block(Extents.of(workload).columns.constant, self.lanes, limits)
        return HostMatmulConfig(mr, nv, self.lanes, pairs=self.pairs, ordered=True)


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
    def of(workload: Workload) -> Extents:
        gemm, column = Gemm.of(workload), column_loop(workload)
        rows = workload.size("m")
        if gemm is not None:
            rows = Expr.of(1)
            for d in gemm.rows:
                rows = rows * workload.loops[d].extent
        columns = Expr.of(1) if column is None else workload.loops[column].extent
        widest = max(4, *(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)))
        return Extents(rows, columns, workload.size("k"), widest, gemm is not None and gemm.b_transposed)


def space(workload: Workload, limits: HostLimits) -> Iterator[HostMatmulConfig]:
    """All legal configurations."""
    widest = limits.lanes(Extents.of(workload).element_bytes)
    shapes = [(mr, nv) for mr in range(1, 13) for nv in range(1, 7)] + [(1, nv) for nv in (8, 12, 16)]
    lanes = (widest, widest // 2)
    blocks = product(shapes, lanes, Pack, (0, 8, 16), (0, 8, 32), (False, True))
    streams = product((12, 24, 48), lanes, (0, 2, 4, 8), (2, 4, 8))
    chunks = product((3, 4, 6), (8, 16, 24), (0, 4), (2, 3, 4), (2, 4, 6, 8, 10)) if not Extents.of(workload).transposed else ()
    filled = [(mr, nv) for mr, nv in shapes if mr * nv >= 8] if _long(workload, 2048) else []
    pieces = product(filled, Pack, (0, 16), (16, 32, 64), (512, 1024), (4, 8, 16), (False, True))
    padded = shapes if padded_windows(workload) else []
    taps = product(padded, lanes, Pack, (0, 16), (8, 16, 32, 64), (False, True))
    pairs = takes_pairs(workload, limits)
    every = chain(
        (HostMatmulConfig(mr, nv, w, pack, ahead, chunk * mr, exact) for (mr, nv), w, pack, ahead, chunk, exact in blocks),
        (HostMatmulConfig(1, nv, w, prefetch=ahead, stream=stream) for nv, w, ahead, stream in streams),
        (HostMatmulConfig(mr, nv, widest, prefetch=ahead, stream=stream, mc=chunk * mr, exact_tails=True)
         for mr, nv, ahead, stream, chunk in chunks),
        (HostMatmulConfig(mr, nv, widest, pack, ahead, chunk * mr, kc=kc, panels=panels, copy_rows=rows)
         for (mr, nv), pack, ahead, chunk, kc, panels, rows in pieces),
        (HostMatmulConfig(mr, nv, w, pack, ahead, chunk * mr, exact, taps=True)
         for (mr, nv), w, pack, ahead, chunk, exact in taps),
    )
    for config in (replace(c, pairs=True) for c in every) if pairs else every:
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: HostMatmulConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    extents = Extents.of(workload)
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
    if tile % config.columns or (tile and (config.stream or config.pack is Pack.PANEL)):
        return f"prepacked-panels: panels of {tile} columns are read in place, in equal blocks, not of {config.columns}"
    if config.pairs and not takes_pairs(workload, limits):
        return "pairs-of-bf16: the target or the element types have no products in pairs"
    if paired(workload) and not config.pairs:
        return "prepacked-pairs: an operand holds two values of k side by side"
    if config.pairs and (config.kc % 2 or config.stream % 2):
        return f"pairs-whole: {config.kc or config.stream} values of k are no pairs"
    if config.stream and ((config.mr > 1 and not config.mc) or config.pack is Pack.PANEL):
        return "stream-in-place: streaming takes one row at a time or a chunk of them, mc, of columns in place"
    if config.stream and (config.kc or config.copy_rows or config.panels > 1):
        return "stream-whole-k: streaming takes all of k, of rows and columns in place"
    if config.stream and config.ordered:
        return "stream-in-chains: streaming sums a single row in two chains"
    sums = max(1, config.mc) * config.columns * size
    if config.stream and sums > limits.l1 // (2 if config.mc else 4):
        return f"stream-fits-l1: sums of {sums} bytes leave too little of {limits.l1} bytes to the columns"
    budget = over_budget(config.mr, config.nv, limits, config.stream)
    if budget is not None:
        return budget
    if config.mc % config.mr:
        return f"chunk-whole-blocks: {config.mc} rows are no multiple of {config.mr}"
    if (config.kc or config.copy_rows or config.panels > 1) and not config.mc:
        return "pieces-need-chunk: copied rows, sums between pieces of k and several panels are of a chunk of rows, mc"
    if config.taps and not padded_windows(workload):
        return "taps-of-windows: no window passes over zero padding along the rows"
    if config.taps and (config.stream or config.kc or config.copy_rows or not config.mc):
        return "taps-one-by-one: taps take the rows of a chunk, mc, from their operand, with all other values of k"
    if config.kc and not _long(workload, config.kc):
        return f"pieces-of-k: k is no single loop of more than {config.kc}"
    if min(config.kc, config.panels - 1, config.mc, config.prefetch, config.stream) < 0:
        return "counts-positive: a count is negative"
    factor = 2 if config.pairs else size
    copied = config.kc * factor if config.copy_rows else 0
    chunk = config.mc * (copied + (config.columns * config.panels * size if config.kc or config.taps else 0))
    if chunk > limits.l2:
        return f"chunk-fits-l2: rows and sums of a chunk take {chunk} of {limits.l2} bytes"
    depth = config.kc or (tap_depth(workload) if config.taps else extents.depth).constant
    if config.pack is Pack.PANEL and config.nv > 1 and depth is not None and depth * config.columns * factor > limits.l2:
        return f"panel-fits-l2: {depth} x {config.columns} elements of {factor} bytes exceed {limits.l2} bytes"
    return None


def default(workload: Workload, limits: HostLimits) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """Of prepacked panels, one block shape. Else streaming for one row, columns in place for few rows, copied panels for many.

    Taps one by one where padding is a large part of a window's image.
    """
    extents = Extents.of(workload)
    lanes = max(2, limits.lanes(extents.element_bytes))
    block = register_block(extents.columns.constant, lanes, limits)
    cases, otherwise = (_of_panels if prepacked(workload) else _of_columns)(workload, limits, lanes, block)
    found = padded_windows(workload)
    if not found or otherwise.copy_rows or otherwise.stream:
        return _few_columns(workload, lanes, *_of_any_columns(workload, limits, *_tree(workload, extents.rows, cases, otherwise)))
    many = _tapped(otherwise, workload, limits)
    if _taps_pay(workload, 0):
        few = [(most, _tapped(c, workload, limits)) for most, c in cases if not c.stream]
        return _tree(workload, extents.rows, [(most, c) for most, c in few if c != many], many)
    usual, root = _tree(workload, extents.rows, cases, otherwise)
    along = next((e for w in found if (e := workload.loops[w.row].extent).constant is None), None)
    if along is None:
        return usual, root
    most = max((n for n in range(1, _LARGEST_IMAGE) if _taps_pay(workload, n)), default=0)
    return (*usual, many), switch(str(along), [(most, Leaf(len(usual)))], root)


def _of_any_columns(workload: Workload, limits: HostLimits, configs: tuple[HostMatmulConfig, ...],
                    root: Node) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """Copies of three vectors of transposed columns where these are three, five or six: two at a time would leave one vector
    alone, which has too few sums to keep the units busy, or take one copy more."""
    extents, panel = Extents.of(workload), configs[-1]
    if extents.columns.constant is not None or not extents.transposed or panel.pack is not Pack.PANEL or \
            (panel.mr, panel.nv) != (6, 2) or limits.vector_bytes != 32:
        return configs, root
    lanes, mr, nv = panel.lanes, 4, 3
    chunking = {"kc": 0, "panels": 1} | _chunking(workload, mr, nv * lanes, _factor(workload, limits), limits)
    wide = replace(panel, mr=mr, nv=nv, **chunking)
    if why_invalid(wide, workload, limits) is not None:
        return configs, root
    node = switch(str(extents.rows), [(mr - 1, root)], Leaf(len(configs)))
    bounds = [(2 * lanes, root), (3 * lanes, node), (4 * lanes, root), (6 * lanes, node)]
    return (*configs, wide), switch(str(extents.columns), bounds, root)


def _few_columns(workload: Workload, lanes: int, configs: tuple[HostMatmulConfig, ...],
                 root: Node) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """Dot products by half vectors where transposed columns fill one at most; copied, they would leave half of a vector empty."""
    extents, half, one = Extents.of(workload), lanes // 2, configs[0]
    columns, known = extents.columns, extents.columns.constant
    if not one.stream or not extents.transposed or half < 4 or (known is not None and known > half):
        return configs, root
    one = replace(one, lanes=half, nv=2 * one.nv)
    if known is not None:
        return (one,), Leaf(0)
    return (*configs, one), switch(str(columns), [(half, Leaf(len(configs)))], root)


def _taps_pay(workload: Workload, rows: int) -> bool:
    """Are there more products with padding than those that take as long as loading and storing sums for every tap?

    rows: extent of the axes of the image whose extents are not known.
    """
    depth = tap_depth(workload).constant or 0
    return padding_share(workload, padded_windows(workload), rows) * depth > TAP_COST


def _tapped(config: HostMatmulConfig, workload: Workload, limits: HostLimits) -> HostMatmulConfig:
    """With taps one by one, in chunks of as many rows as the second-level cache holds beside a tap's panel, or as keep the
    cores busy at one image."""
    extents, factor = Extents.of(workload), _factor(workload, limits)
    depth, columns = tap_depth(workload).constant or 1024, config.columns
    rows = (limits.l2 - depth * columns * factor) // (depth * factor + columns * extents.element_bytes)
    parts = -(-2 * limits.cores * columns // max(columns, extents.columns.constant or 0))
    image = extents.rows.evaluate(dict.fromkeys(workload.dims, 1))
    if parts > 1 and image > 1:
        rows = min(rows, max(image // parts, config.mr) + config.mr)
    chunk = max(1, min(512, rows) // config.mr) * config.mr
    return replace(config, taps=True, mc=chunk, exact_tails=True, prefetch=0, kc=0, panels=1)


Cases = tuple[list[tuple[int, HostMatmulConfig]], HostMatmulConfig]  # (most rows, configuration) in order; that of more rows


def _of_panels(workload: Workload, limits: HostLimits, lanes: int, block: tuple[int, int]) -> Cases:
    """Where rows are rounded to bf16 on the way, copies of them serve several panels."""
    extents, pairs, tile = Extents.of(workload), takes_pairs(workload, limits), prepacked(workload)
    nv = next(n for n in (block[1], 4, 3, 2, 1) if tile % (n * lanes) == 0)
    mr = min(block[0], (limits.vector_registers - 1) // nv - 1)
    chunking = _chunking(workload, mr, nv * lanes, _factor(workload, limits), limits)
    many = HostMatmulConfig(mr, nv, lanes, prefetch=16, pairs=pairs, **chunking)
    if pairs and not any(o.dtype is DType.BF16 for o in workload.inputs if not o.panel):
        groups = (extents.columns.constant or 0) // (nv * lanes) // (2 * limits.cores)
        return [], replace(many, exact_tails=True, panels=max(1, min(_ROUNDED_FOR, groups)), copy_rows=True)
    return [(127, HostMatmulConfig(mr, nv, lanes, prefetch=16, exact_tails=True, pairs=pairs))], many


def _of_columns(workload: Workload, limits: HostLimits, lanes: int, block: tuple[int, int]) -> Cases:
    """Columns from beyond the second-level cache are streamed past chunks of rows, up to 31 where a panel's row is two cache
    lines or more, else up to 255, since the hardware does not fetch single lines ahead; not bf16 in pairs, which would be made
    again for each block of rows.

    Else in place. A row of columns that is a multiple of a page apart shares cache sets, and a panel beyond a quarter of the
    second-level cache is fetched again for each block of rows, so copying pays from 32 rows on; from 16 on where pairs are made
    of two rows; from the first whole block on where a row of the panel is hardly more than a line. Such lines a multiple of a
    page apart are copied after three single rows. With 16 registers of 32 bytes, blocks of 4 x 3 read their rows once for more
    columns than those of 6 x 2, which prepacked panels keep, since few rows would read a panel twice, and transposed columns of
    any number, which leave single vectors less often; where rows of columns are a few lines, which are fetched ahead in one
    stream, copying pays from 32 rows on, or, in whole blocks of 2 x 4 whose panel fits the first cache, from 8. Rows a multiple
    of a page apart are not worth fetching ahead: each needs a translation of its own.
    """
    extents, pairs, factor = Extents.of(workload), takes_pairs(workload, limits), _factor(workload, limits)
    (mr, nv), columns, size = block, extents.columns.constant, extents.element_bytes
    aligned = columns is not None and columns * factor % _PAGE == 0
    depth = extents.depth.constant or 0
    deep = depth * nv * lanes * factor > limits.l2 // 4
    line = nv * lanes * size < 2 * LINE
    wide = columns is not None and columns >= _LEAST_STREAMED * lanes and not extents.transposed
    far = wide and depth * (columns or 0) * factor > limits.l2 and not pairs
    narrow = columns is not None and columns * size <= _STREAM and not extents.transposed
    if (mr, nv) == (6, 2) and limits.vector_bytes == 32 and not (columns is None and extents.transposed):
        vectors = -(-(columns or 0) // lanes)
        mr, nv = (2, 4) if narrow and vectors % 4 == 0 and 4 * lanes * depth * size <= limits.l1 else (4, 3)
    piece = (48 if columns is not None and columns >= 96 * lanes else 24) * lanes * size
    one = HostMatmulConfig(1, min(piece, limits.l1 // 4) // size // lanes, lanes, prefetch=4, stream=4, pairs=pairs)
    in_place = HostMatmulConfig(mr, nv, lanes, prefetch=0 if aligned else 8, exact_tails=True, pairs=pairs)
    chunking = _chunking(workload, mr, nv * lanes, factor, limits)
    ahead = 0 if aligned or line else 16
    panel = HostMatmulConfig(mr, nv, lanes, Pack.PANEL, prefetch=ahead, exact_tails=True, pairs=pairs, **chunking)
    while why_invalid(panel, workload, limits) is not None and panel.nv > 1:
        panel = replace(panel, nv=panel.nv - 1)
    most = mr - 1 if line else 15 if pairs else 31 if aligned or deep else 255
    if (mr, nv) in ((4, 3), (2, 4)) and narrow:
        most, in_place = 31 if nv == 3 else 7, replace(in_place, prefetch=0)
    if far and line:
        return [(1, one), (255, _streamed(30, 16, workload, limits))], panel
    if far:
        return [(1, one), (12, _streamed(12, 24, workload, limits)), (31, _streamed(36, 8, workload, limits))], panel
    if line and aligned:
        return [(3, one)], panel
    return [(1, one), (most, in_place)], panel


def _streamed(mc: int, nv: int, workload: Workload, limits: HostLimits) -> HostMatmulConfig:
    """Streaming for chunks of rows, in equal pieces of nv vectors, fewer where they would leave cores idle or exceed half of
    the first cache."""
    extents = Extents.of(workload)
    size, lanes = extents.element_bytes, max(2, limits.lanes(extents.element_bytes))
    mr, stream = (6, 4) if limits.vector_registers >= 32 else (3, 3)
    vectors = -(-(extents.columns.constant or 0) // lanes)
    most = min(nv, max(_LEAST_STREAMED // 2, vectors // limits.cores), max(1, limits.l1 // 2 // (mc * lanes * size)))
    nv = next((n for n in range(most, most // 2, -1) if vectors % n == 0), most)
    return HostMatmulConfig(mr, nv, lanes, prefetch=stream, stream=stream, mc=mc, exact_tails=True)


def prepacked(workload: Workload) -> int:
    """Columns of the panels of an operand that was laid out at compile time; 0 when there is none."""
    return max((o.panel for o in workload.inputs), default=0)


def paired(workload: Workload) -> bool:
    """Does an operand that was laid out at compile time hold two values of k side by side?"""
    return any(o.panel and o.dims[-1] != Expr.of(o.panel) for o in workload.inputs)


def takes_pairs(workload: Workload, limits: HostLimits) -> bool:
    """Does the target multiply the operands, both bf16, in pairs?"""
    return paired(workload) or (limits.bf16_pairs and not prepacked(workload)
                                and sum(o.dtype is DType.BF16 for o in workload.inputs) > 1)


def _factor(workload: Workload, limits: HostLimits) -> int:
    """Bytes of a factor where it is copied."""
    return 2 if takes_pairs(workload, limits) else Extents.of(workload).element_bytes


def register_block(columns: int | None, lanes: int, limits: HostLimits) -> tuple[int, int]:
    """Rows and vectors of the main block: what fills the registers, with whole blocks of columns where they are known."""
    if limits.vector_registers < 32:
        return 6, 2
    blocks = ((8, 2), (12, 1)) if limits.vector_bytes == 16 else ((8, 3), (6, 4), (12, 2), (12, 1))
    vectors = None if columns is None else -(-columns // lanes)
    whole = [b for b in blocks if vectors is not None and vectors % b[1] == 0 and (b[1] > 1 or vectors == 1)]
    return whole[0] if whole else blocks[0]


def _long(workload: Workload, kc: int) -> bool:
    """Is k one loop of more than kc values for certain?"""
    sums = [loop.extent.constant for loop in workload.loops if loop.role == "k"]
    return len(sums) == 1 and sums[0] is not None and sums[0] > kc


def _chunking(workload: Workload, mr: int, columns: int, size: int, limits: HostLimits) -> dict[str, Any]:
    """Rows of a work unit: as many as leave half of the second-level cache to the panel, a quarter where panels are narrow, the
    panel's bytes where it is made of pairs, which takes longer; at most 512.

    Where a panel takes most of that cache, or all of them half of the last, k in pieces, and panels in groups that the rows of
    a piece stay in cache for; more rows where the columns come from memory again for each unit. size: bytes of a factor.
    """
    extents = Extents.of(workload)
    depth = extents.depth.constant or 1024
    whole = depth * (extents.columns.constant or 0) * size
    kc = _PIECE // size
    if (depth * columns * size * 4 >= limits.l2 * 3 or whole * 2 >= limits.l3) and _long(workload, kc):
        far = whole >= limits.l3 and limits.cores <= _FEW_CORES
        rows = limits.l2 // (kc * size) // (1 if far else 2)
        return {"mc": max(1, rows // mr) * mr, "kc": kc, "panels": 4 if far else 8}
    rows = (limits.l2 // 2 if limits.vector_registers >= 32 else limits.l2 // 4 * 3) // (depth * size)
    if takes_pairs(workload, limits) and not prepacked(workload):
        rows = max(rows, (limits.l2 - depth * columns * size) // (depth * size))
    return {"mc": max(8, min(512 // mr, rows // mr)) * mr}


def _tree(workload: Workload, rows: Expr, cases: list[tuple[int, HostMatmulConfig]],
          otherwise: HostMatmulConfig) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """A switch on the number of rows; only the branch that is taken when it is constant."""
    if rows.constant is not None:
        chosen = next((config for bound, config in cases if rows.constant <= bound), otherwise)
        return (chosen,), Leaf(0)
    leaves: list[tuple[int, Node]] = [(bound, Leaf(number)) for number, (bound, _) in enumerate(cases)]
    root = switch(str(rows), leaves, Leaf(len(cases)))
    return (*(config for _, config in cases), otherwise), root
