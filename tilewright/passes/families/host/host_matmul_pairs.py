"""Factors of bf16 as words of 32 bits, each two neighbouring values of the last k loop, for vdpbf16ps of AVX-512 BF16.

The instruction adds both products of a word to a sum of f32. It takes denormal factors as zero and rounds to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.analysis.contraction import PAIR
from tilewright.passes.codegen.emit import constant, integer_type, lane_mask, lanes_of, vector_type
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index, splat_to
from tilewright.passes.codegen.product_code import coords_of
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.mlir import arith, ir, vector

_LANES = (4, 8, 16)


def takes_pairs(plan: Plan, lanes: int) -> bool:
    """Are both factors bf16, one of them the same for all columns, and their sums in vectors that the instruction has?"""
    view = plan.view
    return lanes in _LANES and bool(view.k) and plan.column not in view.loops_of(plan.narrow) and view.multiplies_bf16()


def multiply_add(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """c + the products of the halves of the words of a and b."""
    lanes = lanes_of(c)
    halves = vector_type(ir.BF16Type.get(), PAIR * lanes)
    return ir.Operation.create("llvm.call_intrinsic", [c.type], [c, *(vector.bitcast(halves, x) for x in (a, b))], {
        "intrin": ir.StringAttr.get(f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([3, 0]),
    }).results[0]


@dataclass(frozen=True)
class Words:
    """Reads words at points whose last k is the first of a pair; `alone`: the second is beyond the extent, and is 0."""

    evaluator: Evaluator
    plan: Plan
    lanes: int

    def shared(self, loops: Loops, alone: bool = False) -> ir.Value:
        """A word of the factor that rows differ in, in all lanes."""
        k = self.plan.view.k[-1]
        if self.plan.runs_along and not alone:
            pair = self._element(self.plan.narrow, _at(loops, k, Index.ramp(_known(loops, k), PAIR)))
            word = vector.extract(vector.bitcast(ir.VectorType.get([1], integer_type(32)), splat_to(pair, PAIR)), [], [0])
            return splat_to(word, self.lanes)
        word = self._half(loops)
        if not alone:
            high = self._half(_at(loops, k, _known(loops, k) + 1))
            word = arith.ori(word, arith.shli(high, constant(integer_type(32), 16)))
        return splat_to(word, self.lanes)

    def wide(self, loops: Loops, mask: ir.Value | None, alone: bool = False) -> ir.Value:
        """Words of the columns that the loops hold as a ramp; those that the mask leaves out hold anything."""
        k = self.plan.view.k[-1]
        low = splat_to(self._element(self.plan.wide, loops, mask), self.lanes)
        if alone:
            high = constant(ir.BF16Type.get(), 0, self.lanes)
        else:
            high = splat_to(self._element(self.plan.wide, _at(loops, k, _known(loops, k) + 1), mask), self.lanes)
        mixed = vector.shuffle(low, high, [lane // PAIR + lane % PAIR * self.lanes for lane in range(PAIR * self.lanes)])
        return self._words(mixed)

    def along(self, which: int, loops: Loops, start: Index, left: Index | None = None) -> ir.Value:
        """A vector of words from value `start` of the last k on, of which `left` values are there; the others are 0."""
        count = PAIR * self.lanes
        mask = None if left is None else lane_mask(left, count, self.evaluator.index_type)
        value = splat_to(self._element(which, _at(loops, self.plan.view.k[-1], Index.ramp(start, count)), mask), count)
        if mask is not None:
            value = arith.select(mask, value, constant(ir.BF16Type.get(), 0, count))
        return self._words(value)

    def _words(self, values: ir.Value) -> ir.Value:
        return vector.bitcast(vector_type(integer_type(32), self.lanes), values)

    def _half(self, loops: Loops) -> ir.Value:
        bits = arith.bitcast(integer_type(16), self._element(self.plan.narrow, loops))
        return arith.extui(integer_type(32), bits)

    def _element(self, which: int, loops: Loops, mask: ir.Value | None = None) -> ir.Value:
        view = self.plan.view
        return self.evaluator.element(view.operand(which), coords_of(view, which, loops), mask)


def _at(loops: Loops, d: int, index: Index) -> Loops:
    return [index if i == d else x for i, x in enumerate(loops)]


def _known(loops: Loops, d: int) -> Index:
    found = loops[d]
    assert found is not None
    return found
