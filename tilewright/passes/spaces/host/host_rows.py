"""Row kernels on the host: reductions along rows with the elementwise work around them. MLIR-free.

Softmax, normalisations, plain reductions: sweeps along the columns of a row, one per reduction that needs an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Axis, Workload
from tilewright.runtime.limits import HostLimits

MAX_VECTORS = 16  # of an unrolled row
LEAN = 8  # vectors, above which an unrolled row has one accumulator
_HELD_BYTES = 24 << 10  # of sums that leave room for rows in a first cache, of 32 or 48 KB
_SHORT = 8  # vectors of a row up to which units of columns read it in one piece anyway


@dataclass(frozen=True)
class HostRowsConfig(TileConfig):
    """Choices of one row kernel.

    axis: "column" (vectors along the columns, joined at the end of a sweep) or "lane" (vectors along an axis that is kept, whose
    elements have a lane each: a row axis, or that of the columns where sums down the rows in parts and work on elements are all
    there is). lanes: elements per vector. unroll: independent accumulators. vectors: 0 walks the columns with a loop; n unrolls
    rows of at most n vectors. rows: rows that finish a sweep before the next one starts. held: a row stays in registers between
    sweeps; of sums in parts with a lane for each column, those of all columns stay in the first cache while one thread reads rows
    from end to end. block: rows (chunks of lanes) in one work unit; with reductions in parts, rows of a part.
    """

    family: ClassVar[str] = "host_rows"
    axis: str = "column"
    lanes: int = 16
    unroll: int = 4
    vectors: int = 0
    rows: int = 1
    held: bool = False
    block: int = 4


def space(workload: Workload, limits: HostLimits) -> Iterator[HostRowsConfig]:
    """All legal configurations."""
    widest = widest_bytes(workload)
    for axis, wide, unroll, vectors, rows, held, block in product(
        ("column", "lane"), (1, 2), (1, 2, 4, 8), (0, 1, 2, 4, 8, 16), (1, 4, 8), (False, True),
        (workload.part_rows,) if workload.part_rows else (4, 16, 64)
    ):
        config = HostRowsConfig(axis, wide * limits.lanes(widest), unroll, vectors, rows, held, block)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: HostRowsConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    columns = [loop.extent for loop in workload.loops if loop.role == "col"]
    if c.axis not in ("column", "lane"):
        return f"axis-known: {c.axis!r} is neither column nor lane"
    if c.lanes < 2 or c.lanes & (c.lanes - 1):
        return f"lanes-power-of-two: {c.lanes} lanes"
    widest = widest_bytes(workload)
    if c.lanes * widest > 4 * limits.vector_bytes:
        return f"lanes-fit: {c.lanes} lanes of {widest} bytes need more than four {limits.vector_bytes}-byte registers"
    if min(c.unroll, c.rows, c.block) < 1 or c.vectors < 0:
        return "counts-positive: unroll, rows and block are at least 1, vectors at least 0"
    if not columns:
        return "has-columns: the workload reduces nothing"
    if workload.part_rows and c.block != workload.part_rows:
        return f"parts-of-rows: a part has {workload.part_rows} rows, not {c.block}"
    if c.axis == "lane" and workload.part_rows and not sums_of_elements(workload):
        return "parts-along-columns: rows have work of their own beside the parts, with vectors along the columns"
    if c.axis == "lane":
        if all(loop.role == "col" for loop in workload.loops):
            return "lane-axis: the workload has no row axis to put on lanes"
        if c.vectors or c.rows > 1:
            return "lane-columns: vectors and rows are choices of vectors along columns"
        if c.held and not may_hold_sums(workload, c.lanes):
            return f"held-sums: wanted sums down the rows alone, of more than {_SHORT} vectors of columns, in {_HELD_BYTES} bytes"
        return None
    if c.vectors > MAX_VECTORS:
        return f"vectors-bounded: {c.vectors} unrolled vectors, at most {MAX_VECTORS}"
    if c.vectors and len(columns) > 1:
        return f"vectors-one-loop: {len(columns)} column loops cannot be unrolled as one row"
    if c.vectors and (extent := columns[0].constant) is not None and not 0 <= extent <= c.vectors * c.lanes:
        return f"vectors-cover: {extent} columns do not fit {c.vectors} vectors of {c.lanes} lanes"
    if c.vectors > LEAN and c.unroll > 1:
        return f"long-unrolled-lean: {c.vectors} unrolled vectors have one accumulator, there is much code of them"
    if c.vectors and c.unroll > c.vectors:
        return f"unroll-used: {c.unroll} accumulators for {c.vectors} vectors"
    if c.held and (c.rows > 1 or not c.vectors):
        return "held-one-row: only one unrolled row at a time stays in registers"
    if c.block % c.rows and not workload.part_rows:
        return f"block-whole: {c.block} rows in a unit are no multiple of {c.rows}"
    return None


def sums_alone(workload: Workload) -> bool:
    """Are sums in parts, down rows of one axis of columns, all that a workload gives?"""
    return sums_of_elements(workload) and workload.reductions == len(workload.outputs)


def sums_of_elements(workload: Workload) -> bool:
    """Does it give sums in parts, down rows of one axis of columns, and beside these what is made of each element alone?"""
    if not workload.part_rows or sorted(loop.role for loop in workload.loops) != ["col", "row"]:
        return False
    [row] = [n for n, loop in enumerate(workload.loops) if loop.role == "row"]
    parts, whole = ([o for o in workload.outputs if len(o.axes) == 2 and o.axes[0] == Axis((row,), (step,))] for step in (0, 1))
    return workload.reductions == len(parts) and len(parts) + len(whole) == len(workload.outputs)


def may_hold_sums(workload: Workload, lanes: int) -> bool:
    """Are there sums in parts alone, of more columns than a unit reads in one piece, and of few enough for a first cache?"""
    columns = workload.size("col").constant or 0
    return sums_alone(workload) and lanes * _SHORT < columns <= _HELD_BYTES // sum(o.dtype.bytes for o in workload.outputs)


def widest_bytes(workload: Workload) -> int:
    """Bytes of the widest element computed on: f16 and bf16 are computed in f32."""
    return max((4, *(o.dtype.bytes for o in (*workload.inputs, *workload.outputs))))
