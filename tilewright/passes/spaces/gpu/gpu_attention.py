"""Fused attention on a GPU: queries in registers, keys and values in a ring of stages, by mma.sync from sm_80 on. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import tensor_core_bytes
from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two, why_invalid_block
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import MULTIPROCESSOR_THREADS, WARP, GpuLimits

WIDEST = 16  # bytes of one copy
STEP = 32  # bytes along k of one instruction
SLAB = 64  # value columns of a warp's results that are in shared memory at once
PAD = 8  # sums behind each row of them
LONGEST_QUERY, LONGEST_VALUE = 256, 256
_KEPT_COLUMNS = 128


@dataclass(frozen=True)
class GpuAttentionConfig(GpuConfig):
    """bm: queries of a block; wm: of a warp; bn: keys of a step; stages: steps in shared memory.

    queries_in_registers: else they are read again at each step. vec: elements of one copy or store, as far as layouts allow.
    min_blocks_per_sm: blocks that must fit a multiprocessor, which bounds the registers; 0 leaves it to ptxas. split_kv: parts
    that the keys are cut in, each of its own blocks, joined by a second launch in a fixed order. tf32: f32 operands are read as
    tf32.
    """

    family: ClassVar[str] = "gpu_attention"
    former: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"held": "queries_in_registers", "together": "min_blocks_per_sm", "split": "split_kv"})
    bm: int = 64
    wm: int = 16
    bn: int = 64
    stages: int = 2
    queries_in_registers: bool = True
    vec: int = 8
    min_blocks_per_sm: int = 0
    split_kv: int = 1
    tf32: bool = False

    @property
    def threads(self) -> int:
        return WARP * (self.bm // self.wm)

    def shared_bytes(self, depth: int, columns: int, size: int) -> int:
        """Queries, and the ring of keys and values; results over them."""
        ring = self.stages * self.bn * (padded(depth) + padded(columns)) * size
        return max(self.bm * padded(depth) * size + ring, self.bm // self.wm * 16 * (slab(columns) + PAD) * 4)

    def registers(self, depth: int, columns: int, size: int) -> int:
        """About what a thread needs: sums, scores, queries, single elements on their way, fragments and addresses. Beside sums of
        longer values there is no room for single elements; the assembler keeps those in memory."""
        sums, scores = self.wm * -(-columns // 16) * 16 // WARP, self.wm * self.bn // WARP
        queries = self.wm * -(-depth * size // STEP) * STEP // 4 // WARP if self.queries_in_registers else self.wm // 4
        single = self.vec * size < 4 and columns <= _KEPT_COLUMNS
        copies = self.bn * (padded(depth) + padded(columns)) // self.threads if single else 0
        return sums + scores + queries + copies + self.wm // 4 + 44 * self.index // 32


def padded(columns: int) -> int:
    """Columns of a tile in shared memory: a power of two, at least an instruction's."""
    return max(16, 1 << (columns - 1).bit_length())


def slab(columns: int) -> int:
    """Value columns of a warp's results that are in shared memory at once."""
    return min(padded(columns), SLAB)


def heads_of(workload: Workload) -> tuple[int, int] | None:
    """Length of a query and of a value; None where one is not known or too long."""
    depth, columns = workload.size("k").constant, workload.size("e").constant
    if depth is None or columns is None or not (0 < depth <= LONGEST_QUERY and 0 < columns <= LONGEST_VALUE):
        return None
    return depth, columns


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take an attention, or None."""
    if (tensor_core_bytes(workload) or (4 if numerics.tf32 else 0)) not in (2, 4):
        return "element-type: operands are neither f16 nor bf16, nor f32 read as tf32"
    if heads_of(workload) is None:
        return f"head-size: {workload.size('k')} and {workload.size('e')}; wanted at most {LONGEST_QUERY} and {LONGEST_VALUE}"
    return None


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuAttentionConfig]:
    """All legal configurations."""
    size = tensor_core_bytes(workload) or 4
    blocks = product((16, 32, 64, 128, 256), (16, 32), (16, 32, 64, 128), (2, 3, 4), (True, False))
    rest = list(product((WIDEST // size, 1), (0, 1, 2), (1, 2, 4, 8)))
    for block, (vec, per_sm, split) in product(blocks, rest):
        config = GpuAttentionConfig(*block, vec, per_sm, split, tf32=size == 4)
        if config.threads <= 512 and why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GpuAttentionConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if workload.kind is not Kind.ATTENTION:
        return f"attention: the workload is {workload.kind.value}"
    size = 4 if c.tf32 else tensor_core_bytes(workload)
    if size not in (2, 4):
        return "element-type: operands are neither f16 nor bf16, nor f32 read as tf32"
    heads = heads_of(workload)
    if heads is None:
        return f"head-size: {workload.size('k')} and {workload.size('e')}; wanted at most {LONGEST_QUERY} and {LONGEST_VALUE}"
    return why_illegal(c, *heads, size, limits)


def why_illegal(config: GpuAttentionConfig, depth: int, columns: int, size: int, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks for heads of these lengths and elements of `size` bytes, or None."""
    c = config
    if not all(map(is_power_of_two, (c.bm, c.wm, c.bn, c.vec, c.split_kv))):
        return f"power-of-two: {c}"
    if c.wm < 16 or c.bn < 16:
        return f"warp-tile: {c.wm} x {c.bn}; an instruction computes 16 x 8, two of them share a fragment"
    if c.wm > c.bm:
        return f"warp-in-block: {c.wm} of {c.bm} queries"
    if c.stages < 2:
        return f"stages: {c.stages}; a step is loaded while another is computed"
    if c.vec * size > WIDEST:
        return f"vector-fits: {c.vec} elements of {size} bytes in one access"
    shared = c.shared_bytes(depth, columns, size)
    if shared * max(1, c.min_blocks_per_sm) > limits.shared_bytes:
        return f"shared-budget: {max(1, c.min_blocks_per_sm)} x {shared} of {limits.shared_bytes} bytes"
    if c.min_blocks_per_sm * c.threads > MULTIPROCESSOR_THREADS:
        return f"blocks-fit: {c.min_blocks_per_sm} blocks of {c.threads} threads"
    most = limits.registers_each(c.threads, c.min_blocks_per_sm)
    if c.registers(depth, columns, size) > most:
        return f"register-budget: about {c.registers(depth, columns, size)} of {most} registers in each of {c.threads} threads"
    return why_invalid_block(c.threads, c.index, limits.threads)
