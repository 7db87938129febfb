"""Results of a few products each that leave the caches: they are written along rows. MLIR-free.

Panels that pass outermost write a line of every row, in as many pages, before the next line of the first one. Where the products
of a line take no longer than the line to come, all panels are copied first, and a block of rows writes its rows from end to end.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.host.host_matmul import FEW_PRODUCTS, Extents, HostMatmulConfig, why_invalid
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import LINE, HostLimits
from tilewright.runtime.program.dispatch import Node, renumbered, switch

_PANELS = 32  # of a work unit, whose copies lie in the second cache
_SHARE = 2  # of the last cache, from one half on results do not stay in it (zen3-avx2.md)


def with_rows_outermost(workload: Workload, limits: HostLimits,
                        choice: tuple[tuple[HostMatmulConfig, ...], Node]) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """A choice whose results of few products go by rows from a number of them on, where they may be of more than one panel and
    lines are of several vectors, which are not fetched right before their products."""
    (configs, root), extents = choice, Extents.of(workload)
    depth, columns = extents.depth.constant, extents.columns.constant
    if depth is None or depth > FEW_PRODUCTS:
        return choice

    def by_rows(config: HostMatmulConfig) -> HostMatmulConfig | None:
        panels = _PANELS if columns is None else min(_PANELS, -(-columns // config.columns))
        found = replace(config, panels=panels, by_rows=True)
        shared = config.lanes * extents.element_bytes < LINE
        return found if panels > 1 and shared and why_invalid(found, workload, limits) is None else None

    wide = {n: found for n, config in enumerate(configs) if (found := by_rows(config)) is not None}
    results, most = workload.size("b") * extents.rows * extents.columns, limits.l3 // _SHARE // extents.element_bytes - 1
    if not wide or (results.constant is not None and results.constant <= most):
        return choice
    if results.constant is not None:
        return tuple(wide.get(n, config) for n, config in enumerate(configs)), root
    taken = {n: n for n in range(len(configs))} | {n: len(configs) + i for i, n in enumerate(wide)}
    return (*configs, *wide.values()), switch(str(results), [(most, root)], renumbered(root, taken))
