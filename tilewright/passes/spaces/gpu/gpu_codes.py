"""Choices of `gpu_codes`: products of few rows by weights in few bits or out of pools, decoded in registers. MLIR-free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import Gemm, row_and_column_extents
from tilewright.passes.spaces.gpu.gemv import ALONG_K, ROWS, WIDEST, GemvConfig, why_no_block, why_no_room
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Kind, Operand, Workload, told_once
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.tensor import DType

STEP = 8  # values of a column that are decoded at once, at most; of a pool a vector
SCALED_SUMS = 2  # rows up to which sums of a group are multiplied by its scale, and not values before
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_CODES = re.compile(r"(?P<sign>[us])(?P<bits>[1248])(?:g(?P<group>\d+))?(?P<zero>[zp]?)(?:r(?P<rounded>b?f16))?")
_POOL = re.compile(r"p(?P<entries>\d+)x(?P<vector>\d+)(?:b(?P<books>\d+))?(?P<element>[a-z]+\d+)")
_MATRIX_STEP = 4  # values of k of a lane that mma.sync takes
_MOST_POOL = 32 << 10  # bytes of pools in the shared memory of a block


@dataclass(frozen=True)
class GpuCodesConfig(GemvConfig):
    """As of `gemv`, but for what a thread reads of a column at once: bytes of codes, or of indices, which decide how many values
    of k a piece has. vec: elements of rows of one load. tensor: values are rounded to the type of the rows, and mma.sync
    multiplies. ahead: codes of a step are loaded while the one before multiplies."""

    family: ClassVar[str] = "gpu_codes"
    bytes: int = WIDEST

    def positions(self, form: GpuFormat) -> int:
        """Values of k that a thread has of a column in a piece."""
        return self.bytes * 8 // form.bits if form.entries == 0 else self.bytes * form.vector

    def deep(self, form: GpuFormat) -> int:
        """Values of k that the warps of a block take next to each other."""
        return self.warps * ALONG_K * self.positions(form)

    def registers_with(self, form: GpuFormat) -> int:
        """About what a thread needs: sums, codes and scales on their way, a step of values and of rows, addresses."""
        words = -(-self.bytes // 4) * form.books + 2 * self.runs(form)
        loaded = self.columns * words * self.unroll * (2 if self.ahead else 1)
        rows = STEP * (max(1, self.rows // 8) if self.tensor else self.rows_each)
        sums = self.columns * (4 if self.tensor else self.rows_each * (2 if self.rows_each <= SCALED_SUMS else 1))
        return loaded + rows + sums + 2 * STEP + 28 * self.index // 32

    def runs(self, form: GpuFormat) -> int:
        """Scales of a column in a piece."""
        positions = self.positions(form)
        return positions // form.run(positions)


@dataclass(frozen=True)
class GpuFormat:
    """Of the weights: `bits` of a code, `group` values of k of a scale, 0 for all; or pools of `entries` vectors of `vector`
    values, `books` of them. axis: of k in the tensor of codes; depth: K; row_bytes: of codes of a column; rounded: the type that
    values are rounded to, empty where they are of f32."""

    bits: int
    group: int
    entries: int
    vector: int
    books: int
    depth: int
    row_bytes: int
    rounded: str = ""

    @staticmethod
    @told_once
    def of(workload: Workload) -> GpuFormat | None:
        """Of the columns, where they are decoded from codes that lie along k; else None."""
        gemm = Gemm.of(workload)
        depth = workload.size("k").constant
        if gemm is None or gemm.b.source is not None or not depth or sum(loop.role == "k" for loop in workload.loops) != 1:
            return None
        for operand in workload.inputs:
            made = _format(operand.codes, depth, operand)
            if made is not None and operand.constant and _along_k(operand, gemm):
                return made
        return None

    @property
    def pool_bytes(self) -> int:
        """Of f32, in shared memory."""
        return self.entries * self.vector * self.books * 4

    def run(self, positions: int) -> int:
        """Values of a piece that share a scale."""
        return gcd(self.group, positions) if self.group and self.group < self.depth else positions


def _format(text: str, depth: int, operand: Operand) -> GpuFormat | None:
    codes, pool = _CODES.fullmatch(text), _POOL.fullmatch(text)
    unit = operand.unit_axis
    row_bytes = None if unit is None else operand.dims[unit].constant
    if row_bytes is None or operand.panel or len(operand.dims) != 2:
        return None
    if codes is not None:
        return GpuFormat(int(codes["bits"]), int(codes["group"] or 0), 0, 1, 1, depth, row_bytes, codes["rounded"] or "")
    if pool is not None:
        return GpuFormat(8, 0, int(pool["entries"]), int(pool["vector"]), int(pool["books"] or 1), depth, row_bytes)
    return None


def _along_k(operand: Operand, gemm: Gemm) -> bool:
    """Does memory run along k in the tensor of codes, and do columns move its other axis?"""
    unit = operand.unit_axis
    if unit is None or len(operand.axes) != 2 or operand.axes[unit].loops != (gemm.last,):
        return False
    return operand.axes[1 - unit].loops == (gemm.column,) and operand.axes[1 - unit].steps == (1,)


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    return _untaken(workload)


def _untaken(workload: Workload) -> str | None:
    form, gemm = GpuFormat.of(workload), Gemm.of(workload)
    if form is None or gemm is None:
        return "codes: the columns are not decoded from constant codes that lie along k"
    if form.entries and (form.vector != STEP or form.pool_bytes > _MOST_POOL):
        return f"pools: {form.books} of {form.entries} vectors of {form.vector}; wanted vectors of {STEP}, in {_MOST_POOL} bytes"
    if gemm.a.dtype not in _FLOATS or workload.accumulator not in (DType.F32, None) or workload.size("b").constant != 1:
        return "rows: are no floats, sums are not of f32, or products are batched"
    rows, _ = row_and_column_extents(workload)
    if rows.constant is not None and rows.constant > ROWS:
        return f"few-rows: {rows.constant} rows; wanted at most {ROWS}"
    return None


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuCodesConfig]:
    """All legal configurations."""
    form = GpuFormat.of(workload)
    matrix = (False, True) if form is not None and on_matrix_units(workload) else (False,)
    blocks = product((1, 2, 4, 8, ROWS), (32, 64), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8), (1, 4))
    for rows, bn, warps, unroll, vec, parts, split in blocks:
        block = GpuCodesConfig(rows, bn, warps, unroll, vec, parts, split)
        for tensor, per_sm, ahead, read in product(matrix, (1, 2, 4, 5), (False, True), (1, 2, 4, 8, WIDEST)):
            config = replace(block, tensor=tensor, min_blocks_per_sm=per_sm, ahead=ahead, bytes=read)
            if why_invalid(config, workload, limits) is None:
                yield config


def on_matrix_units(workload: Workload) -> bool:
    """Are rows of the type of two bytes that values are rounded to?"""
    form, gemm = GpuFormat.of(workload), Gemm.of(workload)
    return form is not None and gemm is not None and bool(form.rounded) and gemm.a.dtype.value == form.rounded


def why_invalid(config: GpuCodesConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    form, gemm = GpuFormat.of(workload), Gemm.of(workload)
    if (reason := _untaken(workload)) is not None or form is None or gemm is None:
        return reason
    if c.bytes not in (1, 2, 4, 8, WIDEST) or form.row_bytes % c.bytes:
        return f"whole-reads: {c.bytes} bytes at once of columns of {form.row_bytes}"
    step = gcd(STEP, form.run(c.positions(form)))
    if c.vec * gemm.a.dtype.bytes > WIDEST or step % c.vec or form.depth % c.vec:
        return f"vector-fits: {c.vec} elements of rows, of {gemm.a.dtype.bytes} bytes, at once, of {step} that share a scale"
    if c.tensor and not on_matrix_units(workload):
        return "element-type: rows are not of the narrow type that values are rounded to"
    if c.tensor and step % _MATRIX_STEP:
        return f"whole-steps: {step} values share a scale; mma.sync takes {_MATRIX_STEP}"
    return why_no_block(c, limits) or why_no_room(c, c.shared_bytes() + form.pool_bytes, c.registers_with(form), limits)
