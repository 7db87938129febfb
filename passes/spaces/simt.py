"""Choices of `simt`: contractions of any element type by fused multiply-adds of single threads. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from passes.spaces.gemm_operands import row_and_column_extents
from passes.spaces.gpu_config import GpuConfig, is_power_of_two, why_invalid_block, why_invalid_ring
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, Split, switch
from runtime.limits import GpuLimits
from runtime.shape import Expr

_PAD = 16  # bytes behind each row of a tile


@dataclass(frozen=True)
class SimtConfig(GpuConfig):
    """bm x bn: rows and columns of a block; bk: depth of a step; tm x tn: of a thread; stages: steps in shared memory.

    vec: elements of one copy or store, as far as layouts allow. turn: operands that are contiguous along k are turned while
    they are copied, element by element. ahead: positions of k whose elements are in registers at once. together: blocks that
    must fit a multiprocessor, which bounds the registers; 0 leaves it to ptxas, 1 keeps it from spilling. split: parts that k
    is cut in, summed by a second launch in a fixed order. group: rows of blocks that are walked together, so that their
    operands stay in the cache.
    """

    family: ClassVar[str] = "simt"
    bm: int = 64
    bn: int = 64
    bk: int = 16
    tm: int = 4
    tn: int = 4
    stages: int = 3
    vec: int = 4
    turn: bool = False
    ahead: int = 4
    together: int = 0
    split: int = 1
    group: int = 8

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, element: int) -> int:
        """An upper bound: both tiles of every stage, then the block's results over them."""
        pad = _PAD // element
        side = self.bk * (self.bm + self.bn + 2 * pad) if self.turn else (self.bk + pad) * (self.bm + self.bn)
        tiles = self.stages * side * element
        return max(tiles, self.bm * (self.bn + _PAD // 4) * max(4, element))


def space(workload: Workload, limits: GpuLimits) -> Iterator[SimtConfig]:
    """All legal configurations."""
    vec = 4 if _widest(workload) == 4 else 2
    shapes = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (8, 16, 32), (2, 4, 8), (4, 8))
    blocks = [b for b in shapes if 64 <= b[0] * b[1] // (b[3] * b[4]) <= 256]
    rest = list(product((2, 3, 4), (1, vec), (False, True), (0, 2), (1, 2, 4, 8)))
    for block, (stages, width, turn, together, split) in product(blocks, rest):
        config = SimtConfig(*block, stages, width, turn, 4, together, split)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: SimtConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    widest = _widest(workload)
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    if not all(map(is_power_of_two, (c.bm, c.bn, c.bk, c.tm, c.tn, c.vec, c.split))):
        return f"power-of-two: {c}"
    if c.tm > c.bm or c.tn > c.bn:
        return f"thread-in-block: {c.tm} x {c.tn} of {c.bm} x {c.bn}"
    if not is_power_of_two(c.ahead) or c.ahead > c.bk:
        return f"ahead-in-step: {c.ahead} positions of {c.bk}"
    if c.vec > c.bk or c.vec * widest > 16:
        return f"vector-fits: {c.vec} elements of {widest} bytes in one access and in {c.bk} columns"
    registers = (c.tm * c.tn + 2 * (c.tm + c.tn)) * max(4, widest) // 4 + 32 * (c.index // 32)
    if registers > limits.thread_registers or registers * c.threads > limits.registers:
        return f"register-budget: about {registers} registers in each of {c.threads} threads"
    ring = why_invalid_ring(c.threads, c.stages, c.shared_bytes(widest), c.together, c.group, limits)
    return ring or why_invalid_block(c.threads, c.index, limits.threads)


def default(workload: Workload, limits: GpuLimits) -> tuple[tuple[SimtConfig, ...], Node]:
    """By rows: small blocks for few rows, large ones where they fill the machine; copies of single elements where extents are no
    whole vectors. The last has no guards."""
    widest = _widest(workload)
    vec = 4 if widest == 4 else 2
    rows, columns = row_and_column_extents(workload)
    tiles = rows * columns * workload.size("b")
    windows = sum(loop.role == "k" for loop in workload.loops) > 1
    together = 1 if windows else 0  # addresses of windows need registers, which ptxas would rather spill than lose a block
    few = SimtConfig(16, 64, 32, 2, 4, 3, vec, together=together)
    middle = SimtConfig(64, 64, 16, 4, 4, 3, vec, together=together)
    large = SimtConfig(128, 128, 16, 8, 8, 3, vec, together=together) if widest == 4 else middle
    safe = SimtConfig(64, 64, 16, 4, 4, 3, 1, turn=True, together=together, index=64)
    full = limits.multiprocessors * 128 * 128
    single = SimtConfig(64, 64, 16, 4, 4, 3, 1, turn=True, together=together)
    left = Expr.of(0)
    for extent in (workload.size("k"), columns):
        if extent.constant is None and not extent.divisible_by(vec):
            left = left + extent % vec
    configs = tuple(dict.fromkeys((few, middle, large, *([single] if left.symbols else []), safe)))
    node = switch(str(rows), [(32, Leaf(configs.index(few)))],
                  switch(str(tiles), [(2 * full, Leaf(configs.index(middle)))], Leaf(configs.index(large))))
    return configs, Split(str(left), 0, node, Leaf(configs.index(single))) if left.symbols else node


def _widest(workload: Workload) -> int:
    """Bytes of the widest element that a copy or a sum holds."""
    return max(4, *(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)))
