"""Columns of weights in few bits, or out of pools, as threads of `gpu_codes` read and decode them.

A code is put into the mantissa of a float whose last bits count ones, by a mask and an or; that float less such a float without a
code is the code, exactly. So no conversion of integers is needed, of which a multiprocessor makes a quarter as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Protocol

import numpy as np

from tilewright.passes.analysis.codes import Codes
from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import constant, integer_type, loop, resized, vector_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_memory import GpuMemory
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.mlir import arith, ir, llvm, maps_of, position, vector
from tilewright.passes.spaces.gpu.gpu_codes import STEP

_MANTISSA, _BIAS, _WORD = 23, 127, 32
_HALF = 16  # bits of a word that codes are taken from without a shift
_AND_OR = 0xEA  # the table of lop3 for (a & b) | c


class Decoding(Protocol):
    """positions: values of k of a piece. step: of those that are decoded at once; run_length: of those that share a scale.
    scaled: is there one? each: values that `load` gives of a column."""

    @property
    def run(self) -> int: ...

    @property
    def positions(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def run_length(self) -> int: ...

    @property
    def scaled(self) -> bool: ...

    @property
    def each(self) -> int: ...

    def begin(self) -> None: ...

    def load(self, first: Sequence[Index], k: Index, end: Index | None) -> list[ir.Value]: ...

    def scale(self, column: Sequence[ir.Value], position: int) -> ir.Value: ...

    def values(self, column: Sequence[ir.Value], first: int, scaled: bool) -> list[ir.Value]: ...


class _Columns:
    """What both forms share: where operands of the decoding lie. n, k: loops of the decoding."""

    run = 1

    def __init__(self, kernel: GpuKernel, op: ir.Operation, n: int, k: int, columns: Index, read: int) -> None:
        self.kernel, self.op, self.n, self.k, self.columns, self.bytes = kernel, op, n, k, columns, read

    def coords(self, operand: int, column: Index, k: Index) -> list[Index]:
        """Of an operand of the decoding."""
        loops: list[Index | None] = [Index(0)] * maps_of(self.op)[-1].n_dims
        loops[self.n], loops[self.k] = column, k
        return [evaluate(e, loops) for e in maps_of(self.op)[operand].results]

    def words(self, operand: int, column: Index, k: Index) -> ir.Value:
        """The bytes of a piece, as words of 32 bits, or as one of them where they are fewer."""
        at = self.coords(operand, column, k)
        along = next(a for a, e in enumerate(maps_of(self.op)[operand].results) if position(e) != self.n)
        at[along] = Index.ramp(at[along].known_multiple(self.bytes), self.bytes)
        found = self.kernel.evaluator.element(self.op.operands[operand], at)
        word = integer_type(_WORD)
        if self.bytes == 1:
            return resized(found, word)
        words = llvm.BitcastOp(vector_type(integer_type(8 * min(self.bytes, 4)), -(-self.bytes // 4)), found).result
        return words if self.bytes > 4 else resized(words, word)

    def factor(self, operand: int, column: Index, k: Index, inside: ir.Value | bool) -> ir.Value:
        """An element of a scale or a zero point, as f32; zero outside."""
        found = self.kernel.evaluator.element(self.op.operands[operand], self.coords(operand, column, k))
        f32 = ir.F32Type.get()
        if isinstance(found.type, ir.IntegerType):
            found = arith.uitofp(f32, found)
        elif found.type != f32:
            found = arith.extf(f32, found)
        return found if isinstance(inside, bool) else arith.select(inside, found, constant(f32, 0))

    def places(self, first: Sequence[Index], k: Index, end: Index | None) -> tuple[list[Index], Index, ir.Value | bool]:
        """Columns that there are, a place along k that there is, and whether it is the one that was asked for."""
        inside: ir.Value | bool = True if end is None else k.lt(end)
        starts = [at.min(self.columns - 1) for at in first]
        return starts, select(inside, k, Index(0), type_=self.kernel.index), inside


class CodedColumns(_Columns):
    """Codes of 1, 2, 4 or 8 bits with scales and zero points."""

    def __init__(self, kernel: GpuKernel, view: Contraction, side: int, read: int, codes: Codes) -> None:
        extent = kernel.evaluator.emit(view.extents[_loop(view, side, codes.op, codes.n)])
        super().__init__(kernel, codes.op, codes.n, codes.k, extent, read)
        self.codes = codes
        self.positions = read * codes.each
        depth = view.extents[view.k[0]].constant or 0
        self.run_length = gcd(codes.group, self.positions) if 0 < codes.group < depth else self.positions
        self.step = gcd(STEP, self.run_length)
        self.scaled = codes.scale is not None

    def begin(self) -> None:
        """Nothing needs to be ready."""

    @property
    def _runs(self) -> int:
        return self.positions // self.run_length

    @property
    def each(self) -> int:
        return 1 + self._runs * ((self.codes.scale is not None) + (self.codes.zero is not None))

    def load(self, first: Sequence[Index], k: Index, end: Index | None) -> list[ir.Value]:
        """Of each column its words, the scales of their groups, then the zero points."""
        starts, k, inside = self.places(first, k, end)
        k = k.known_multiple(self.positions)
        found = list[ir.Value]()
        for column in starts:
            found.append(self.words(self.codes.codes, column, k))
            for operand in (self.codes.scale, self.codes.zero):
                if operand is not None:
                    found += [self.factor(operand, column, self._within(k, i * self.run_length), inside)
                              for i in range(self._runs)]
        return found

    def _within(self, k: Index, more: int) -> Index:
        """A position of the piece, or the last one of k: a piece may end behind it."""
        return k + more if more == 0 else (k + more).min(self._last)

    @property
    def _last(self) -> Index:
        shape = ir.RankedTensorType(self.op.results[0].type).shape
        axis = [position(e) for e in maps_of(self.op)[-1].results].index(self.k)
        return Index(shape[axis] - 1)

    def scale(self, column: Sequence[ir.Value], at: int) -> ir.Value:
        return column[1 + at // self.run_length]

    def zero(self, column: Sequence[ir.Value], at: int) -> ir.Value:
        return column[1 + self._runs * (self.codes.scale is not None) + at // self.run_length]

    def values(self, column: Sequence[ir.Value], first: int, scaled: bool) -> list[ir.Value]:
        """Those of a step, as f32, with their scale or without."""
        codes = self.codes
        zero = None if codes.zero is None else self.zero(column, first)
        words = dict[int, ir.Value]()
        found = list[ir.Value]()
        for p in range(first, first + self.step):
            at, low = divmod(p * codes.bits, _WORD)
            if at not in words:
                words[at] = self.word(column[0], at)
            word = words[at]
            if low >= _HALF:
                word, low = arith.shrui(word, _bits(_HALF)), low - _HALF
            value = self._code(word, low)
            value = value if zero is None else arith.subf(value, zero)
            found.append(arith.mulf(value, self.scale(column, first)) if scaled and self.scaled else value)
        return found

    def word(self, words: ir.Value, number: int) -> ir.Value:
        found = vector.extract(words, [], [number]) if _is_vector(words) else words
        return arith.xori(found, _bits(0x80808080)) if self.codes.signed else found

    def _code(self, word: ir.Value, low: int) -> ir.Value:
        """The code at bit `low` of a word, below 16, less what is one number for all, as f32."""
        codes, f32 = self.codes, ir.F32Type.get()
        ones = float(1 << (_MANTISSA - low))
        found = llvm.BitcastOp(f32, and_or(word, ((1 << codes.bits) - 1) << low, (_BIAS + _MANTISSA - low) << _MANTISSA)).result
        point = (0.0 if codes.zero is not None else codes.point) + (128.0 if codes.signed else 0.0)
        both = ones + point
        if float(np.float32(both)) == both and float(np.float32(point)) == point and point == int(point):
            return arith.subf(found, constant(f32, both))
        return arith.subf(arith.subf(found, constant(f32, ones)), constant(f32, point))


class PooledColumns(_Columns):
    """Vectors of pools, which lie in shared memory."""

    step = STEP

    def __init__(self, kernel: GpuKernel, pools: Pools, n: int, columns: Index, read: int) -> None:
        super().__init__(kernel, pools.op, n, pools.channel, columns, read)
        self.pools = pools
        self.positions = self.run_length = read * pools.vector
        self.scaled = pools.scale is not None or pools.factor != 1.0
        self._shared: GpuMemory | None = None

    @staticmethod
    def of(kernel: GpuKernel, view: Contraction, side: int, read: int, pools: Pools | None) -> PooledColumns:
        """ValueError where the columns are no loop of the decoding beside k."""
        out = [] if pools is None else [position(e) for e in maps_of(pools.op)[-1].results]
        if pools is None or len(out) != 2 or pools.vector != STEP or pools.tile:
            raise ValueError(f"{view.op.name} at {view.op.location}: wanted columns out of pools of vectors of {STEP}")
        n = next(d for d in (0, 1) if d != pools.channel)
        return PooledColumns(kernel, pools, n, kernel.evaluator.emit(view.extents[_loop(view, side, pools.op, n)]), read)

    @property
    def each(self) -> int:
        return len(self.pools.books) + (self.pools.scale is not None)

    def begin(self) -> None:
        """Copies the pools, all threads together."""
        kernel, f32, count = self.kernel, ir.F32Type.get(), len(self.pools.books)
        self._shared = kernel.shared(f32, [count, self.pools.entries, STEP])
        for number, book in enumerate(self.pools.books):
            def copied(at: Index, number: int = number, pool: ir.Value = book.pool) -> None:
                value = kernel.evaluator.element(pool, [at // STEP, at % STEP])
                if isinstance(value.type, ir.IntegerType):
                    value = arith.sitofp(f32, value)
                elif value.type != f32:
                    value = arith.extf(f32, value)
                assert self._shared is not None
                self._shared.store(value, [Index(number), at // STEP, at % STEP])

            loop(kernel.thread(), self.pools.entries * STEP, kernel.threads, copied, index=kernel.index)
        kernel.barrier()

    def load(self, first: Sequence[Index], k: Index, end: Index | None) -> list[ir.Value]:
        """Of each column the indices of every book, then its scale."""
        starts, k, inside = self.places(first, k, end)
        k = k.known_multiple(self.positions)
        found = list[ir.Value]()
        for column in starts:
            found += [self.words(book.index, column, k) for book in self.pools.books]
            if self.pools.scale is not None:
                found.append(self.factor(self.pools.scale, column, k, inside))
        return found

    def scale(self, column: Sequence[ir.Value], at: int) -> ir.Value:
        return column[-1] if self.pools.scale is not None else constant(ir.F32Type.get(), self.pools.factor)

    def values(self, column: Sequence[ir.Value], first: int, scaled: bool) -> list[ir.Value]:
        """The vector of a place: those of all books added, as f32, with their scale or without."""
        assert self._shared is not None
        number, found = first // STEP, list[ir.Value]()
        for book in range(len(self.pools.books)):
            words = column[book]
            word = vector.extract(words, [], [number // 4]) if _is_vector(words) else words
            low = number % 4 * 8
            byte = arith.andi(arith.shrui(word, _bits(low)) if low else word, _bits(0xFF))
            entry = Index(resized(arith.minui(byte, _bits(self.pools.entries - 1)), self.kernel.index))
            halves = [self._shared.load([Index(book), entry, Index.ramp(i, 4)]) for i in (0, 4)]
            values = [vector.extract(half, [], [i]) for half in halves for i in range(4)]
            found = values if not found else [arith.addf(a, b) for a, b in zip(found, values, strict=True)]
        return [arith.mulf(v, self.scale(column, first)) for v in found] if scaled and self.scaled else found


def _loop(view: Contraction, side: int, op: ir.Operation, d: int) -> int:
    """The loop of the contraction that loop `d` of the decoding runs along. ValueError where it is none of columns."""
    out = [position(e) for e in maps_of(op)[-1].results]
    found = position(view.maps[side].results[out.index(d)])
    if found is None or found in view.k:
        raise ValueError(f"{view.op.name} at {view.op.location}: wanted columns that are decoded along their own loop")
    return found


def and_or(word: ir.Value, mask: int, ones: int) -> ir.Value:
    """(word & mask) | ones, which ptxas makes two instructions of where it is two in PTX."""
    text = f"lop3.b32 $0, $1, {mask:#x}, {ones:#x}, {_AND_OR:#x};"
    return llvm.InlineAsmOp(integer_type(_WORD), [word], text, "=r,r").results[0]


def _bits(number: int) -> ir.Value:
    """A word."""
    return constant(integer_type(_WORD), number - (1 << _WORD) if number >> (_WORD - 1) else number)


def _is_vector(value: ir.Value) -> bool:
    return isinstance(value.type, ir.VectorType)
