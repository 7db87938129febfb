"""Tiles that no edge cuts, in code of their own without masks; those at the edges in the same launch.

Operation splitting and horizontal fusion (CoRa, sections 4.1 and 5.1): in ragged models, of sequences and of all rows of a batch,
a block asks once whether its tile is whole. Kernels of dense models have masks alone, which one compare an access takes. Rows of
a batch that are padded up to a tile, which CoRa calls bulk padding, would save no more than the masks of the last row of tiles.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.codegen.emit import all_of, when
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import CollapsedLoops
from tilewright.passes.codegen.index import Index


def by_wholeness(kernel: GpuKernel, spans: list[tuple[CollapsedLoops, Index, int]], emit: Callable[[bool], None]) -> None:
    """`emit(whole)` in both forms, one of which a block takes; in kernels of dense models `emit(False)` alone.

    Args:
        spans: (loops, first position, how many of them) of what the block computes. All threads of the block agree on them.
    """
    if not kernel.in_whole_tiles:
        emit(False)
        return
    inside = all_of([(first + count).le(loops.extent) for loops, first, count in spans])
    when(inside, lambda: emit(True), lambda: emit(False))
