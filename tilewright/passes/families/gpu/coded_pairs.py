"""CodedPairs: codes as pairs of f16 or bf16, without a way over f32.

A mask and an or, one instruction, put two codes that lie half a word apart into the mantissas of two narrow floats; a subtraction
takes away what is not the code, and a multiplication brings in the scale. Where scales are of that type and zero points are whole
numbers, all but the last step are exact, so values are those that f32 arithmetic gives and rounds. Pairs have another order of k
than memory has; rows are put into the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.codegen.emit import constant, integer_type, intrinsic, lanes_of, vector_type
from tilewright.passes.families.gpu.coded_columns import CodedColumns, and_or
from tilewright.passes.families.gpu.gemv_product import registers
from tilewright.passes.mlir import arith, ir, llvm, vector
from tilewright.passes.spaces.gpu.gpu_codes import STEP

_WORD, _HALF = 32, 16
_MANTISSA = {"f16": 10, "bf16": 7}
_BIAS = {"f16": 15, "bf16": 127}
_BOTH = 0x10001  # a half word in both halves


@dataclass(frozen=True)
class CodedPairs:
    """columns: whose codes they are; element: of the rows."""

    columns: CodedColumns
    element: ir.Type

    @staticmethod
    def of(columns: CodedColumns, element: ir.Type) -> CodedPairs | None:
        """None where values would not be those of f32 arithmetic, rounded, or a scale is of part of a word."""
        codes, made = columns.codes, CodedPairs(columns, element)
        types = [None if o is None else ir.RankedTensorType(codes.op.operands[o].type).element_type
                 for o in (codes.scale, codes.zero)]
        if types[0] not in (None, element) or not (types[1] is None or isinstance(types[1], ir.IntegerType)):
            return None
        largest = 1 << (made._mantissa + 1)  # whole numbers up to it are exact
        point, most = made._point, (1 << codes.bits) - 1
        exact = point == int(point) and max(abs(point), abs(most - point), largest // 2 + abs(point)) <= largest
        fits = codes.bits <= made._mantissa and columns.run_length % made.step == 0
        return made if exact and fits else None

    @property
    def step(self) -> int:
        """Values of k that are decoded at once: whole words."""
        return max(STEP, self._each)

    @property
    def _each(self) -> int:
        return _WORD // self.columns.codes.bits

    @property
    def _mantissa(self) -> int:
        return _MANTISSA[str(self.element)]

    @property
    def _point(self) -> float:
        """What is subtracted from every code."""
        codes = self.columns.codes
        return (0.0 if codes.zero is not None else codes.point) + (128.0 if codes.signed else 0.0)

    def rows(self, row: ir.Value) -> list[ir.Value]:
        """A row's step of values as words, in the order of `values`."""
        half = self._each // 2
        order = [first + j + high for first in range(0, lanes_of(row), self._each) for j in range(half) for high in (0, half)]
        return registers(vector.shuffle(row, row, order))

    def values(self, column: Sequence[ir.Value], first: int) -> list[ir.Value]:
        """Those of a step, with their scale, two in a word."""
        bits, integer = self.columns.codes.bits, integer_type(_WORD)
        found = list[ir.Value]()
        for at in range(first * bits // _WORD, (first + self.step) * bits // _WORD):
            whole = word = self.columns.word(column[0], at)
            start = 0
            for low in range(0, _HALF, bits):
                if low - start + bits > self._mantissa:
                    start, word = low, arith.shrui(whole, constant(integer, low))
                value = self._scaled(self._code(word, low - start), column, first)
                found.append(llvm.BitcastOp(integer, value).result)
        return found

    def _code(self, word: ir.Value, low: int) -> ir.Value:
        """The codes at bit `low` of both halves, less what is one number for all."""
        bits, mantissa = self.columns.codes.bits, self._mantissa
        mask, ones = ((1 << bits) - 1 << low) * _BOTH, (_BIAS[str(self.element)] + mantissa << mantissa) * _BOTH
        value = llvm.BitcastOp(vector_type(self.element, 2), and_or(word, mask, ones)).result
        base = (1 << mantissa) / (1 << low) + self._point
        if low == 0:
            return arith.subf(value, self._both(base))
        return intrinsic(f"llvm.fma.v2{self.element}", value.type, [value, self._both(1 / (1 << low)), self._both(-base)])

    def _scaled(self, value: ir.Value, column: Sequence[ir.Value], first: int) -> ir.Value:
        columns = self.columns
        if columns.codes.zero is not None:
            value = arith.subf(value, self._narrow(columns.zero(column, first)))
        return arith.mulf(value, self._narrow(columns.scale(column, first))) if columns.scaled else value

    def _narrow(self, factor: ir.Value) -> ir.Value:
        """A factor of the type, which was widened as it was loaded, for both of a pair."""
        one = arith.truncf(self.element, factor)
        return vector.from_elements(vector_type(self.element, 2), [one, one])

    def _both(self, number: float) -> ir.Value:
        return constant(self.element, number, 2)
