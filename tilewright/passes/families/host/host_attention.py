"""Family `host_attention`: softmax(f(Q K^T)) V in one kernel, with no tensor of queries by keys.

A work unit is one point of the shared loops and a chunk of queries. Keys are laid out in panels [key / panel][k][key mod
panel], once for units of one point that follow each other; then blocks of mr queries take their scores into the workspace, where
they stay in the first-level cache, through the softmax, and meet the values in registers. Keys that no query of a block sees
are skipped, so that their values count for nothing even where they are NaN. The division by the sum comes after the mixing.
Where keys come in blocks (`online`), sums, their maximum and the mixed values of the chunk stay in the workspace and are
rescaled when a block raises the maximum (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1).
Products of bf16 are of words of two where the target has such: keys and values are copied so, and the exponentials, whose sum is
of f32, are rounded to bf16 before they are multiplied.
Every element follows from its own row in an order that depends on the configuration, never on how units are split.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Part, Tiler
from tilewright.passes.families.host.host_attention_emitter import AttentionEmitter
from tilewright.passes.families.host.host_attention_tiles import TilesAttention
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_words import takes_words
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.host.host_attention import HostAttentionConfig


def emit(kernel: HostKernel, config: HostAttentionConfig) -> Grid:
    """The whole kernel. ValueError when the region is no attention."""

    def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
        possible = _possible(kernel, config)
        emitter = TilesAttention if possible.tiles else AttentionEmitter
        return emitter(kernel, possible, workspace).units(begin, end)

    return kernel.build(body)


def tile(frame: KernelFrame, config: HostAttentionConfig, tiler: Tiler) -> None:
    """Units of one point of the shared loops and a chunk of queries."""
    view = Attention.of(frame.ops(), frame.shapes)
    rows, step = view.row_count, config.mc

    def parts(place: list[Index]) -> dict[str, Part]:
        *shared, chunk = place
        return {**{f"d{d}": Part(x) for d, x in zip(view.shared, shared, strict=True)},
                "rows": tiler.span(chunk, step, rows) if step else Part(Index(0), tiler.size(rows))}

    counts = [*(view.scores.extents[d] for d in view.shared), rows.ceildiv(step) if step else rows.minimum(1)]
    tiler.loop(counts, parts, view.cut({**{f"d{d}": (d,) for d in view.shared}, "rows": view.rows}))




def _possible(frame: KernelFrame, config: HostAttentionConfig) -> HostAttentionConfig:
    """In words of two only where both products are of bf16; without tiles a block that registers hold."""
    view = Attention.of(frame.ops(), frame.shapes)
    plans = [Plan.along(frame, view.scores, view.key), Plan.along(frame, view.mixed, view.column)]
    if not config.pairs or all(takes_words(plan, config.lanes, config.side) for plan in plans):
        return config
    return replace(config.untiled(), pairs=False)
