"""nonpositive-exponents: exponentials whose argument is never above 0 say so, which takes fewer operations.

So are the decays of a state, e^(d a) with a step d > 0 and a rate a < 0 (Mamba: d = softplus(..), a = -e^(..)), and e^(-x^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.signs import NONPOSITIVE, Signs
from tilewright.passes.base import Pass
from tilewright.passes.mlir import ir, walk

_EXPONENTIALS = ("math.exp", "math.exp2")


@dataclass(frozen=True)
class NonpositiveExponents(Pass):
    """Gives them `tw.nonpositive`."""

    name: ClassVar[str] = "nonpositive-exponents"

    def run(self, module: ir.Module) -> None:
        signs = Signs()
        for op in walk(module.operation):
            if op.name in _EXPONENTIALS and not isinstance(op.results[0].type, ir.ShapedType) \
                    and not signs.of(op.operands[0]).above:
                op.attributes[NONPOSITIVE] = ir.UnitAttr.get()
