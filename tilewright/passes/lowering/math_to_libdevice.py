"""math-to-libdevice: math ops that neither we expand nor a GPU has become calls of CUDA's libdevice, one per lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.mlir import ir, llvm, vector, walk
from tilewright.runtime.errors import BuildError

_NAMES = {"math.powf": "pow", "math.absf": "fabs"}


@dataclass(frozen=True)
class MathToLibdevice(Pass):
    """`math.sin` of f32 becomes `__nv_sinf`, of f64 `__nv_sin`; each function is declared once."""

    name: ClassVar[str] = "math-to-libdevice"

    def run(self, module: ir.Module) -> None:
        declared: set[str] = set()
        for op in walk(module.operation):
            if not op.name.startswith("math.") or op.name == "math.fma":
                continue
            with ir.InsertionPoint(op), op.location:
                value = _lanes(module, op, declared)
            op.results[0].replace_all_uses_with(value)
            op.erase()


def _lanes(module: ir.Module, op: ir.Operation, declared: set[str]) -> ir.Value:
    t, operands = op.results[0].type, list(op.operands)
    if not isinstance(t, ir.VectorType):
        return _call(module, op, operands, declared)
    if t.rank != 1:
        raise BuildError(f"{op.name} at {op.location}: wanted a scalar or a 1-D vector, got {t}")
    lanes = [_call(module, op, [vector.extract(v, [], [i]) for v in operands], declared) for i in range(t.shape[0])]
    return vector.from_elements(t, lanes)


def _call(module: ir.Module, op: ir.Operation, operands: list[ir.Value], declared: set[str]) -> ir.Value:
    t = operands[0].type
    if not isinstance(t, ir.F32Type | ir.F64Type):
        raise BuildError(f"{op.name} at {op.location}: libdevice has functions of f32 and f64, not of {t}")
    name = f"__nv_{_NAMES.get(op.name, op.name.removeprefix('math.'))}{'f' if isinstance(t, ir.F32Type) else ''}"
    if name not in declared:
        declared.add(name)
        types = ", ".join(str(v.type) for v in operands)
        parsed = ir.Module.parse(f"llvm.func @{name}({types}) -> {t}")
        module.body.append(parsed.body.operations[0].operation.clone())
    return llvm.CallOp(t, operands, [], [], callee=ir.FlatSymbolRefAttr.get(name)).results[0]
