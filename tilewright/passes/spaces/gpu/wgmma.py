"""Choices of `wgmma`: contractions of f16, bf16, fp8, tf32 and 8-bit integers by warpgroups, on sm_90a. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd
from types import MappingProxyType
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import BYTE_FLOAT_TYPES, column_loop, row_and_column_roles, tensor_core_bytes
from tilewright.passes.spaces.gpu import mma
from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two, why_invalid_block, why_invalid_cluster
from tilewright.passes.spaces.gpu.gpu_rates import reached
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Factor, Kind, Workload, told_once
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.tensor import DType

GROUP = 128  # threads of a warpgroup
ROW = 128  # bytes of a row of a tile, within which copies permute chunks
ROWS = 64  # of an instruction
STEP = 32  # bytes along k of an instruction
BARRIER = 8  # bytes of an mbarrier
PAIRS = 8  # columns between a thread's pairs of sums
COPIED_BYTES = (2, 4)  # of elements of results that leave by tensor copies
PAD = 8  # sums behind each row of a warp's results in shared memory
SUMMING = 256  # threads of a block that adds up parts of tiles
COLUMNS = (32, 64, 80, 96, 112, 128, 144, 160, 192, 224, 240, 256)  # of tiles: where a wave of one size is full, others' are not
_SLAB = 32  # columns of a warp's results that are in shared memory at once
_LONGEST_BOX = 256
_INSTRUCTION = 26  # registers beside the sums of an instruction: by ptxas, which counts those that a kernel begins with
_EPILOGUE = 8  # registers of addresses and values of further operands, where warpgroups take turns: by ptxas, 128 x 192 spilled
COPIED_AXES = 5
CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (1, 1, 2), (1, 1, 4),
            (1, 1, 8), (2, 1, 2), (1, 2, 2), (2, 2, 2), (2, 1, 4), (1, 2, 4), (4, 1, 2), (1, 4, 2))
"""Blocks of clusters below each other, beside each other, and with parts of k."""
REGISTERS = {2: (40, 232), 3: (32, 160)}
"""Warpgroups that multiply -> registers of a thread that copies, and of one that multiplies. A single one has enough as it is."""


@dataclass(frozen=True)
class WgmmaConfig(GpuConfig):
    """bm x bn: rows and columns of a tile of the result; stages: steps in shared memory.

    consumers: warpgroups that multiply, each its share of the rows; one more copies. vec: elements of one store. group_m: rows
    of tiles that are walked together. blocks: blocks that take one tile after the other; 0 for a block per tile. split_k: parts
    that k is cut in, each of its own blocks, summed by a second launch in a fixed order. copied: results leave by tensor copies.
    pingpong: each of two warpgroups has tiles of its own, and multiplies while the other one stores.
    tf32: f32 operands are read as tf32. cluster_m, cluster_n: blocks of a cluster that take tiles below and beside each other and
    bring what they have in common only once. cluster_k: blocks of a cluster that have a part of k of one tile each,
    summed out of their shared memory in the order of their ranks. deep: rows of 128 bytes along k of a step. streamed: blocks
    share the steps of all tiles evenly; a second launch sums those of tiles that several have a part of, in a fixed order.
    """

    family: ClassVar[str] = "wgmma"
    former: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"group": "group_m", "split": "split_k", "down": "cluster_m", "across": "cluster_n"})
    bm: int = 128
    bn: int = 128
    stages: int = 4
    consumers: int = 2
    vec: int = 8
    group_m: int = 8
    blocks: int = 132
    split_k: int = 1
    copied: bool = False
    tf32: bool = False
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False
    cluster_k: int = 1
    deep: int = 1
    streamed: bool = False

    @property
    def cluster(self) -> int:
        """Blocks of a cluster that have tiles of their own."""
        return self.cluster_m * self.cluster_n

    @property
    def threads(self) -> int:
        return GROUP * (self.consumers + 1)

    @property
    def rows(self) -> int:
        """Of a tile that a warpgroup multiplies."""
        return self.bm if self.pingpong else self.bm // max(1, self.consumers)

    @property
    def readers(self) -> int:
        """Warpgroups that read a stage."""
        return 1 if self.pingpong else self.consumers

    @property
    def buffers(self) -> int:
        """Tiles of results of a warpgroup that leave by copies at once."""
        return 2 if self.consumers < 3 else 1

    @property
    def slab(self) -> int:
        """Columns of a warp's results that are in shared memory at once."""
        return gcd(self.bn, _SLAB)

    @property
    def stage_bytes(self) -> int:
        return (self.bm + self.bn) * ROW * self.deep

    @property
    def barriers(self) -> int:
        """mbarriers of a block: of every stage one that its copies complete and one that those who have read it do; and one that
        nobody waits for."""
        return 2 * self.stages + 1

    def tile_bytes(self) -> int:
        """Shared memory without mbarriers: the ring of tiles, room for sums of every warp that multiplies and for its results."""
        results = self.buffers * ROW if self.copied else (self.slab + PAD) * 4  # of a row
        sums = self.bm * (self.bn + PAD) * 4 if self.cluster_k > 1 else self.consumers * ROWS * results
        return self.stages * self.stage_bytes + sums

    def shared_bytes(self) -> int:
        """Tiles, sums, results and mbarriers."""
        return self.tile_bytes() + self.barriers * BARRIER

    def registers(self, promoted: bool = False) -> int:
        """About what a thread that multiplies needs: sums, those of a step beside them where they are promoted, addresses."""
        return self.rows // ROWS * self.bn // 2 * (1 + promoted) + 40


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    if limits.arch != "sm_90a":
        return f"architecture: {limits.arch} has no wgmma"
    groups = {role: [d for d, loop in enumerate(workload.loops) if loop.role == role] for role in ("m", "n", "k")}
    many = [role for role, loops in groups.items() if len(loops) != 1]
    if many:
        return f"matrices: {len(groups[many[0]])} loops of {many[0]}, wanted one"
    for factor, role in zip(workload.factors, ("m", "n"), strict=False):
        problem = why_not_copied(workload, factor, groups[role][0], groups["k"][0])
        if problem is not None:
            return problem
    return mma.takes(workload, limits, numerics)


