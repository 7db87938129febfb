"""Default configurations of `gpu_codes`, and of another family for more rows than it takes. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from tilewright.passes.spaces.family_registry import families_of, heuristics_of
from tilewright.passes.spaces.gemm_operands import Gemm, row_and_column_extents
from tilewright.passes.spaces.gpu.default_tree import decided, narrowed, reached
from tilewright.passes.spaces.gpu.gemv import ROWS, WIDEST
from tilewright.passes.spaces.gpu.gpu_codes import SCALED_SUMS, STEP, GpuCodesConfig, GpuFormat, on_matrix_units, why_invalid
from tilewright.passes.spaces.gpu.gpu_config import most_cluster
from tilewright.passes.spaces.gpu.gpu_rates import reached as filled
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, renumbered

_READS = (WIDEST, 8, 4, 2, 1)
_WARPS = (4, 2, 1)
# values of a column in a piece, of one row and of several: ptxas loads rows of more of them before it multiplies, and spills
_UNROLLED, _OF_ROWS = 128, 32


@dataclass(frozen=True)
class Thresholds:
    """Measured ones: codes of 4 bits, groups of 128, one row of f16 by mma.sync."""

    few_rows: int = threshold(16, unit="rows up to which columns are decoded into registers", operator="decode_4096x4096",
                              results="not measured: the rows of one instruction; more of them decode tiles into shared memory")
    launched_parts: int = threshold(4, unit="parts of k at most that a second launch sums", operator="decode_4096x4096",
                                    results="not measured: as of gemv")
    blocks_more: int = threshold(1, unit="blocks of a multiprocessor more than usual, where all then run at once",
                                 operator="decode_4096x4096",
                                 results="H200: 512 blocks, 5 a multiprocessor, 5.95 us; 4, in two turns, 7.45; 256 6.57")
    unrolled_rows: int = threshold(8, unit="rows up to which two steps are loaded at once, not one ahead",
                                   operator="decode_4096x4096",
                                   results="H200: two 6.20 us, one ahead 7.45; of 14336 columns 13.07 and 12.94")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[TileConfig, ...], Node]:
    """By rows, and by the parts of k that give every multiprocessor its blocks; of more rows what the next family runs."""
    t = thresholds
    family = next(f for f in families_of(workload, limits) if f != GpuCodesConfig.family)
    others, node = heuristics_of(family).default(workload, limits)
    if GpuFormat.of(workload) is None:
        return others, node
    rows, columns = row_and_column_extents(workload)
    few = min(ROWS, t.few_rows)
    found = list[GpuCodesConfig]()

    def leaf(config: GpuCodesConfig) -> Leaf:
        found.append(config)
        return Leaf(len(found) - 1)

    def in_parts(config: GpuCodesConfig) -> Node:
        """The most parts whose blocks all run at once: a second turn of a few of them lasts as long as the first. Without tensor
        cores registers are short: ptxas spills where there are more blocks than usual."""
        form, launched = GpuFormat.of(workload), most_cluster(limits) == 1
        assert form is not None
        most = config.min_blocks_per_sm + (t.blocks_more if config.tensor else 0)
        tiles = columns.ceildiv(config.bn).constant or limits.multiprocessors  # those of constant codes are known
        for parts in (8, 4, 2, 1):
            units = limits.multiprocessors if launched else filled(parts, limits)
            held = max(config.min_blocks_per_sm, -(-tiles * parts // units))
            made = replace(config, min_blocks_per_sm=held)
            made = replace(made, split_k=parts) if launched else replace(made, cluster_k=parts)
            fits = parts <= (t.launched_parts if launched else most_cluster(limits)) and parts * config.deep(form) <= form.depth
            if fits and held <= most and why_invalid(made, workload, limits) is None:
                return leaf(_on_its_way(made, workload, limits, t.unrolled_rows))
        return leaf(_on_its_way(config, workload, limits, t.unrolled_rows))

    heights = (8, ROWS) if on_matrix_units(workload) else (1, 2, 4, 8, ROWS)
    cases = [(h, in_parts(_block(h, workload, limits))) for h in heights if h <= few]
    safe = replace(_block(ROWS, workload, limits), vec=1, bytes=1, index=64, unroll=1)
    if rows.constant is not None and rows.constant <= few:
        return reached((*found, safe), decided(rows, cases, cases[-1][1]))
    more = renumbered(narrowed(node, str(rows), few), {i: i + len(found) for i in range(len(others))})
    return reached((*found, *others), decided(rows, cases, more))


def _block(rows: int, workload: Workload, limits: GpuLimits) -> GpuCodesConfig:
    """The widest reads that a column is whole ones of, and that leave code for as many values as registers have room for; as many
    warps as k gives a piece each."""
    form, gemm = GpuFormat.of(workload), Gemm.of(workload)
    assert form is not None and gemm is not None
    tensor = on_matrix_units(workload) and rows >= 8
    few = tensor or rows <= SCALED_SUMS
    for read in _READS:
        made = GpuCodesConfig(rows, 32, 1, 1, 1, tensor=tensor, min_blocks_per_sm=4 if few else 2, bytes=read)
        step = gcd(STEP, form.run(made.positions(form)))
        vec = max(v for v in (1, 2, 4, 8) if v * gemm.a.dtype.bytes <= WIDEST and step % v == 0 and form.depth % v == 0)
        warps = next((w for w in _WARPS if w * made.deep(form) <= form.depth), 1)
        made = replace(made, vec=vec, warps=warps if tensor or rows < ROWS else min(warps, 2))
        values = made.positions(form) * form.books * (rows // 8 if tensor else 1)
        if values <= (_UNROLLED if tensor or rows == 1 else _OF_ROWS) and why_invalid(made, workload, limits) is None:
            return made
    return GpuCodesConfig(rows, 32, 1, 1, 1, min_blocks_per_sm=1, bytes=1)


def _on_its_way(config: GpuCodesConfig, workload: Workload, limits: GpuLimits, unrolled_rows: int) -> GpuCodesConfig:
    """Codes of two steps loaded at once, or those of one while the one before multiplies, where there are several steps and
    registers for them."""
    form = GpuFormat.of(workload)
    more = replace(config, unroll=2) if config.tensor and config.rows <= unrolled_rows else replace(config, ahead=True)
    room = config.tensor or config.rows_each <= SCALED_SUMS
    several = form is not None and room and form.depth > config.parts * config.deep(form)
    return more if several and why_invalid(more, workload, limits) is None else config
