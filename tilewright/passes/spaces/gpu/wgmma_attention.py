"""Fused attention by warpgroups on sm_90a: tensor copies bring keys and values, scores stay in registers. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import tensor_core_bytes
from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE, PAD, SLAB, heads_of
from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two, why_invalid_block
from tilewright.passes.spaces.gpu.wgmma import BARRIER, COPIED_AXES, GROUP, ROW, ROWS, why_not_copied
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Kind, Workload, told_once
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr

SIZE = 2  # bytes of an element: what a second operand contiguous along the outer axis may have
BLOCK = ROW // SIZE  # elements of a row of a tile; a tile is blocks of them side by side
ALIGNED = 16 // SIZE  # elements; rows of operands of tensor copies begin at multiples of them
_OPERANDS = 3  # queries, keys and values
_ADDRESSES, _MASK = 32, 8  # registers of a thread; those for a mask from memory: by ptxas
COPIER, MULTIPLIER = {1: 0, 2: 24, 3: 32}, {1: 255, 2: 240, 3: 160}
"""Warpgroups that multiply -> registers of a thread that copies, and of one that multiplies. A single one has enough as it is."""


@dataclass(frozen=True)
class WgmmaAttentionConfig(GpuConfig):
    """consumers: warpgroups that multiply, each 64 queries; one more copies. bn: keys of a step; stages: steps in shared memory.

    vec: elements of one store. split_kv: parts that the keys are cut in, each of its own blocks, joined by a second launch in a
    fixed order. blocks: blocks that take one tile of queries after the other; 0 for a block per tile. pingpong: warpgroups begin
    their products of a step in turns, so that they do not all compute exponentials at once. copied: results leave by tensor
    copies.
    """

    family: ClassVar[str] = "wgmma_attention"
    consumers: int = 2
    bn: int = 128
    stages: int = 2
    vec: int = 8
    split_kv: int = 1
    blocks: int = 0
    pingpong: bool = False
    copied: bool = False

    @property
    def bm(self) -> int:
        """Queries of a block."""
        return ROWS * self.consumers

    @property
    def threads(self) -> int:
        return GROUP * (self.consumers + 1)

    @property
    def query_stages(self) -> int:
        """Tiles of queries in shared memory."""
        return 2 if self.blocks else 1

    @property
    def barriers(self) -> int:
        """mbarriers of a block: two of each stage of keys, of values, and of the queries."""
        return 4 * self.stages + 2 * self.query_stages

    def shared_bytes(self, depth: int, columns: int) -> int:
        """Queries, the rings of keys and of values, results of every warp that multiplies, mbarriers."""
        keys, values = (self.stages * self.bn * blocks(x) * ROW for x in (depth, columns))
        results = self.bm * columns * SIZE if self.copied else 4 * self.consumers * 16 * (slab(columns) + PAD) * 4
        return self.query_stages * self.bm * blocks(depth) * ROW + keys + values + results + self.barriers * BARRIER

    def registers(self, columns: int) -> int:
        """About what a thread that multiplies needs: sums, scores, the operand that they become, places and addresses."""
        return fragments(columns) // 2 + self.bn // 2 + self.bn // 4 + _ADDRESSES


def blocks(extent: int) -> int:
    """Blocks of 128 bytes side by side."""
    return -(-extent // BLOCK)


def fragments(columns: int) -> int:
    """Value columns that instructions compute."""
    return -(-columns // 16) * 16


def slab(columns: int) -> int:
    """Value columns of a warp's results that are in shared memory at once."""
    return min(fragments(columns) & -fragments(columns), SLAB // 2)


def row_loop(extents: Sequence[Expr]) -> int:
    """Which of several loops of queries a tile runs along: the last one of unknown length, else the longest."""
    return max(range(len(extents)), key=lambda d: (extents[d].constant is None, extents[d].constant or 0, d))


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take an attention, or None."""
    if limits.arch != "sm_90a":
        return f"architecture: {limits.arch} has no wgmma"
    if tensor_core_bytes(workload) != SIZE:
        return "element-type: operands are neither f16 nor bf16"
    heads = heads_of(workload)
    if heads is None or any(x % ALIGNED for x in heads):
        wanted = f"multiples of {ALIGNED} up to {LONGEST_QUERY} and {LONGEST_VALUE}"
        return f"head-size: {workload.size('k')} and {workload.size('e')}; wanted {wanted}"
    loops = {role: [d for d, loop in enumerate(workload.loops) if loop.role == role] for role in ("m", "n", "k", "e")}
    if len(loops["k"]) != 1 or not loops["m"] or len(workload.factors) != 4:
        return f"matrices: {len(loops['k'])} loops along a query, {len(loops['m'])} of queries"
    row = loops["m"][row_loop([workload.loops[d].extent for d in loops["m"]])]
    key, deep, wide = loops["n"][0], loops["k"][0], loops["e"][0]
    for number, factor in enumerate(workload.factors):
        if number >= 2 and wide not in factor.loops:
            continue  # the weights
        outer, along = (wide, key) if number >= 2 else (key if key in factor.loops else row, deep)
        problem = why_not_copied(workload, factor, outer, along)
        if problem is not None:
            return problem
    return None


def space(workload: Workload, limits: GpuLimits) -> Iterator[WgmmaAttentionConfig]:
    """All legal configurations."""
    grids = [*((split, 0, False, False) for split in (1, 2, 4, 8)),
             *((1, *grid) for grid in product((0, limits.multiprocessors), (False, True), (False, True)) if any(grid))]
    for consumers, bn, stages, vec, grid in product((1, 2, 3), (64, 128, 192), (2, 3, 4), (8, 1), grids):
        config = WgmmaAttentionConfig(consumers, bn, stages, vec, *grid)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: WgmmaAttentionConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if workload.kind is not Kind.ATTENTION:
        return f"attention: the workload is {workload.kind.value}"
    if limits.arch != "sm_90a":
        return f"architecture: {limits.arch} has no wgmma"
    if tensor_core_bytes(workload) != SIZE:
        return "element-type: operands are neither f16 nor bf16"
    heads = heads_of(workload)
    if heads is None:
        return f"head-size: {workload.size('k')} and {workload.size('e')}; wanted at most {LONGEST_QUERY} and {LONGEST_VALUE}"
    needed, given = config.registers(heads[1]) + _MASK, MULTIPLIER.get(config.consumers, 0)
    if len(workload.inputs) > _OPERANDS and needed > given:
        return f"register-budget: about {needed} of {given} registers in each thread with a mask from memory"
    if config.copied and not is_matrix(workload):
        return "copied-results: wanted one result of 2 bytes an element, a matrix along one axis of queries and the values"
    return why_illegal(config, *heads, limits)


@told_once
def is_matrix(workload: Workload) -> bool:
    """Is the one result a matrix that tensor copies can store?"""
    out, loops = workload.outputs[0], workload.loops
    rows = [d for d, loop in enumerate(loops) if loop.role == "m"]
    found = [rows[row_loop([loops[d].extent for d in rows])], *(d for d, loop in enumerate(loops) if loop.role == "e")]
    along = [[a for a, axis in enumerate(out.axes) if axis.loops == (d,) and axis.steps == (1,)] for d in found]
    return (len(workload.outputs) == 1 and out.dtype.bytes == SIZE and len(out.axes) <= COPIED_AXES
            and len(along[0]) == 1 and along[1:] == [[out.unit_axis]])


def why_illegal(config: WgmmaAttentionConfig, depth: int, columns: int, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks for heads of these lengths, or None."""
    c = config
    if not 1 <= c.consumers <= 3:
        return f"consumers: {c.consumers} is not from 1 to 3"
    if c.bn % BLOCK or not BLOCK <= c.bn <= 256:
        return f"keys: {c.bn} is no multiple of {BLOCK} up to 256"
    if c.stages < 2:
        return f"stages: {c.stages}; a step is loaded while another is computed"
    if c.vec not in (1, 2, 4, 8):
        return f"vector-fits: {c.vec} of the elements of one access"
    if not is_power_of_two(c.split_kv):
        return f"power-of-two: {c.split_kv} parts of the keys"
    if c.blocks < 0 or (c.blocks and c.split_kv > 1):
        return f"grid: blocks {c.blocks}, split_kv {c.split_kv}; a part of the keys has blocks of its own"
    if c.copied and (c.split_kv > 1 or columns % BLOCK):
        return f"copied-results: split_kv {c.split_kv}, values of {columns}; wanted 1 and whole boxes of {BLOCK}"
    if c.pingpong and c.consumers == 1:
        return "pingpong: one warpgroup; wanted several that take turns"
    if c.shared_bytes(depth, columns) > limits.shared_bytes:
        return f"shared-budget: {c.shared_bytes(depth, columns)} of {limits.shared_bytes} bytes"
    if c.registers(columns) > MULTIPLIER[c.consumers]:
        return f"register-budget: about {c.registers(columns)} of {MULTIPLIER[c.consumers]} registers in each thread"
    if c.index != 32:
        return f"index-bits: {c.index}; tensor copies take coordinates of 32 bits"
    return why_invalid_block(c.threads, c.index, limits.threads)
