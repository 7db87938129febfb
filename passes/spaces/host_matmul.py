"""Choices of the family `host_matmul`: register block, where columns are read from, work units. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, product
from typing import Any, ClassVar

from passes.spaces.threads import one_thread_when_small
from passes.tile_config import TileConfig
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, switch
from runtime.limits import HostLimits
from runtime.shape import Expr

_LINE = 64  # bytes


class Pack(StrEnum):
    """NONE: the vector operand is read in place where it is contiguous along the columns. PANEL: its columns are copied to
    [k][column] in the thread's workspace first; a transposed or computed operand always is."""

    NONE = "none"
    PANEL = "panel"


@dataclass(frozen=True)
class HostMatmulConfig(TileConfig):
    """mr x nv: rows and vectors of the register block; lanes: elements of a vector of the accumulator's type.

    prefetch: values of k that columns read in place are fetched ahead. mc: rows in one work unit, 0 for all. exact_tails: rows
    left over are one block of their own height, which reads the columns once, instead of blocks of 8, 4, 2 and 1. stream: for
    one row; the sums of nv vectors stay in the workspace while so many values of k at a time pass (dot products along k where
    the columns are transposed); 0 keeps them in registers. kc: values of k in a piece, 0 for all; it applies to one k loop.
    panels: panels of columns in one work unit. copy_rows: a chunk of rows is copied to the workspace, as [row][k].
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

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.nv * self.lanes


@dataclass(frozen=True)
class Extents:
    """Of a workload as this family sees it: rows stream, columns lie along the vectors; Exprs over the local dims."""

    rows: Expr
    columns: Expr
    depth: Expr
    element_bytes: int

    @staticmethod
    def of(workload: Workload) -> Extents:
        """Columns are the loop that the result's unit-stride axis runs along, so m and n change places for a C^T."""
        out = workload.outputs[0]
        unit = out.unit_axis if out.unit_axis is not None else len(out.dims) - 1
        columns = out.dims[unit] if out.dims else Expr.of(1)
        groups = {role: [loop.extent for loop in workload.loops if loop.role == role] for role in ("b", "m", "n")}
        swapped = columns not in groups["n"] and columns in groups["m"]
        rows = workload.size("n" if swapped else "m")
        widest = max(o.dtype.bytes for o in (*workload.inputs, *workload.outputs))
        return Extents(rows, columns, workload.size("k"), max(4, widest))