def why_not_copied(workload: Workload, factor: Factor, outer: int, k: int) -> str | None:
    """The rule by which tensor copies cannot bring tiles of a factor along these two loops, or None."""
    if factor.source is None:
        return "as-it-lies: a factor is computed; tensor copies move what lies in memory"
    along, depth = factor.linear_axis(outer), factor.linear_axis(k)
    if along is None or depth is None or factor.axes[depth].loops != (k,):
        return "matrices: a factor is no matrix along one axis and k"
    if factor.unit_axis not in (along, depth):
        return "contiguous: a factor is contiguous along neither axis of its tiles"
    if len(factor.axes) > COPIED_AXES:
        return f"axes: a factor has {len(factor.axes)} axes; a tensor copy has at most {COPIED_AXES}"
    if factor.unit_axis != depth and workload.inputs[factor.source].dtype.bytes != 2:
        return "contiguous: a factor of elements of other than 2 bytes is not contiguous along k"
    return None


def space(workload: Workload, limits: GpuLimits) -> Iterator[WgmmaConfig]:
    """All legal configurations."""
    blocks = product((64, 128, 192, 256), (16, *COLUMNS), (2, 3, 4, 5, 6, 8), (1, 2, 3))
    tf32 = {f.dtype for f in workload.factors} == {DType.F32}
    grids = (*((1, 1, copied, form) for form in ("", "pingpong", "streamed") for copied in (False, True)),
             *((0, split, False, "") for split in (1, 2, 4, 8)))
    for (bm, bn, stages, consumers), vec, (many, split, copied, form), (m, n, k) in product(blocks, (8, 1), grids, CLUSTERS):
        for deep in (1, 2):
            if stages * deep * (bm + bn) * ROW > limits.shared_bytes:
                continue  # most of them
            config = WgmmaConfig(bm, bn, stages, consumers, vec, 8, many * reached(m * n, limits), split, copied, cluster_m=m,
                                 cluster_n=n, pingpong=form == "pingpong", cluster_k=k, tf32=tf32, deep=deep,
                                 streamed=form == "streamed")
            if why_invalid(config, workload, limits) is None:
                yield config


