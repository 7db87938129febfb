"""Choices of `mma`: contractions of f16, bf16, tf32 and 8-bit integers by mma.sync, from sm_80 on. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from passes.spaces.gpu_config import WARP, GpuConfig, is_power_of_two, why_invalid_block
from passes.spaces.sides import narrow_bytes, sides_of, unaligned
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, Split, switch
from runtime.limits import GpuLimits

WIDEST = 16  # bytes of one copy
STEP = 32  # bytes along k of one instruction
STAGED_PAD = 8  # sums behind each row of a block's results in shared memory


@dataclass(frozen=True)
class MmaConfig(GpuConfig):
    """bm x bn: rows and columns of a block; bk: depth of a step; wm x wn: of a warp; stages: steps in shared memory.

    vec: elements of one copy or store, as far as layouts allow. staged: results go through shared memory, so that stores are
    wide and the code behind the contraction is there once. together: blocks that must fit a multiprocessor, which bounds the
    registers; 0 leaves it to ptxas. split: parts that k is cut in, summed by a second launch in a fixed order. group: rows of
    blocks that are walked together. tf32: f32 operands are read as tf32.
    """

    family: ClassVar[str] = "mma"
    bm: int = 64
    bn: int = 64
    bk: int = 64
    wm: int = 32
    wn: int = 32
    stages: int = 3
    vec: int = 8
    staged: bool = True
    together: int = 0
    split: int = 1
    group: int = 8
    tf32: bool = False

    @property
    def threads(self) -> int:
        return WARP * (self.bm // self.wm) * (self.bn // self.wn)

    def shared_bytes(self, element: int) -> int:
        """Both tiles of every stage; the block's results over them."""
        results = self.bm * (self.bn + STAGED_PAD) * 4 if self.staged and self.split == 1 else 0
        return max(self.stages * (self.bm + self.bn) * self.bk * element, results)

    def registers(self) -> int:
        """About what a thread needs: sums, fragments of a step, addresses."""
        return self.wm * self.wn // WARP + self.wm // 4 + self.wn // 4 + 48 * self.index // 32


def element_bytes(workload: Workload, tf32: bool = False) -> int | None:
    """Bytes of an operand's element; None where mma.sync has no such operands."""
    return 4 if tf32 else narrow_bytes(workload)


def space(workload: Workload, limits: GpuLimits) -> Iterator[MmaConfig]:
    """All legal configurations."""
    size = element_bytes(workload) or 4
    blocks = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (64 // size, 128 // size), (16, 32, 64), (16, 32, 64))
    rest = list(product((2, 3, 4, 5), (WIDEST // size, 1), (False, True), (0, 1, 2), (1, 2, 4, 8)))
    for block, (stages, vec, staged, together, split) in product(blocks, rest):
        config = MmaConfig(*block, stages, vec, staged, together, split, tf32=size == 4)
        if config.threads in (64, 128, 256) and why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: MmaConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    size = element_bytes(workload, c.tf32)
    if size is None:
        return "element-type: operands are neither f16, bf16 nor 8-bit integers, nor f32 read as tf32"
    return why_illegal(c, size, limits)


def why_illegal(config: MmaConfig, size: int, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks for operands of `size` bytes, or None."""
    c = config
    if not all(map(is_power_of_two, (c.bm, c.bn, c.bk, c.wm, c.wn, c.vec, c.split))):
        return f"power-of-two: {c}"
    if c.wm < 16 or c.wn < 16:
        return f"warp-tile: {c.wm} x {c.wn}; an instruction computes 16 x 8, two of them share a fragment"
    if c.wm > c.bm or c.wn > c.bn:
        return f"warp-in-block: {c.wm} x {c.wn} of {c.bm} x {c.bn}"
    if c.bk * size < STEP:
        return f"step-depth: {c.bk} elements; an instruction takes {STEP // size}"
    if c.stages < 2:
        return f"stages: {c.stages}; a step is loaded while another is computed"
    if c.vec * size > WIDEST:
        return f"vector-fits: {c.vec} elements of {size} bytes in one access"
    if c.together * c.threads > 2048 or c.together * c.shared_bytes(size) > limits.shared_bytes:
        return f"together-fits: {c.together} blocks of {c.threads} threads and {c.shared_bytes(size)} shared bytes"
    most = min(limits.thread_registers, limits.registers // (c.threads * max(1, c.together)))
    if c.registers() > most:
        return f"register-budget: about {c.registers()} of {most} registers in each of {c.threads} threads"
    if c.shared_bytes(size) > limits.shared_bytes:
        return f"shared-budget: {c.shared_bytes(size)} of {limits.shared_bytes} bytes"
    if c.group < 1:
        return f"group-positive: {c.group}"
    return why_invalid_block(c.threads, c.index, limits.threads)


def default(workload: Workload, limits: GpuLimits) -> tuple[tuple[MmaConfig, ...], Node]:
    """By rows and results: few rows, blocks that fill the machine, large blocks; copies of single elements where extents are no
    whole vectors. The last has no guards."""
    size = narrow_bytes(workload) or 4
    vec, depth, tf32 = WIDEST // size, 128 // size, size == 4
    rows, columns = sides_of(workload)
    few = MmaConfig(16, 64, depth, 16, 16, 4, vec, tf32=tf32)
    middle = MmaConfig(64, 64, depth, 32, 32, 3, vec, tf32=tf32)
    large = MmaConfig(128, 128, depth // 2, 64, 32, 4, vec, tf32=tf32)
    single = MmaConfig(64, 64, depth // 2, 32, 32, 2, 1, tf32=tf32)
    safe = replace(single, index=64)
    left = unaligned(workload, vec)
    configs = tuple(dict.fromkeys((few, middle, large, *([single] if left.symbols else []), safe)))
    full = limits.multiprocessors * large.bm * large.bn
    tiles = rows * columns * workload.size("b")
    node = switch(str(rows), [(16, Leaf(configs.index(few)))],
                  switch(str(tiles), [(full, Leaf(configs.index(middle)))], Leaf(configs.index(large))))
    return configs, Split(str(left), 0, node, Leaf(configs.index(single))) if left.symbols else node
