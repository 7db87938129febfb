"""What `host_rows` runs untuned, by the length of rows. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.spaces.host.host_rows import MAX_VECTORS, HostRowsConfig, may_hold_sums, sums_alone, sums_of_elements
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import LINE, HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Thresholds:
    """Break-even lengths of rows."""

    short_vectors: int = threshold(8, unit="vectors of a row, up to which it is unrolled", operator="softmax",
                                   results="zen5-avx512.md: measured with this value alone")
    medium_columns: int = threshold(1024, unit="columns, of which four rows stay in the first cache", operator="layernorm",
                                    results="zen5-avx512.md: measured with this value alone, at 768 columns")
    transcendental_vectors: int = threshold(MAX_VECTORS, unit="vectors of a row with exponentials, up to which it is unrolled "
                                            "with 16 registers", operator="softmax",
                                            results="zen3-avx2.md: softmax up to 128 columns; 8 was slower")
    parts_by_columns: int = threshold(1, unit="second caches that sums in parts read at most for units to have columns",
                                      operator="layernorm", results="xeon-avx512.md: sums down the rows, by parts and by columns")
    wide_columns: int = threshold(3072, unit="columns from which on units have columns beyond a second cache too, and beside "
                                  "work on elements", operator="layernorm",
                                  results="xeon-avx512.md: sums down the rows, by parts and by columns")
    wide_by_columns: int = threshold(4, unit="second caches that sums of so many columns read at most for that",
                                     operator="layernorm", results="xeon-avx512.md: sums down the rows, by parts and by columns")
    narrow_units: int = threshold(1 << 21, unit="bytes of the second cache from which on units beyond it have four vectors of "
                                  "columns, not eight", operator="layernorm",
                                  results="xeon-avx512.md, zen5-avx512.md: sums down the rows, by parts and by columns")
    parts_of_a_thread: int = threshold(1, unit="parts a thread up to which units have columns, where elements have results "
                                       "beside the parts", operator="layernorm",
                                       results="xeon-avx512.md: gradients of GELU and a bias, by parts and by columns")
    rows_of_parts: int = threshold(4, unit="rows that are added to a part side by side, without exponentials",
                                   operator="layernorm", results="not kept: sums along 512 and 2048 rows of 768 columns, one row "
                                   "was 0.8x; no operator of the bench sums along rows")


def default(workload: Workload, limits: HostLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[HostRowsConfig, ...], Node]:
    """By the length of rows; a work unit is a part where there are reductions in parts."""
    configs, root = _by_rows(workload, limits, thresholds)
    if workload.part_rows:
        rows = 1 if workload.transcendentals else thresholds.rows_of_parts
        configs = tuple(replace(c, rows=rows, block=workload.part_rows) for c in configs)
        if workload.transcendentals and limits.vector_registers >= 32:
            wide = 2 * limits.lanes(_column_bytes(workload))
            configs = tuple(c if c.vectors else replace(c, lanes=wide, unroll=1) for c in configs)
    if sums_alone(workload):
        return _by_columns(workload, limits, thresholds, configs, root)
    if sums_of_elements(workload):
        return _few_parts(workload, limits, thresholds, configs, root)
    return configs, root


def _few_parts(workload: Workload, limits: HostLimits, thresholds: Thresholds, configs: tuple[HostRowsConfig, ...],
               root: Node) -> tuple[tuple[HostRowsConfig, ...], Node]:
    """Sums in parts beside work on elements, of so few long rows that there is hardly a part for each thread: these share
    columns."""
    threads, rows = limits.threads or limits.cores, workload.size("row")
    columns, lanes = workload.size("col").constant or 0, limits.lanes(_column_bytes(workload))
    vectors = 4 if limits.vector_registers >= 32 and columns >= 8 * threads * lanes else 2
    across = HostRowsConfig("lane", vectors * lanes, unroll=1, block=workload.part_rows)
    if threads == 1 or columns < max(thresholds.wide_columns, 2 * threads * across.lanes):
        return configs, root
    most = workload.part_rows * threads * thresholds.parts_of_a_thread
    if rows.constant is not None:
        return ((across,), Leaf(0)) if rows.constant <= most else (configs, root)
    return (*configs, across), switch(str(rows), [(most, Leaf(len(configs)))], root)


def _by_columns(workload: Workload, limits: HostLimits, thresholds: Thresholds, configs: tuple[HostRowsConfig, ...],
                root: Node) -> tuple[tuple[HostRowsConfig, ...], Node]:
    """Sums in parts whose operands stay in the second caches: each thread has columns then, and finds them there again. Of long
    rows also where they do not quite: a few rows are few parts, too few to be shared out evenly."""
    lanes = limits.lanes(_column_bytes(workload))
    held = limits.vector_bytes * limits.multiply_adds >= 2 * LINE and may_hold_sums(workload, lanes)  # two lines a cycle
    beyond = HostRowsConfig("lane", lanes, unroll=4, held=held, block=workload.part_rows)
    near = replace(beyond, unroll=8)
    columns = workload.size("col").constant or 0
    if columns < 2 * (limits.threads or limits.cores) * near.lanes * near.unroll:
        near = beyond
    elif limits.l2 < thresholds.narrow_units:
        beyond = near
    bounds = [(near, thresholds.parts_by_columns)]
    if columns >= thresholds.wide_columns:
        bounds.append((beyond, thresholds.wide_by_columns))
    known = workload.bytes.constant
    if known is not None:
        few = next((config for config, caches in bounds if known <= caches * limits.l2), None)
        return (configs, root) if few is None else ((few,), Leaf(0))
    cases: list[tuple[int, Node]] = [(caches * limits.l2, Leaf(len(configs) + n)) for n, (_, caches) in enumerate(bounds)]
    return (*configs, *(config for config, _ in bounds)), switch(str(workload.bytes), cases, root)


def _by_rows(workload: Workload, limits: HostLimits, thresholds: Thresholds) -> tuple[tuple[HostRowsConfig, ...], Node]:
    """Short rows unrolled, four rows a sweep; middling ones too, with a loop over vectors of two registers; long rows one at a
    time with a loop; a row per lane when columns are strided, and when they fill a quarter of a vector at most."""
    at, lanes = thresholds, limits.lanes(_column_bytes(workload))
    columns = [loop.extent for loop in workload.loops if loop.role == "col"]
    if _across_rows(workload) and not workload.part_rows:
        return (HostRowsConfig("lane", limits.lanes(_row_bytes(workload)), unroll=4, block=1),), Leaf(0)
    long = HostRowsConfig(lanes=lanes)
    if len(columns) != 1:
        return (long,), Leaf(0)
    by_lane = not workload.part_rows and any(loop.role == "row" for loop in workload.loops)
    if workload.transcendentals and limits.vector_registers < 32:
        return _by_length(columns[0], _transcendental(lanes, thresholds, by_lane))
    quarter = lanes // 4 if by_lane and limits.vector_registers >= 32 else 0
    least = columns[0].evaluate(dict.fromkeys(workload.dims, 1))
    few = [(quarter, HostRowsConfig("lane", lanes, unroll=4))] if least <= quarter else []
    short = HostRowsConfig(lanes=lanes, vectors=at.short_vectors, rows=4, block=32)
    medium = HostRowsConfig(lanes=2 * lanes, unroll=2, rows=4)
    middling = [(at.medium_columns, medium)] if columns[0].constant is not None else []
    return _by_length(columns[0], [*few, (at.short_vectors * lanes, short), *middling, (None, long)])


_Lengths = list[tuple[int | None, HostRowsConfig]]  # most columns and what takes them, in order


def _transcendental(lanes: int, thresholds: Thresholds, rows: bool) -> _Lengths:
    """Where exponentials take most of few registers: one accumulator, four rows a sweep, unrolled as far as that goes; a row a
    lane where nearly half of a vector would be empty."""
    long, most = HostRowsConfig(lanes=lanes, unroll=1, rows=4), thresholds.transcendental_vectors
    few = [(lanes // 2 + 1, HostRowsConfig("lane", lanes, unroll=1))] if rows else []
    return [*few, (most * lanes, replace(long, vectors=most)), (None, long)]


def _by_length(columns: Expr, lengths: _Lengths) -> tuple[tuple[HostRowsConfig, ...], Node]:
    """What takes as many columns, where they are known; else a switch."""
    known = columns.constant
    if known is not None:
        return (next(c for most, c in lengths if most is None or known <= most),), Leaf(0)
    bounds: list[tuple[int, Node]] = [(most, Leaf(n)) for n, (most, _) in enumerate(lengths) if most is not None]
    return tuple(c for _, c in lengths), switch(str(columns), bounds, Leaf(len(lengths) - 1))


def _column_bytes(workload: Workload) -> int:
    """Bytes of the widest element that vectors along the columns hold: an integer of which a row has one, as a label, is none."""
    columns = {number for number, loop in enumerate(workload.loops) if loop.role == "col"}
    along = [o for o in (*workload.inputs, *workload.outputs)
             if o.dtype.is_float or columns & {d for axis in o.axes for d in axis.loops}]
    return max((4, *(o.dtype.bytes for o in along)))


def _row_bytes(workload: Workload) -> int:
    """Bytes of the widest element that vectors along a row axis hold: an integer along the columns, as a number of a row of a
    table, is one for all lanes."""
    rows = {number for number, loop in enumerate(workload.loops) if loop.role == "row"}
    along = [o for o in (*workload.inputs, *workload.outputs) if o.dtype.is_float or o.along is None or o.along in rows]
    return max((4, *(o.dtype.bytes for o in along)))


def _across_rows(workload: Workload) -> bool:
    """Does memory run along a row axis in the largest inputs, or, where these are rows of tables that data name, in results?"""
    every = set(range(len(workload.loops)))
    full = [o for o in workload.inputs if {d for axis in o.axes for d in axis.loops} == every]
    named = not full and any(o.dims and not o.axes for o in workload.inputs)
    roles = [workload.loops[o.along].role for o in (workload.outputs if named else full) if o.along is not None]
    return roles.count("row") > roles.count("col") and workload.size("row") != Expr.of(1)
