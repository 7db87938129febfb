"""Rows that pass few columns once, from beyond the second cache: each block of rows fetches the next one. MLIR-free.

The hardware follows a few streams; a block of rows is one for each row, which end with k. Where lines of the last cache are
distant, a block that asks for the lines of the next one waits less for them.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.host.host_block import DISTANT_BYTES
from tilewright.passes.spaces.host.host_matmul import Extents, HostMatmulConfig, why_invalid
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Node, renumbered, switch
from tilewright.runtime.shape import Expr

_VECTORS = 2  # of columns, up to which a block takes less time than its rows do to come


def with_next_rows(workload: Workload, limits: HostLimits,
                   choice: tuple[tuple[HostMatmulConfig, ...], Node]) -> tuple[tuple[HostMatmulConfig, ...], Node]:
    """A choice whose blocks of several rows fetch the next ones where all of them exceed the second cache and columns are one
    block, of two vectors at most."""
    (configs, root), columns = choice, Extents.of(workload).columns.constant
    gemm = Gemm.of(workload)
    if limits.l3 < DISTANT_BYTES or columns is None or gemm is None or len(gemm.rows) != 1:
        return choice

    def fetches(config: HostMatmulConfig) -> bool:
        few = config.nv <= _VECTORS and columns <= config.columns and config.mr > 1
        return few and why_invalid(replace(config, next_rows=True), workload, limits) is None

    most, elements = limits.l2 // gemm.a.dtype.bytes, Expr.of(1)
    for d in gemm.a.loops:
        elements = elements * workload.loops[d].extent
    if elements.constant is not None:
        if elements.constant <= most:
            return choice
        return tuple(replace(c, next_rows=True) if fetches(c) else c for c in configs), root
    numbers = [n for n, config in enumerate(configs) if fetches(config)]
    if not numbers:
        return choice

    taken = {n: n for n in range(len(configs))} | {n: len(configs) + i for i, n in enumerate(numbers)}
    added = [replace(configs[n], next_rows=True) for n in numbers]
    return (*configs, *added), switch(str(elements), [(most, root)], renumbered(root, taken))
