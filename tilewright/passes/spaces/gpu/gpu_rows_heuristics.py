"""Default configurations of `gpu_rows`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.passes.spaces.gpu.default_tree import decided, reached
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig, columns_of, widest_access
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch
from tilewright.runtime.shape import Expr

_WIDEST_VECTOR = 8  # elements
_PART_VECTOR = 4  # elements; a thread has as many sums for each vector of a row, in f32
_PART_BLOCKS = ((128, 1), (256, 1), (256, 4))  # threads of a block that passes over a part, vectors of a row in each


@dataclass(frozen=True)
class Thresholds:
    """Only what names records is measured."""

    short_elements: int = threshold(8, unit="elements of a row that a thread of a warp holds", operator="softmax_768",
                                    results="not measured: rows of 256 columns in one or two accesses of a thread")
    most_elements: int = threshold(32, unit="elements of a row that a thread holds", operator="softmax_4096",
                                   results="not measured: by occupancy arithmetic, 32 registers beside some 40 of addresses")
    long_threads: int = threshold(1024, unit="threads of a block that keeps a row of known length", operator="softmax_4096",
                                  results="h200-training.jsonl: cross_entropy of 30522 columns, held so, takes .60, .93, .79 of "
                                  "reading them again by 512 threads at 64, 512, 2048 rows; by 1024 .70, .92, .84")
    long_arithmetic: int = threshold(8, unit="operations on an element of such a row", operator="softmax_4096",
                                     results="ptxas 13.0: log-sum-exp spills nothing in f32, f16 and bf16, squares of a GELU 112 "
                                     "bytes")
    spread_columns: int = threshold(1 << 16, unit="columns of a row from which several blocks share it", operator="softmax_4096",
                                    results="not measured: 128 elements for each of 512 threads, against a launch for each sweep")
    spread_rows: int = threshold(4, unit="multiprocessors for each row up to which several blocks share one",
                                 operator="softmax_4096",
                                 results="not measured: with more rows, a block for each keeps a quarter of the machine busy")
    spread_blocks: int = threshold(16, unit="blocks of a row", operator="softmax_4096",
                                   results="not measured: every block joins the sums of all before the next sweep")
    across_threads: int = threshold(16, unit="threads of a sum whose elements lie apart", operator="layernorm_768",
                                    results="not measured: its gradients, 128 parts of 768 columns, want two rounds, not 32")
    across_sums: int = threshold(256, unit="sums a multiprocessor from which a thread has one alone", operator="layernorm_768",
                                 results="not measured: these threads hide each other's loads, and use whole sectors")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[GpuRowsConfig, ...], Node]:
    """A warp holds a short row, a block a long one; longer ones are read again, by several blocks where there are too few rows to
    fill the machine. Single elements where rows are no whole vectors. The last has no guards."""
    columns = columns_of(workload)
    if not _along_columns(workload):
        return _of_sums_across(workload, limits, thresholds)
    vec = min(_WIDEST_VECTOR, widest_access(workload))
    if columns.constant:
        vec = gcd(vec, columns.constant)
    if workload.part_rows:
        return _of_parts(columns, vec)
    safe = GpuRowsConfig(256, WARP, 1, 0, 2, index=64)
    wide, single = _by_length(vec, thresholds), _by_length(1, thresholds)
    if columns.constant is not None and columns.constant < thresholds.spread_columns:
        kept = GpuRowsConfig(thresholds.long_threads, thresholds.long_threads, vec, thresholds.most_elements // vec, 1)
        if columns.constant > kept.columns_in_registers // 2 and _leaves_registers(workload, thresholds.long_arithmetic):
            wide.insert(-1, kept)
        return (next((c for c in wide if columns.constant <= c.columns_in_registers), wide[-1]), safe), Leaf(0)
    spread = GpuRowsConfig(512, 512, 1, 0, 4, blocks=thresholds.spread_blocks)
    shorter = [] if columns.constant is not None else [*wide[:-1], *single]
    configs = tuple(dict.fromkeys((*shorter, wide[-1], spread, safe)))

    def long(last: GpuRowsConfig) -> Node:
        few = limits.multiprocessors // thresholds.spread_rows
        return switch(str(workload.size("row")), [(few, Leaf(configs.index(spread)))], Leaf(configs.index(last)))

    def tree(steps: list[GpuRowsConfig]) -> Node:
        bounds = [*(c.columns_in_registers for c in steps[:-1]), thresholds.spread_columns - 1]
        cases: list[tuple[int, Node]] = [(b, Leaf(configs.index(c))) for b, c in zip(bounds, steps, strict=True)]
        return switch(str(columns), cases, long(steps[-1]))

    if columns.constant is not None:
        return configs, long(wide[-1])
    return configs, Split(str(columns % vec), 0, tree(wide), tree(single))


def _of_sums_across(workload: Workload, limits: GpuLimits, t: Thresholds) -> tuple[tuple[GpuRowsConfig, ...], Node]:
    """Memory runs from sum to sum: a thread on each, several where there are few sums of many elements."""
    configs = tuple(GpuRowsConfig(128, n, 1, 0, 4) for n in (t.across_threads, 1))
    few = decided(workload.size("row"), [(limits.multiprocessors * t.across_sums, Leaf(0))], Leaf(1))
    tree = decided(columns_of(workload), [(t.across_threads, Leaf(1))], few)
    return reached((*configs, GpuRowsConfig(128, 1, 1, 0, 1, index=64)), tree)


def _of_parts(columns: Expr, vec: int) -> tuple[tuple[GpuRowsConfig, ...], Node]:
    """A block on each part, whose threads have the columns that they add to in registers where these do for a row."""
    vec = min(vec, _PART_VECTOR)
    held = tuple(GpuRowsConfig(threads, threads, vec, vectors, 1) for threads, vectors in _PART_BLOCKS)
    known = columns.constant
    fits = [c for c in held if known is None or c.columns_in_registers // 4 < known <= c.columns_in_registers]
    safe = GpuRowsConfig(256, 256, 1, 0, 1, index=64)
    configs = (*(fits if known is None else fits[:1]), GpuRowsConfig(256, 256, vec, 0, 1), safe)
    return configs, switch(str(columns), [(c.columns_in_registers, Leaf(n)) for n, c in enumerate(configs[:-2])],
                           Leaf(len(configs) - 2))


def _by_length(vec: int, thresholds: Thresholds) -> list[GpuRowsConfig]:
    """By length of row; the last takes any."""
    short, most = thresholds.short_elements // vec, thresholds.most_elements // vec
    return [GpuRowsConfig(128, WARP, 1, 1, 1), GpuRowsConfig(128, WARP, vec, short, 1), GpuRowsConfig(128, WARP, vec, most, 1),
            GpuRowsConfig(256, 256, vec, most, 1), GpuRowsConfig(512, 512, vec, 0, 2)]


def _leaves_registers(workload: Workload, most: int) -> bool:
    """Are no more than two reductions made of one operand by little arithmetic, and no result that is as wide? All else spills
    registers beside a long row."""
    full = max((len(o.dims) for o in workload.inputs), default=0)
    one = sum(len(o.dims) == full for o in workload.inputs) == 1
    narrow = all(len(o.dims) < full or o.dims[-1] == Expr.of(1) for o in workload.outputs)
    each = workload.flops.evaluate(dict.fromkeys(workload.flops.symbols, 1)) / columns_of(workload).evaluate({})
    return one and narrow and workload.reductions <= 2 and each <= most


def _along_columns(workload: Workload) -> bool:
    """Does memory run along the last column in the operands of full rank? Where nothing is known of them, it is taken to."""
    columns = [d for d, loop in enumerate(workload.loops) if loop.role == ("col" if workload.kind is Kind.ROWS else "k")]
    full = max((len(o.axes) for o in workload.inputs), default=0)
    along = [o.along for o in workload.inputs if o.along is not None and len(o.axes) == full]
    return not along or not columns or columns[-1] in along
