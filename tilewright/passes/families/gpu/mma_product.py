"""TensorProduct: a contraction's body as an instruction of tensor cores: element types, depth, sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.codegen.emit import byte_width, integer_type, vector_type
from tilewright.passes.families.gpu.mma_tile import extract
from tilewright.passes.mlir import ir, llvm, nvvm

_STEP = 32  # bytes along k of one instruction
_FLOATS = {"f16": "f16", "bf16": "bf16", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}


@dataclass(frozen=True)
class TensorProduct:
    """kinds: PTX names of the element types of lhs and rhs; element: of both in MLIR; sum: f32 or i32."""

    kinds: tuple[str, str]
    element: ir.Type
    sum: ir.Type

    @property
    def depth(self) -> int:
        """Positions of k that an instruction takes."""
        return _STEP // byte_width(self.element)

    @property
    def promoted(self) -> bool:
        """Does wgmma sum too few bits of the products, so that sums are promoted?"""
        return any(kind in ("e4m3", "e5m2") for kind in self.kinds)

    @staticmethod
    def of(view: Contraction, tf32: bool = False) -> TensorProduct:
        """ValueError when tensor cores have no such product."""
        where = f"{view.op.name} at {view.op.location}"
        elements = [ir.RankedTensorType(view.operand(i).type).element_type for i in range(2)]
        kinds = [_kind(e, view.product.casts[i], tf32) for i, e in enumerate(elements)]
        total = view.product.accumulator
        known = [k for k in kinds if k is not None]
        if len(known) != 2 or byte_width(elements[0]) != byte_width(elements[1]):
            named = " by ".join(map(str, elements))
            raise ValueError(f"{where}: tensor cores do not multiply {named} as the body converts them")
        whole = {k in ("s8", "u8") for k in known}
        if len(whole) != 1 or (whole == {False} and len(set(known)) != 1 and byte_width(elements[0]) != 1):
            raise ValueError(f"{where}: tensor cores do not multiply {known[0]} by {known[1]}")
        if str(total) != ("i32" if whole == {True} else "f32"):
            raise ValueError(f"{where}: tensor cores do not sum {known[0]} in {total}")
        return TensorProduct((known[0], known[1]), elements[0], total)

    def mma(self, sides: tuple[int, int], a: Sequence[ir.Value], b: Sequence[ir.Value], c: Sequence[ir.Value]) -> list[ir.Value]:
        """16 x 8 sums plus the products of a (4 registers) and b (2); sides: which operand each of them is."""
        left, right = (self.kinds[s] for s in sides)
        if left == "f16":
            pair = vector_type(self.element, 2)
            a, b = ([llvm.BitcastOp(pair, x).result for x in f] for f in (a, b))
        whole = {"int_overflow_behavior": ir.Attribute.parse("#nvvm.mma_int_overflow<wrapped>")} if left in ("s8", "u8") else {}
        found = nvvm.mma_sync(
            ir.Type.parse(f"!llvm.struct<({', '.join([str(self.sum)] * 4)})>"),
            ir.Attribute.parse(f"#nvvm.shape<m = 16, n = 8, k = {self.depth}>"), ir.Attribute.parse("#nvvm.mma_layout<row>"),
            ir.Attribute.parse("#nvvm.mma_layout<col>"), a, b, c, **whole,
            multiplicand_a_ptx_type=ir.Attribute.parse(f"#nvvm.mma_type<{left}>"),
            multiplicand_b_ptx_type=ir.Attribute.parse(f"#nvvm.mma_type<{right}>"))
        return [extract(found, q) for q in range(4)]


def _kind(element: ir.Type, casts: Sequence[ir.Operation], tf32: bool) -> str | None:
    """The PTX type of a factor that is converted exactly; None where it has none."""
    names = {op.name for op in casts}
    if str(element) in _FLOATS and names <= {"arith.extf"}:
        return _FLOATS[str(element)]
    if element == integer_type(8) and len(names) == 1 and names <= {"arith.extsi", "arith.extui"}:
        return "s8" if names == {"arith.extsi"} else "u8"
    return "tf32" if tf32 and str(element) == "f32" and not names else None