def space(workload: Workload, limits: HostLimits) -> Iterator[HostMatmulConfig]:
    """All legal configurations."""
    widest = limits.lanes(Extents.of(workload).element_bytes)
    shapes = [(mr, nv) for mr in range(1, 13) for nv in range(1, 7)] + [(1, nv) for nv in (8, 12, 16)]
    lanes = (widest, widest // 2)
    blocks = product(shapes, lanes, Pack, (0, 8, 16), (0, 8, 32), (False, True))
    streams = product((12, 24, 48), lanes, (0, 2, 4, 8), (2, 4, 8))
    filled = [(mr, nv) for mr, nv in shapes if mr * nv >= 8] if _long(workload, 2048) else []
    pieces = product(filled, Pack, (0, 16), (16, 32, 64), (512, 1024), (8, 16), (False, True))
    for config in chain(
        (HostMatmulConfig(mr, nv, w, pack, ahead, chunk * mr, exact) for (mr, nv), w, pack, ahead, chunk, exact in blocks),
        (HostMatmulConfig(1, nv, w, prefetch=ahead, stream=stream) for nv, w, ahead, stream in streams),
        (HostMatmulConfig(mr, nv, widest, pack, ahead, chunk * mr, kc=kc, panels=panels, copy_rows=rows)
         for (mr, nv), pack, ahead, chunk, kc, panels, rows in pieces),
    ):
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
    if config.stream and (config.mr > 1 or config.mc or config.pack is Pack.PANEL):
        return "stream-one-row: streaming takes one row at a time, of columns in place"
    if config.stream and config.columns * size > limits.l1 // 4:
        return f"stream-fits-l1: the sums of {config.columns} columns of {size} bytes exceed a quarter of {limits.l1} bytes"
    needed = config.stream + 3 if config.stream else config.mr * config.nv + config.nv + 1
    if needed > limits.vector_registers:
        return f"register-budget: accumulators, columns and a row element need {needed} of {limits.vector_registers} registers"
    if config.mc % config.mr:
        return f"chunk-whole-blocks: {config.mc} rows are no multiple of {config.mr}"
    if (config.kc or config.copy_rows or config.panels > 1) and not config.mc:
        return "pieces-need-chunk: copied rows, sums between pieces of k and several panels are of a chunk of rows, mc"
    if config.kc and not _long(workload, config.kc):
        return f"pieces-of-k: k is no single loop of more than {config.kc}"
    if min(config.kc, config.panels - 1, config.mc, config.prefetch, config.stream) < 0:
        return "counts-positive: a count is negative"
    chunk = config.mc * ((config.kc if config.copy_rows else 0) + (config.columns * config.panels if config.kc else 0)) * size
    if chunk > limits.l2:
        return f"chunk-fits-l2: rows and sums of a chunk take {chunk} of {limits.l2} bytes"
    depth = config.kc or extents.depth.constant
    if config.pack is Pack.PANEL and config.nv > 1 and depth is not None and depth * config.columns * size > limits.l2:
        return f"panel-fits-l2: {depth} x {config.columns} elements of {size} bytes exceed {limits.l2} bytes"
    return None


def default(workload: Workload, limits: HostLimits) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """Streaming for one row, columns in place for few rows, copied panels for many. Of prepacked panels, one block shape.

    In place, a row of columns that is a multiple of a page apart shares cache sets, and a panel beyond a quarter of the
    second-level cache is fetched again for each block of rows, so copying pays from 16 rows on; from 64 on where a row of the
    panel is one cache line, which the hardware does not fetch ahead. Beyond three quarters of that
    cache, k is done in pieces. Small products stay on one thread.
    """
    extents = Extents.of(workload)
    lanes = max(2, limits.lanes(extents.element_bytes))
    mr, nv = register_block(extents.columns.constant, lanes, limits)
    tile = prepacked(workload)
    if tile:
        nv = next(n for n in (nv, 4, 3, 2, 1) if tile % (n * lanes) == 0)
        mr = min(mr, (limits.vector_registers - 1) // nv - 1)
        many = HostMatmulConfig(mr, nv, lanes, prefetch=16, **_chunking(workload, mr, nv * lanes, limits))
        few = HostMatmulConfig(mr, nv, lanes, prefetch=16, exact_tails=True)
        return _tree(workload, extents.rows, [(127, few)], many)
    apart = extents.columns.constant
    aligned = apart is not None and apart * extents.element_bytes % 4096 == 0
    deep = (extents.depth.constant or 0) * nv * lanes * extents.element_bytes > limits.l2 // 4
    piece = (48 if apart is not None and apart >= 96 * lanes else 24) * lanes * extents.element_bytes
    one = HostMatmulConfig(1, min(piece, limits.l1 // 4) // extents.element_bytes // lanes, lanes, prefetch=4, stream=4)
    in_place = HostMatmulConfig(mr, nv, lanes, prefetch=8, exact_tails=True)
    panel = HostMatmulConfig(mr, nv, lanes, Pack.PANEL, prefetch=16, **_chunking(workload, mr, nv * lanes, limits))
    while why_invalid(panel, workload, limits) is not None and panel.nv > 1:
        panel = replace(panel, nv=panel.nv - 1)
    most = 15 if aligned or deep else 255 if nv * lanes * extents.element_bytes >= 2 * _LINE else 63
    return _tree(workload, extents.rows, [(1, one), (most, in_place)], panel)


def prepacked(workload: Workload) -> int:
    """Columns of the panels of an operand that was laid out at compile time; 0 when there is none."""
    return max((o.panel for o in workload.inputs), default=0)


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


def _chunking(workload: Workload, mr: int, columns: int, limits: HostLimits) -> dict[str, Any]:
    """Rows of a work unit: as many as leave half of the second-level cache to the panel, at most 512.

    Where a panel takes most of that cache, k in pieces, and panels in groups that the rows of a piece stay in cache for.
    """
    extents = Extents.of(workload)
    size = extents.element_bytes
    depth = extents.depth.constant or 1024
    if depth * columns * size * 4 >= limits.l2 * 3 and _long(workload, 512):
        rows = limits.l2 // 2 // (512 * size)
        return {"mc": max(1, rows // mr) * mr, "kc": 512, "panels": 8}
    rows = limits.l2 // 2 // (depth * size)
    return {"mc": max(8, min(512 // mr, rows // mr)) * mr}


def _tree(workload: Workload, rows: Expr, cases: list[tuple[int, HostMatmulConfig]],
          otherwise: HostMatmulConfig) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """A switch on the number of rows; only the branch that is taken when it is constant."""
    if rows.constant is not None:
        chosen = next((config for bound, config in cases if rows.constant <= bound), otherwise)
        return (chosen,), one_thread_when_small(Leaf(0), workload)
    leaves: list[tuple[int, Node]] = [(bound, Leaf(number)) for number, (bound, _) in enumerate(cases)]
    root = switch(str(rows), leaves, Leaf(len(cases)))
    return (*(config for _, config in cases), otherwise), one_thread_when_small(root, workload)
