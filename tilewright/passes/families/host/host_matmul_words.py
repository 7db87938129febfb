"""Factors as words of 32 bits, a few neighbouring values of the last k loop, for instructions that add their products at once.

Two of bf16 (vdpbf16ps of AVX-512 BF16, which takes denormal factors as zero and rounds to nearest); four bytes, of which one
factor's are signed and the other's not (vpdpbusd of AVX-512 VNNI); two bytes widened to 16 bits (vpmaddwd). Sums of bytes are
exact: no product and no sum of two of them leaves 32 bits, and sums wrap around as additions of i32 do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.codegen.emit import all_of, choose, constant, integer_type, intrinsic, lane_mask, lanes_of, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.mlir import arith, ir, vector

_LANES = (4, 8, 16)
_ADD_OF_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def rounded_to_bf16(values: ir.Value) -> ir.Value:
    """A vector of f32 rounded to nearest by AVX-512 BF16, which takes denormals as zero."""
    lanes = lanes_of(values)
    return intrinsic(f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}", vector_type(ir.BF16Type.get(), lanes), [values])


def takes_words(plan: Plan, lanes: int, side: int) -> bool:
    """Are there products of so many values at once of both factors, one of them the same for all columns, and sums in vectors
    that the instruction has?"""
    view = plan.view
    if side < 2 or lanes not in _LANES or not view.k or plan.column in view.loops_of(plan.narrow):
        return False
    signs = view.byte_signs()
    if signs is None:
        return side == 2 and view.multiplies_bf16()
    return side == 2 or signs[0] != signs[1]


@dataclass(frozen=True)
class Words:
    """Reads words of `side` values at points whose last k is the first of a word.

    `left`: how many of the values are there, at least one; the others are 0. None: all are.
    """

    evaluator: Evaluator
    plan: Plan
    lanes: int
    side: int

    @property
    def _bits(self) -> int:
        """Of a value in a word."""
        return 32 // self.side

    def shared(self, loops: Loops, left: Index | None = None) -> ir.Value:
        """A word of the factor that rows differ in, in all lanes."""
        k, which = self.plan.view.k[-1], self.plan.narrow
        if self.plan.runs_along and left is None:
            values = splat_to(self._element(which, _at(loops, k, Index.ramp(_known(loops, k), self.side))), self.side)
            return splat_to(vector.extract(self._words(which, values), [], [0]), self.lanes)
        word = constant(integer_type(32), 0)
        for i in range(self.side):
            value = self._where(left, i, integer_type(32), partial(self._shifted, _at(loops, k, _known(loops, k) + i), i))
            word = word if value is None else arith.ori(word, value)
        return splat_to(word, self.lanes)

    def wide(self, loops: Loops, mask: ir.Value | None, left: Index | None = None) -> ir.Value:
        """Words of the columns that the loops hold as a ramp; those that the mask leaves out hold anything."""
        k, which = self.plan.view.k[-1], self.plan.wide
        read = ir.RankedTensorType(self.plan.view.operand(which).type).element_type
        rows = []
        for i in range(self.side):
            here = _at(loops, k, _known(loops, k) + i)
            row = self._where(left, i, vector_type(read, self.lanes), partial(self._row, here, mask))
            rows.append(constant(read, 0, self.lanes) if row is None else row)
        return self._words(which, _interleaved(rows))

    def along(self, which: int, loops: Loops, start: Index, left: Index | None = None) -> ir.Value:
        """A vector of words from value `start` of the last k on, of which `left` values are there; the others are 0."""
        count = self.side * self.lanes
        mask = None if left is None else lane_mask(left, count, self.evaluator.index_type)
        value = splat_to(self._element(which, _at(loops, self.plan.view.k[-1], Index.ramp(start, count)), mask), count)
        if mask is not None:
            value = arith.select(mask, value, constant(ir.VectorType(value.type).element_type, 0, count))
        return self._words(which, value)

    def packed(self, values: ir.Value) -> ir.Value:
        """Words of the factor of the columns from its values as they lie in memory."""
        return self._words(self.plan.wide, values)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """c + the products of the values of the words of the factor that rows differ in, a, and of that of the columns, b."""
        lanes, signs = lanes_of(c), self.plan.view.byte_signs()
        if signs is None:
            return self._call(f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", c.type, [c, *self._halves(ir.BF16Type.get(), a, b)])
        if self.side == 2:
            pairs = self._halves(integer_type(16), a, b)
            return arith.addi(c, self._call(_ADD_OF_PAIRS[lanes], c.type, pairs))
        bytes_ = self._halves(integer_type(8), *((b, a) if signs[self.plan.narrow] else (a, b)))
        return self._call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", c.type, [c, *bytes_])

    def _row(self, loops: Loops, mask: ir.Value | None) -> ir.Value:
        return splat_to(self._element(self.plan.wide, loops, mask), self.lanes)

    def _halves(self, element: ir.Type, *words: ir.Value) -> list[ir.Value]:
        """Vectors of words as vectors of their values."""
        return [vector.bitcast(vector_type(element, self.side * lanes_of(w)), w) for w in words]

    def _call(self, name: str, type_: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
        return intrinsic(name, type_, operands)

    def _where(self, left: Index | None, i: int, type_: ir.Type, value: Callable[[], ir.Value]) -> ir.Value | None:
        """Value `i` of a word; zero, or None for certain, where it is beyond what is left."""
        if left is not None and left.const is not None:
            return value() if i < left.const else None
        if left is None or i == 0:
            return value()
        zero = constant(type_ if not isinstance(type_, ir.VectorType) else type_.element_type, 0, _lanes(type_))

        def inside() -> ir.Value:
            with self.evaluator.kept():
                return value()

        return choose(all_of([Index(i).lt(left)]), type_, inside, lambda: zero)

    def _shifted(self, loops: Loops, i: int) -> ir.Value:
        """One value of the factor that rows differ in, at its place in a word."""
        which, word = self.plan.narrow, integer_type(32)
        value = self._widened(which, self._element(which, loops))
        bits = value if isinstance(value.type, ir.IntegerType) else arith.bitcast(integer_type(self._bits), value)
        bits = arith.extui(word, bits)
        return arith.shli(bits, constant(word, i * self._bits)) if i else bits

    def _words(self, which: int, values: ir.Value) -> ir.Value:
        words = ir.VectorType.get([lanes_of(values) // self.side], integer_type(32))
        return vector.bitcast(words, self._widened(which, values))

    def _widened(self, which: int, values: ir.Value) -> ir.Value:
        """Values as wide as a word has them."""
        element = values.type.element_type if isinstance(values.type, ir.VectorType) else values.type
        if element.width == self._bits:
            return values
        signs = self.plan.view.byte_signs()
        assert signs is not None
        wide = vector_type(integer_type(self._bits), lanes_of(values))
        return arith.extsi(wide, values) if signs[which] else arith.extui(wide, values)

    def _element(self, which: int, loops: Loops, mask: ir.Value | None = None) -> ir.Value:
        view = self.plan.view
        return self.evaluator.element(view.operand(which), coords_of(view, which, loops), mask)


def _interleaved(rows: Sequence[ir.Value]) -> ir.Value:
    """The first values of all rows, the second, and so on; the rows are a power of two."""
    if len(rows) == 1:
        return rows[0]
    even, odd = _interleaved(rows[::2]), _interleaved(rows[1::2])
    lanes = lanes_of(even)
    return vector.shuffle(even, odd, [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)])


def _lanes(type_: ir.Type) -> int:
    return int(ir.VectorType(type_).shape[0]) if isinstance(type_, ir.VectorType) else 1


def _at(loops: Loops, d: int, index: Index) -> Loops:
    return [index if i == d else x for i, x in enumerate(loops)]


def _known(loops: Loops, d: int) -> Index:
    found = loops[d]
    assert found is not None
    return found
