"""Tiles of `mma` in shared memory, and the fragments that mma.sync takes of them.

A row of a tile is cut in chunks of 16 bytes, which are permuted by the number of the row, so that neither copies nor ldmatrix
meet a bank twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import byte_width, gep, integer_type, vector_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index
from tilewright.passes.families.gpu.gpu_tile import Side, Stages, TileLoader
from tilewright.passes.mlir import arith, ir, llvm, nvvm, vector

_CHUNK = 16  # bytes
_MATRIX = 8  # rows of what ldmatrix loads
_PHASES = 8  # chunks of 16 bytes in all banks


@dataclass(frozen=True)
class SwizzledTile(GpuMemory):
    """[stage][row][column]; a vector lies within one chunk of a row."""

    def offset(self, coords: Sequence[Index]) -> Index:
        stage, row, column = coords
        return super().offset([stage, row, self.swizzled(row, column)])

    def swizzled(self, row: Index, column: Index) -> Index:
        """Where a column of a row is."""
        chunk = _CHUNK // byte_width(self.element)
        width = self.sizes[2].const
        assert width is not None
        if width <= chunk:
            return column
        chunks = width // chunk
        first = column.base
        phase = row % _PHASES if chunks >= _PHASES else row // (_PHASES // chunks) % chunks
        moved = (_xor(first // chunk, phase, self.index) * chunk + first % chunk).known_multiple(_part(first, chunk))
        return Index.ramp(moved, column.lanes) if column.is_vector else moved


def _part(first: Index, chunk: int) -> int:
    """A number that divides the place of an element within its chunk."""
    part = chunk
    while first.multiple % part:
        part //= 2
    return part


def _xor(a: Index, b: Index, index: ir.Type) -> Index:
    if a.const is not None and b.const is not None:
        return Index(a.const ^ b.const)
    if a.const == 0:
        return b
    if b.const == 0:
        return a
    return Index(arith.xori(a.value(index), b.value(index)))


class MmaLoader(TileLoader):
    """A TileLoader of swizzled tiles, that fragments are read from."""

    def __init__(self, kernel: GpuKernel, side: Side, stages: Stages) -> None:
        before = kernel.shared_bytes
        super().__init__(kernel, side, stages)
        kernel.shared_bytes = before
        plain = kernel.shared(self.element, [stages.count, self.rows, self.columns])
        self.tile: SwizzledTile = SwizzledTile(plain.pointer, plain.element, plain.sizes, plain.strides, plain.index)
        self.per = 4 // byte_width(self.element)

    def fragment(self, stage: Index, outer: Index, at: int, k: int, lane: Index, rows_first: bool,
                 paired: bool = False) -> list[ir.Value]:
        """Four registers of 16 positions along the outer axis by 32 bytes along k, for the lanes of a warp.

        The positions begin at `outer`, which is a multiple of a power of two above `at`, plus `at`. rows_first: the order of A,
        (outer, k) halves (0,0) (1,0) (0,1) (1,1); else that of B for two neighbouring results, (0,0) (0,1) (1,0) (1,1).
        paired: of 32-bit elements, the two of a lane are neighbours along k.
        """
        if paired or (not self.deep and byte_width(self.element) != 2):
            return [self._gathered(stage, outer + at, k, lane, q, rows_first, paired) for q in range(4)]
        origin = self._origin(stage, outer, lane, rows_first)
        within, rows = (k, at) if self.deep else (at, k)
        moved = _xor(origin, Index(within), self.tile.index)
        address = gep(self.tile.pointer, moved.value(self.tile.index), self.tile.stored)
        address = gep(address, (self.tile.strides[1] * rows).value(self.tile.index), self.tile.stored)
        return self._loaded(address)

    def narrow_fragment(self, stage: Index, outer: Index, k: int, lane: Index) -> list[ir.Value]:
        """Four registers of 8 positions from `outer` on by 64 bytes along k: the right operands of two instructions."""
        half = _CHUNK // byte_width(self.element)
        if not self.deep and byte_width(self.element) != 2:
            return [self._gathered(stage, outer, k + q // 2 * 2 * half, lane, q % 2, False, False) for q in range(4)]
        low, high = lane % _MATRIX, lane // _MATRIX
        row, column = (low, high * half) if self.deep else (high * half + low, outer.known_multiple(_MATRIX))
        strides = self.tile.strides
        origin = stage * strides[0] + row * strides[1] + self.tile.swizzled(low, column)
        moved = _xor(origin + outer * strides[1], Index(k), self.tile.index) if self.deep else origin + strides[1] * k
        address = gep(self.tile.pointer, moved.value(self.tile.index), self.tile.stored)
        return self._loaded(address)

    def _loaded(self, address: ir.Value) -> list[ir.Value]:
        """What ldmatrix finds at the rows that the lanes point to."""
        loaded = nvvm.ldmatrix(address, 4, _attribute(f"mma_layout<{'row' if self.deep else 'col'}>"),
                               _attribute("ld_st_matrix_shape<m = 8, n = 8>"), _attribute("ld_st_matrix_elt_type<b16>"),
                               results=[ir.Type.parse("!llvm.struct<(i32, i32, i32, i32)>")])
        return [self._factor(extract(loaded, q)) for q in range(4)]

    def _origin(self, stage: Index, outer: Index, lane: Index, rows_first: bool) -> Index:
        """Where a lane finds its row of a fragment at (outer, 0); rows and whole chunks further are constants away, since what
        permutes the chunks repeats every 8 rows and rows begin at multiples of their length."""
        low, high = lane % _MATRIX, lane // _MATRIX
        down, along = (high % 2, high // 2) if rows_first else (high // 2, high % 2)
        half = _CHUNK // byte_width(self.element)
        if self.deep:
            row, column = outer + (down * _MATRIX + low), along * half
        else:
            row, column = along * half + low, (outer + down * _MATRIX).known_multiple(_MATRIX)
        strides = self.tile.strides
        return stage * strides[0] + row * strides[1] + self.tile.swizzled(low, column)

    def _factor(self, register: ir.Value) -> ir.Value:
        """f32 rounded to tf32; the instruction would cut it off."""
        if byte_width(self.element) != 4:
            return register
        value = arith.bitcast(ir.F32Type.get(), register)
        return nvvm.convert_float_to_tf32(value, rnd=_attribute("fp_rnd_mode<rna>"), results=[integer_type(32)])

    def _gathered(self, stage: Index, outer: Index, k: int, lane: Index, register: int, rows_first: bool,
                  paired: bool) -> ir.Value:
        """One register, element by element, of a tile whose elements ldmatrix cannot turn or pair."""
        down, along = (register % 2, register // 2) if rows_first else (register // 2, register % 2)
        half = _CHUNK // byte_width(self.element)
        column = outer + lane // 4 + down * _MATRIX
        rows = [lane % 4 * 2 + (along + k)] if paired else [lane % 4 * self.per + (along * half + k + i) for i in range(self.per)]
        elements = [self.tile.load([stage, column, row] if self.deep else [stage, row, column]) for row in rows]
        if self.per == 1:
            return self._factor(arith.bitcast(integer_type(32), elements[0]))
        if byte_width(self.element) == 1:
            elements = [arith.bitcast(integer_type(8), e) for e in elements]  # LLVM has no 8-bit floats
        packed = vector.from_elements(vector_type(elements[0].type, self.per), elements)
        return llvm.BitcastOp(integer_type(32), packed).result


def extract(struct: ir.Value, number: int) -> ir.Value:
    """A member of a struct of equal members."""
    member = str(struct.type).split("(")[1].split(",")[0].rstrip(")>").strip()
    return llvm.ExtractValueOp(ir.Type.parse(member), struct, ir.DenseI64ArrayAttr.get([number])).result


def added(a: ir.Value, b: ir.Value) -> ir.Value:
    """A struct of the sums of the members of two structs of equal floats."""
    for number in range(str(a.type).count(",") + 1):
        total = arith.addf(extract(a, number), extract(b, number))
        a = llvm.InsertValueOp(a, total, ir.DenseI64ArrayAttr.get([number])).result
    return a


def _attribute(text: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#nvvm.{text}")
