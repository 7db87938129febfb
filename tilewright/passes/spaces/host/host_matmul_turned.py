"""Few columns of many points, such as images of a pixel: the loop of rows lies along the vectors instead. MLIR-free.

Columns that fill part of a vector cost as much as a whole one, at every point of the shared loops again. Turned, all columns of
all points are rows that meet the same panel of what were rows, which is copied first: by a number of points on, that is less.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.host.host_block import register_block
from tilewright.passes.spaces.host.host_matmul import Extents, HostMatmulConfig, Pack, why_invalid
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch
from tilewright.runtime.shape import Expr

_COPY = 0.5  # products of a vector for each of its lanes that copying a transposed vector takes as long as, about
_QUARTERS = (1, 2, 3)  # of a vector, up to which columns are told apart


def with_turned(workload: Workload, limits: HostLimits, choice: tuple[tuple[HostMatmulConfig, ...], Node],
                chunk_rows: int) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """A choice with panels of what were rows where the columns are not known and turn out to be few.

    chunk_rows: of a work unit at most.
    """
    (configs, root), extents, turned = choice, Extents.of(workload), Extents.turned(workload)
    if turned is None or extents.columns.constant is not None:
        return choice
    config = _panels(workload, limits, turned, chunk_rows)
    lanes = config.lanes
    if (turned.columns.constant or 0) < lanes * limits.cores or why_invalid(config, workload, limits) is not None:
        return choice
    points = _points(workload)
    cases: list[tuple[int, Node]] = []
    for quarters in _QUARTERS:
        columns = lanes * quarters // 4
        least = int(_COPY * lanes / (lanes - columns)) + 1
        if columns:
            few = [(least - 1, root)] if least > 1 else []
            cases.append((columns, _node(points, few, Leaf(len(configs)))))
    return (*configs, config), switch(str(extents.columns), cases, root)


def _node(points: Expr, few: list[tuple[int, Node]], otherwise: Node) -> Node:
    """By the number of points; only what is taken where that is known."""
    if points.constant is None:
        return switch(str(points), few, otherwise)
    return next((node for most, node in few if (points.constant or 0) <= most), otherwise)


def _points(workload: Workload) -> Expr:
    """Of the loops that each have columns of their own."""
    gemm, points = Gemm.of(workload), Expr.of(1)
    for d, loop in enumerate(workload.loops):
        if gemm is not None and d in gemm.b.loops and d != gemm.column and loop.role != "k":
            points = points * loop.extent
    return points


def _panels(workload: Workload, limits: HostLimits, turned: Extents, chunk_rows: int) -> HostMatmulConfig:
    """Copied panels, as many as there are cores at least."""
    lanes = max(2, limits.lanes(turned.element_bytes))
    mr, nv = register_block(turned.columns.constant, lanes, limits)
    config = HostMatmulConfig(mr, nv, lanes, Pack.PANEL, mc=max(1, chunk_rows // mr) * mr, exact_tails=True, turned=True)
    columns = turned.columns.constant or lanes
    while config.nv > 1 and (columns < config.columns * limits.cores or why_invalid(config, workload, limits) is not None):
        config = replace(config, nv=config.nv - 1)
    return config
