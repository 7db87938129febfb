"""Family `host_matmul`: contractions of any layout on vectors, with what is fused before and after them.

A work unit is one point of the shared loops, a chunk of rows and a group of panels of columns, groups fastest, so that a chunk
of the rows stays in the second-level cache while panels pass; chunks fastest where rows stream, for the columns to stay; groups
slowest where data name the columns and neighbours have them in common. In it,
blocks of mr rows (smaller ones for what is left) by nv vectors keep their sums in registers over k; the last panel is masked,
and done one or two vectors at a time where its width is not known. Few rows stream instead, or take dot products along k. bf16
and bytes are multiplied in words of several values of k where the target can.
Long sums are done in pieces of kc values: each piece passes over the rows and panels of the unit, and the sums lie in the
workspace in between. The rows, too, may be copied to the workspace, piece by piece. Or a piece is one tap of a window, for the
rows that it does not read zero padding for.
Where a factor is triangular, k begins and ends where a unit, a panel and a block of rows need it to.
Every element is summed in an order that depends on the shape and the configuration, never on how units are split.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.host.host_matmul_emitter import MatmulEmitter
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_taps import Taps
from tilewright.passes.families.host.host_matmul_tiles import TilesEmitter
from tilewright.passes.families.host.host_matmul_words import takes_words
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig


def emit(kernel: HostKernel, config: HostMatmulConfig) -> Grid:
    """The whole kernel. ValueError when the region is no contraction that this family computes."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        plan, taps, possible = _planned(kernel, config)
        emitter = TilesEmitter if possible.tiles else MatmulEmitter
        return emitter(kernel, possible, plan, workspace, taps).units(begin, end)

    return kernel.build(body)


def tile(frame: KernelFrame, config: HostMatmulConfig, tiler: Tiler) -> None:
    """Units of one point of the shared loops, a chunk of rows and a group of panels of columns."""
    plan, _, c = _planned(frame, config)
    columns, rows = plan.view.extents[plan.column], plan.row_count
    chunks = rows.ceildiv(c.mc) if c.mc else rows.minimum(1)
    groups = columns.ceildiv(c.columns * c.panels)

    def parts(place: list[Index]) -> dict[str, Part]:
        group, *shared, chunk = place if c.columns_outer else (place[-1], *place[:-1])
        if c.stream:
            chunk, group = group, chunk
        height, low = tiler.size(rows), Index(0)
        high = height
        if c.mc:
            size = height.ceildiv(tiler.size(chunks).max(1)).ceildiv(c.mr) * c.mr  # chunks of about equal heights
            low = (chunk * size).min(height)
            high = (low + size).min(height)
        return {**{f"d{d}": Part(x) for d, x in zip(plan.shared, shared, strict=True)}, "rows": Part(low, high),
                "columns": tiler.span(group, c.columns * c.panels, columns)}

    points = [plan.view.extents[d] for d in plan.shared]
    counts = [groups, *points, chunks] if c.columns_outer else [*points, *((groups, chunks) if c.stream else (chunks, groups))]
    tiler.loop(counts, parts, plan.view.cut({**{f"d{d}": (d,) for d in plan.shared}, "rows": plan.rows,
                                             "columns": (plan.column,)}))


def _planned(frame: KernelFrame, config: HostMatmulConfig) -> tuple[Plan, Taps | None, HostMatmulConfig]:
    """The plan, the taps that are taken one by one, the configuration that is emitted. ValueError where panels do not fit what is
    prepacked."""
    plan = Plan.of(frame, config.turned)
    taps = Taps.of(frame, plan) if config.taps else None
    plan = taps.plan if taps is not None else plan
    possible = _possible(config, plan)
    if plan.tile % possible.columns and possible.columns % plan.tile:
        raise ValueError(f"panels of {plan.tile} columns cannot be read in blocks of {possible.columns}")
    if possible.stream or possible.side > 1 or possible.by_rows or taps is not None:
        plan = replace(plan, triangle=None)
    return plan, taps, possible


def _possible(config: HostMatmulConfig, plan: Plan) -> HostMatmulConfig:
    """Without streaming where the columns are computed, prepacked or no unit stride, or meet a factor that varies with them;
    in words where and only where the factors allow it, always where they are prepacked in words."""
    if plan.side > 1 and not takes_words(plan, config.lanes, plan.side):
        raise ValueError(f"a factor is prepacked in pairs or fours, which {config.lanes} lanes of this contraction do not take")
    side = plan.side if plan.tile else config.side if takes_words(plan, config.lanes, config.side) else 1
    config = replace(config, pairs=side == 2, quads=side == 4)
    if config.tiles and not TilesEmitter.takes(plan, side):
        config = replace(config, tiles=False, by_block=False, mr=config.lanes // 2)
    config = replace(config, kc=-(-config.kc // side) * side, stream=-(-config.stream // side) * side)
    if len(plan.view.k) != 1:
        config = replace(config, kc=0)
    if len(plan.view.k) != 1 or len(plan.rows) != 1 or not plan.runs_along:
        config = replace(config, next_rows=False)
    if plan.column in plan.view.loops_of(plan.narrow):
        config = replace(config, copy_rows=False)
    once = (plan.in_place or plan.transposed) and not plan.tile and plan.column not in plan.view.loops_of(plan.narrow)
    if not config.stream or once:
        return config
    fitting = [nv for nv in (4, 3, 2, 1) if nv <= config.nv and plan.tile % (nv * config.lanes) == 0]
    return replace(config, stream=0, nv=fitting[0] if fitting else config.nv)
