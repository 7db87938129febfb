"""Default configurations of `mma_rows`. MLIR-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.spaces.gemm_operands import unaligned
from tilewright.passes.spaces.gpu.mma_rows import MmaRowsConfig, tiles, why_invalid
from tilewright.passes.spaces.threshold import threshold
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Leaf, Node, Split, switch

_ALONE = (1, 2, 4, 8, 16, 0)  # single elements of a row that a thread holds


@dataclass(frozen=True)
class Thresholds:
    """waves is not measured."""

    waves: int = threshold(1, unit="waves of blocks, one a multiprocessor, up to which they have fewer rows",
                           operator="dense_768x2304",
                           results="not measured: a block reads all of the second factor, with twice the rows half as often")
    measured_percent: int = threshold(208, unit="percent of its predicted time that one launch takes, where it was to gain",
                                      operator="dense_768x2304",
                                      results="h200-training.jsonl: dense_layernorm_128x128 at 4096 rows takes 1.34 of two "
                                      "launches where .64 was predicted, at 128 rows 1.06 where .63 was; dense_softmax_64x256 "
                                      ".99-1.28 where .75-.80 was")


def default(workload: Workload, limits: GpuLimits,
            thresholds: Thresholds = Thresholds()) -> tuple[tuple[MmaRowsConfig, ...], Node]:
    """The fewest rows of a block that do not need a second wave, of those that have room. Copies and accesses of single elements
    where rows are no whole vectors. The last has no guards."""
    sizes = tuple(tiles(workload, limits))
    single = replace(sizes[0], bk=min(sizes[0].bk, 32), vec=1, lanes=1, stages=2)
    held = (replace(single, vectors_in_registers=n) for n in _ALONE)
    single = next(c for c in held if why_invalid(c, workload, limits) is None)
    safe = replace(single, index=64)
    if why_invalid(safe, workload, limits) is not None:
        safe = replace(safe, vectors_in_registers=0)
    left = unaligned(workload, sizes[0].vec)
    configs = tuple(dict.fromkeys((*sizes, *([single] if left.symbols else []), safe)))
    wave = limits.multiprocessors * thresholds.waves
    node = switch(str(workload.size("m")), [(wave * c.bm, Leaf(configs.index(c))) for c in sizes[:-1]],
                  Leaf(configs.index(sizes[-1])))
    return configs, Split(str(left), 0, node, Leaf(configs.index(single))) if left.symbols else node