def why_invalid(config: WgmmaConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    if tensor_core_bytes(workload) is None and not config.tf32:
        return "element-type: operands are neither f16, bf16, fp8 nor 8-bit integers, nor f32 read as tf32"
    if limits.arch != "sm_90a":
        return f"architecture: {limits.arch} has no wgmma"
    return why_illegal(config, limits) or _why_not_of(config, workload, limits)


def _why_not_of(config: WgmmaConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule of the workload's operands that the configuration breaks, or None."""
    c = config
    shared = c.shared_bytes() + c.stages * (stage_bytes(c, workload) - c.stage_bytes)
    if shared > limits.shared_bytes:
        return f"shared-budget: {shared} of {limits.shared_bytes} bytes with whole rows of {ROW} bytes"
    given = REGISTERS.get(c.consumers, (0, limits.thread_registers))[1]
    if c.registers(promoted(workload)) > given:
        return f"register-budget: about {c.registers(True)} of {given} registers where sums of 8-bit floats are promoted"
    if c.pingpong and len(workload.inputs) > 2 and c.registers() + _EPILOGUE > given:
        return f"register-budget: about {c.registers() + _EPILOGUE} of {given} registers with what is done to the sums"
    if c.copied and _box_columns(workload) is None:
        return "copied-results: wanted one result of elements of 2 or 4 bytes, a matrix along one axis and the columns"
    return None


def whole_rows(extent: int) -> int:
    """Elements of 2 bytes of a tile along which memory runs: tensor copies bring them in rows of 128 bytes."""
    return -(-extent // (ROW // 2)) * (ROW // 2)


def stage_bytes(config: WgmmaConfig, workload: Workload) -> int:
    """Of a stage, with what copies bring beside a tile whose columns lie along memory and are no whole rows of 128 bytes."""
    return config.stage_bytes + (whole_rows(config.bn) - config.bn) * ROW * config.deep * _columns_along_memory(workload)


@told_once
def _columns_along_memory(workload: Workload) -> bool:
    """Is the factor of a tile's columns contiguous along them?"""
    role = row_and_column_roles(workload)[1]
    factor = workload.factors["mn".index(role)]
    depth = {factor.linear_axis(d) for d, loop in enumerate(workload.loops) if loop.role == "k"}
    return factor.unit_axis not in depth


@told_once
def _box_columns(workload: Workload) -> int | None:
    """Most columns of results that leave by a tensor copy together; None where they cannot."""
    out = workload.outputs[0]
    loops = [d for role in ("m", "n") for d, loop in enumerate(workload.loops) if loop.role == role]
    along = [[a for a, axis in enumerate(out.axes) if axis.loops == (d,) and axis.steps == (1,)] for d in loops]
    units = [d for d, axes in zip(loops, along, strict=True) if axes == [out.unit_axis]]
    whole = len(workload.outputs) == 1 and all(len(axes) == 1 for axes in along) and units == [column_loop(workload)]
    return ROW // out.dtype.bytes if whole and out.dtype.bytes in COPIED_BYTES and len(out.axes) <= COPIED_AXES else None


@told_once
def promoted(workload: Workload) -> bool:
    """Are sums of a step added up in registers of their own? Products of 8-bit floats are summed with few bits of mantissa."""
    return any(f.dtype in BYTE_FLOAT_TYPES for f in workload.factors)


def why_illegal(config: WgmmaConfig, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks for any workload, or None."""
    c = config
    if not 1 <= c.consumers <= 3:
        return f"consumers: {c.consumers} is not from 1 to 3"
    if c.bm % (ROWS * c.readers) or c.bm < 1:
        return f"rows: {c.bm} is no multiple of {ROWS} for each of {c.readers} warpgroups"
    if c.pingpong and (c.consumers != 2 or not c.blocks):
        return f"pingpong: {c.consumers} warpgroups, {c.blocks} blocks; wanted 2 of blocks that take one tile after the other"
    if c.bn % 16 or not 16 <= c.bn <= 256:
        return f"columns: {c.bn} is no multiple of 16 up to 256"
    if max(c.bm, c.bn) > _LONGEST_BOX:
        return f"box: {max(c.bm, c.bn)} is above {_LONGEST_BOX}, the longest box of a copy"
    if c.stages < 2:
        return f"stages: {c.stages}; a step is loaded while another is computed"
    if c.deep not in (1, 2):
        return f"deep: {c.deep} rows of {ROW} bytes along k a step; wanted 1 or 2"
    if c.vec not in (1, 2, 4, 8) or c.slab % c.vec:
        return f"vector-fits: {c.vec} of {c.slab} columns"
    given = min(limits.registers // c.threads // 8 * 8, limits.thread_registers)
    copies, multiplies = REGISTERS.get(c.consumers, (given, given))
    if copies + multiplies * c.consumers > given * (c.consumers + 1):
        return f"setmaxnreg-budget: {copies} + {c.consumers} x {multiplies} of {given * (c.consumers + 1)} registers"
    if c.bn // 2 + _INSTRUCTION > given:
        return f"register-budget: about {c.bn // 2 + _INSTRUCTION} of {given} registers of all threads in one instruction"
    if c.registers() > multiplies:
        return f"register-budget: about {c.registers()} of {multiplies} registers in each thread"
    left = limits.shared_bytes - c.tile_bytes()
    if left < 0:
        return f"shared-budget: {c.shared_bytes()} of {limits.shared_bytes} bytes"
    if c.barriers * BARRIER > left:
        return f"barriers: {c.barriers} of {BARRIER} bytes; {left // BARRIER} fit beside {c.tile_bytes()} bytes of tiles"
    if c.group_m < 1 or c.blocks < 0 or c.split_k < 1 or (c.split_k > 1 and c.blocks):
        return f"grid: group_m {c.group_m}, blocks {c.blocks}, split_k {c.split_k}; a part of k has blocks of its own"
    if not is_power_of_two(c.cluster_m) or not is_power_of_two(c.cluster_n) or c.blocks % c.cluster:
        return f"cluster: {c.cluster_m} x {c.cluster_n}; wanted powers of two, and a multiple of the blocks in the grid"
    if c.bm % (8 * c.cluster_n) or c.bn % (8 * c.cluster_m):
        return f"cluster-parts: tiles of {c.bm} x {c.bn} have no {c.cluster_m} x {c.cluster_n} parts of whole groups of 8 rows"
    if c.cluster_k > 1 and (c.blocks or c.split_k > 1 or c.copied):
        return f"parts-in-cluster: cluster_k {c.cluster_k} beside blocks, split_k or copied; wanted none of them"
    if c.streamed and (not c.blocks or c.pingpong or c.cluster_k > 1):
        return f"streamed: {c.blocks} blocks, pingpong {c.pingpong}, cluster_k {c.cluster_k}; wanted blocks that take one tile " \
               "after the other, together and by themselves"
    if c.copied and (c.split_k > 1 or c.vec == 1):
        return f"copied-results: parts of sums and single elements are stored by threads; split_k {c.split_k}, vec {c.vec}"
    if c.index != 32:
        return f"index-bits: {c.index}; tensor copies take coordinates of 32 bits"
    return why_invalid_cluster(c.cluster * c.cluster_k, limits) or why_invalid_block(c.threads, c.index, limits.threads)
