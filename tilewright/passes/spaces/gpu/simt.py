"""Choices of `simt`: contractions of any element type by fused multiply-adds of single threads. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import ClassVar

from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two, why_invalid_block, why_invalid_ring
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import GpuLimits

_PAD = 16  # bytes behind each row of a tile


@dataclass(frozen=True)
class SimtConfig(GpuConfig):
    """bm x bn: rows and columns of a block; bk: depth of a step; tm x tn: of a thread; stages: steps in shared memory.

    vec: elements of one copy or store, as far as layouts allow. transpose_on_copy: operands that are contiguous along k are
    transposed while they are copied, element by element. fragment_k: positions of k whose elements are in registers at once.
    min_blocks_per_sm: blocks that must fit a multiprocessor, which bounds the registers; 0 leaves it to ptxas, 1 keeps it from
    spilling. split_k: parts that k is cut in, summed by a second launch in a fixed order. group_m: rows of blocks that are
    walked together, so that their operands stay in the cache.
    """

    family: ClassVar[str] = "simt"
    former: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"turn": "transpose_on_copy", "ahead": "fragment_k", "together": "min_blocks_per_sm", "split": "split_k",
         "group": "group_m"})
    bm: int = 64
    bn: int = 64
    bk: int = 16
    tm: int = 4
    tn: int = 4
    stages: int = 3
    vec: int = 4
    transpose_on_copy: bool = False
    fragment_k: int = 4
    min_blocks_per_sm: int = 0
    split_k: int = 1
    group_m: int = 8

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def shared_bytes(self, element: int) -> int:
        """An upper bound: both tiles of every stage, then the block's results over them."""
        pad = _PAD // element
        side = self.bk * (self.bm + self.bn + 2 * pad) if self.transpose_on_copy else (self.bk + pad) * (self.bm + self.bn)
        tiles = self.stages * side * element
        return max(tiles, self.bm * (self.bn + _PAD // 4) * max(4, element))


def space(workload: Workload, limits: GpuLimits) -> Iterator[SimtConfig]:
    """All legal configurations."""
    vec = 4 if widest_bytes(workload) == 4 else 2
    shapes = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (8, 16, 32), (2, 4, 8), (4, 8))
    blocks = [b for b in shapes if 64 <= b[0] * b[1] // (b[3] * b[4]) <= 256]
    rest = list(product((2, 3, 4), (1, vec), (False, True), (0, 2), (1, 2, 4, 8)))
    for block, (stages, width, transpose, per_sm, split) in product(blocks, rest):
        config = SimtConfig(*block, stages, width, transpose, 4, per_sm, split)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: SimtConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    widest = widest_bytes(workload)
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    if not all(map(is_power_of_two, (c.bm, c.bn, c.bk, c.tm, c.tn, c.vec, c.split_k))):
        return f"power-of-two: {c}"
    if c.tm > c.bm or c.tn > c.bn:
        return f"thread-in-block: {c.tm} x {c.tn} of {c.bm} x {c.bn}"
    if not is_power_of_two(c.fragment_k) or c.fragment_k > c.bk:
        return f"fragment-in-step: {c.fragment_k} positions of {c.bk}"
    if c.vec > c.bk or c.vec * widest > 16:
        return f"vector-fits: {c.vec} elements of {widest} bytes in one access and in {c.bk} columns"
    registers = (c.tm * c.tn + 2 * (c.tm + c.tn)) * max(4, widest) // 4 + 32 * (c.index // 32)
    if registers > limits.registers_each(c.threads):
        return f"register-budget: about {registers} registers in each of {c.threads} threads"
    ring = why_invalid_ring(c.threads, c.stages, c.shared_bytes(widest), c.min_blocks_per_sm, c.group_m, limits)
    return ring or why_invalid_block(c.threads, c.index, limits.threads)


def widest_bytes(workload: Workload) -> int:
    """Bytes of the widest element that a copy or a sum holds."""
    return max(4, *(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)))
