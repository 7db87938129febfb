"""Code of a contraction's body: factors as they are multiplied, multiply-adds, and coordinates of operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import Contraction, Product
from tilewright.passes.codegen.affine_index import evaluate
from tilewright.passes.codegen.emit import constant, is_float, lanes_of, vector_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import arith, attributes, ir, llvm


@dataclass(frozen=True)
class ProductCode:
    """Emits the steps of acc + lhs * rhs at the insertion point, on scalars or on vectors."""

    product: Product

    def factor(self, which: int, value: ir.Value) -> ir.Value:
        """A loaded element of lhs or rhs as what is multiplied."""
        for op in self.product.casts[which]:
            result = vector_type(op.results[0].type, lanes_of(value))
            value = ir.Operation.create(op.name, results=[result], operands=[value], attributes=attributes(op)).results[0]
        return self.widen(value)

    def widen(self, value: ir.Value) -> ir.Value:
        """A value of the result's type in the accumulator's."""
        if self.product.element == self.product.accumulator:
            return value
        return arith.extf(vector_type(self.product.accumulator, lanes_of(value)), value)

    def round(self, value: ir.Value) -> ir.Value:
        """An accumulator in the result's type."""
        if self.product.element == self.product.accumulator:
            return value
        return arith.truncf(vector_type(self.product.element, lanes_of(value)), value)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, fused where the target can."""
        if is_float(self.product.accumulator):
            return llvm.intr_fmuladd(a, b, c)
        return arith.addi(c, arith.muli(a, b))

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.addf(a, b) if is_float(self.product.accumulator) else arith.addi(a, b)

    def zero(self, lanes: int) -> ir.Value:
        return constant(self.product.accumulator, 0, lanes)


def coords_of(view: Contraction, which: int, loops: Sequence[Index | None]) -> list[Index]:
    """Coordinates of lhs, rhs or the result of a contraction at a point of its loops."""
    return [evaluate(e, loops) for e in view.maps[which].results]
