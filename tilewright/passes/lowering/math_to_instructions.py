"""math-to-instructions: math ops that every target has as an instruction become LLVM intrinsics; other math ops stay."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Mlir, Pass
from tilewright.passes.mlir import ir, walk

_NEITHER = ("math.clampf", "math.fpowi", "math.rsqrt")  # neither an instruction nor a function of libm
_EXPANDED = Mlir("math-expand-ops{ops=clampf,fpowi,rsqrt}")
_INSTRUCTIONS = {
    "math.absf": "fabs",
    "math.ceil": "ceil",
    "math.copysign": "copysign",
    "math.floor": "floor",
    "math.fma": "fma",
    "math.round": "round",
    "math.roundeven": "roundeven",
    "math.sqrt": "sqrt",
    "math.trunc": "trunc",
    "math.absi": "abs",
    "math.ctlz": "ctlz",
    "math.ctpop": "ctpop",
    "math.cttz": "cttz",
    "math.isfinite": "is.fpclass",
    "math.isinf": "is.fpclass",
    "math.isnan": "is.fpclass",
    "math.isnormal": "is.fpclass",
}
_ATTRIBUTES = {
    "math.absi": "is_int_min_poison = false",
    "math.ctlz": "is_zero_poison = false",
    "math.cttz": "is_zero_poison = false",
    "math.isfinite": "bit = 504 : i32",
    "math.isinf": "bit = 516 : i32",
    "math.isnan": "bit = 3 : i32",
    "math.isnormal": "bit = 264 : i32",
}
_FAST_MATH = re.compile(r"#arith\.fastmath<(.*)>")


@dataclass(frozen=True)
class MathToInstructions(Pass):
    """Scalars and vectors alike. On the host, what is left becomes calls of libm, one per lane of a vector."""

    name: ClassVar[str] = "math-to-instructions"

    def run(self, module: ir.Module) -> None:
        found = walk(module.operation)
        if any(op.name in _NEITHER for op in found):
            _EXPANDED.run(module)
            found = walk(module.operation)
        for op in found:
            if op.name not in _INSTRUCTIONS:
                continue
            attributes = _fast_math(op)
            if op.name in _ATTRIBUTES:
                given = ir.DictAttr(ir.Attribute.parse(f"{{{_ATTRIBUTES[op.name]}}}"))
                attributes = {entry.name: entry.attr for entry in given}
            with ir.InsertionPoint(op), op.location:
                new = ir.Operation.create(
                    f"llvm.intr.{_INSTRUCTIONS[op.name]}", [op.results[0].type], list(op.operands), attributes
                )
            op.results[0].replace_all_uses_with(new.results[0])
            op.erase()


def _fast_math(op: ir.Operation) -> dict[str, ir.Attribute]:
    """The fast-math flags of a math op as an attribute of an llvm op."""
    if "fastmath" not in op.attributes:
        return {}
    flags = _FAST_MATH.fullmatch(str(op.attributes["fastmath"]))
    assert flags is not None, str(op.attributes["fastmath"])
    return {"fastmathFlags": ir.Attribute.parse(f"#llvm.fastmath<{flags[1]}>")}
