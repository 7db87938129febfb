"""Columns that are one line wide: they lie as dense as a copied panel, and registers are left for more rows. MLIR-free.

More rows read the columns less often, as long as their lines fit the sets of the first cache: rows a multiple of a page apart all
lie in one.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.host.host_matmul import Extents, HostMatmulConfig, Pack, why_invalid
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import LINE, HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split

WAYS = 8  # of a set of the first cache, at least
PAGE = 4096  # bytes
_ROWS = 16
_BLOCKS = 16  # of rows in a work unit


def with_columns_of_a_line(workload: Workload, limits: HostLimits,
                           choice: tuple[tuple[HostMatmulConfig, ...], Node]) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """A choice with taller blocks in place, but where k turns out to be a multiple of a page."""
    (configs, root), extents = choice, Extents.of(workload)
    depth, size = extents.depth, extents.element_bytes
    if limits.vector_bytes < LINE or depth.constant is not None or (extents.columns.constant or 0) * size != LINE:
        return choice
    plain, gemm = next((c for c in configs if c.nv == 1 and not c.stream), None), Gemm.of(workload)
    if plain is None or gemm is None or gemm.last is None or gemm.a.source is None or extents.transposed:
        return choice
    if gemm.a.linear_axis(gemm.last) != gemm.a.unit_axis or any(c.copy_rows or c.kc or c.side > 1 for c in configs):
        return choice
    few, many = (replace(plain, mr=rows, pack=Pack.NONE, prefetch=8, mc=_BLOCKS * rows) for rows in (WAYS, _ROWS))
    if any(why_invalid(c, workload, limits) is not None for c in (few, many)):
        return choice
    kept = [c for c in configs if c.stream or c.nv > 1]
    node = Split(str(depth % (PAGE // size)), 0, Leaf(len(kept)), Leaf(len(kept) + 1))

    def taller(tree: Node) -> Node:
        if isinstance(tree, Leaf):
            return Leaf(kept.index(configs[tree.kernel])) if configs[tree.kernel] in kept else node
        below, above = taller(tree.below), taller(tree.above)
        return below if below == above else Split(tree.expr, tree.bound, below, above)

    return (*kept, few, many), taller(root)
