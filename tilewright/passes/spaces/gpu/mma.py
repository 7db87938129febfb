"""Choices of `mma`: contractions of f16, bf16, tf32, fp8 and 8-bit integers by mma.sync, from sm_80 on. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import BYTE_FLOAT_TYPES, on_tensor_cores, tensor_core_bytes
from tilewright.passes.spaces.gpu.gpu_config import (
    GpuConfig,
    is_power_of_two,
    why_invalid_block,
    why_invalid_cluster,
    why_invalid_ring,
)
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import BYTE_FLOATS, WARP, GpuLimits
from tilewright.runtime.tensor import DType

WIDEST = 16  # bytes of one copy
STEP = 32  # bytes along k of one instruction
STAGED_PAD = 8  # sums behind each row of a block's results in shared memory


@dataclass(frozen=True)
class MmaConfig(GpuConfig):
    """bm x bn: rows and columns of a block; bk: depth of a step; wm x wn: of a warp; stages: steps in shared memory.

    vec: elements of one copy or store, as far as layouts allow; row_vec, column_vec, result_vec: of the operand of rows, of that
    of columns, of the result alone, where not 0. staged: results go through shared memory, so that stores are wide and the code
    behind the contraction is there once. min_blocks_per_sm: blocks that must fit a multiprocessor, which bounds the registers; 0
    leaves it to ptxas. split_k: parts that k is cut in, summed by a second launch in a fixed order; cluster_k: over the blocks of
    a cluster, summed out of their shared memory in the order of their ranks. group_m: rows of blocks that are walked together.
    tf32: f32 operands are read as tf32. swapped: columns take the side of 16 of an instruction, rows that of 8.
    """

    family: ClassVar[str] = "mma"
    former: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"together": "min_blocks_per_sm", "split": "split_k", "group": "group_m"})
    bm: int = 64
    bn: int = 64
    bk: int = 64
    wm: int = 32
    wn: int = 32
    stages: int = 3
    vec: int = 8
    staged: bool = True
    min_blocks_per_sm: int = 0
    split_k: int = 1
    group_m: int = 8
    tf32: bool = False
    swapped: bool = False
    cluster_k: int = 1
    row_vec: int = 0
    column_vec: int = 0
    result_vec: int = 0

    @property
    def vecs(self) -> tuple[int, int, int]:
        """Elements of an access of the operands of rows and of columns and of the result."""
        return self.row_vec or self.vec, self.column_vec or self.vec, self.result_vec or self.vec

    @property
    def threads(self) -> int:
        return WARP * (self.bm // self.wm) * (self.bn // self.wn)

    def shared_bytes(self, element: int) -> int:
        """Both tiles of every stage; the block's results over them."""
        results = self.bm * (self.bn + STAGED_PAD) * 4 if self.staged and self.split_k == 1 else 0
        return max(self.stages * (self.bm + self.bn) * self.bk * element, results)

    def registers(self) -> int:
        """About what a thread needs: sums, fragments of a step, addresses."""
        return self.wm * self.wn // WARP + self.wm // 4 + self.wn // 4 + 48 * self.index // 32


def element_bytes(workload: Workload, tf32: bool = False) -> int | None:
    """Bytes of an operand's element; None where mma.sync has no such operands."""
    return 4 if tf32 else tensor_core_bytes(workload)


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    types = {f.dtype for f in workload.factors}
    if numerics.tf32 and types == {DType.F32}:
        return None
    if tensor_core_bytes(workload) is None:
        return "element-type: operands are neither f16, bf16, fp8 nor 8-bit integers, nor f32 read as tf32"
    if not on_tensor_cores(workload, limits):
        return f"architecture: {limits.arch} has no products of 8-bit floats; wanted sm_{BYTE_FLOATS} or later"
    if len(types) > 1 and not types <= set(BYTE_FLOAT_TYPES):
        return f"one-type: tensor cores do not multiply {' by '.join(sorted(t.value for t in types))}"
    wanted = DType.I32 if types == {DType.I8} else DType.F32
    if workload.accumulator not in (wanted, None):
        return f"sums: tensor cores add products of {min(t.value for t in types)} in {wanted.value}"
    return None


def space(workload: Workload, limits: GpuLimits) -> Iterator[MmaConfig]:
    """All legal configurations."""
    size = element_bytes(workload) or 4
    blocks = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (64 // size, 128 // size), (16, 32, 64), (16, 32, 64))
    parts = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8))
    rest = list(product((2, 3, 4, 5), (WIDEST // size, 1), (False, True), (0, 1, 2), parts))
    thin = product((8, 16), (32, 64, 128, 256), (64 // size, 128 // size), (8, 16), (16, 32))
    shapes = [*((b, False) for b in blocks), *((b, True) for b in thin)]
    for (block, swapped), (stages, vec, staged, per_sm, (split, cluster)) in product(shapes, rest):
        config = MmaConfig(*block, stages, vec, staged, per_sm, split, tf32=size == 4, swapped=swapped,
                           cluster_k=cluster)
        if config.threads in (64, 128, 256) and why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: MmaConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    size = element_bytes(workload, c.tf32)
    if size is None:
        return "element-type: operands are neither f16, bf16, fp8 nor 8-bit integers, nor f32 read as tf32"
    if not c.tf32 and not on_tensor_cores(workload, limits):
        return f"architecture: {limits.arch} has no products of 8-bit floats; wanted sm_{BYTE_FLOATS} or later"
    return why_illegal(c, size, limits)


def why_illegal(config: MmaConfig, size: int, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks for operands of `size` bytes, or None."""
    c = config
    if not all(map(is_power_of_two, (c.bm, c.bn, c.bk, c.wm, c.wn, c.vec, *c.vecs, c.split_k))):
        return f"power-of-two: {c}"
    least = (8, 16) if c.swapped else (16, 16)
    if c.wm < least[0] or c.wn < least[1]:
        return f"warp-tile: {c.wm} x {c.wn}; an instruction computes 16 x 8, two of them share a fragment"
    if c.wm == 8 and c.bk * size < 2 * STEP:
        return f"shared-fragment: {c.bk} elements deep; two instructions share a fragment of 8 rows along k"
    if c.wm > c.bm or c.wn > c.bn:
        return f"warp-in-block: {c.wm} x {c.wn} of {c.bm} x {c.bn}"
    if c.bk * size < STEP:
        return f"step-depth: {c.bk} elements; an instruction takes {STEP // size}"
    if max(c.vec, *c.vecs) * size > WIDEST:
        return f"vector-fits: {max(c.vec, *c.vecs)} elements of {size} bytes in one access"
    if c.cluster_k > 1 and (c.split_k > 1 or not c.staged):
        return f"one-way-to-split: cluster_k {c.cluster_k}, split_k {c.split_k}, staged {c.staged}; sums meet in shared memory"
    ring = why_invalid_ring(c.threads, c.stages, c.shared_bytes(size), c.min_blocks_per_sm, c.group_m, limits)
    broken = why_invalid_cluster(c.cluster_k, limits) or ring
    if broken is not None:
        return broken
    most = limits.registers_each(c.threads, c.min_blocks_per_sm)
    if c.registers() > most:
        return f"register-budget: about {c.registers()} of {most} registers in each of {c.threads} threads"
    return why_invalid_block(c.threads, c.index, limits.threads)
