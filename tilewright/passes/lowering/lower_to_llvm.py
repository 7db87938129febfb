"""lower-to-llvm: a kernel module (func, scf, arith, vector, math, nvvm) in the LLVM dialect, by the bindings' own passes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.mlir import PassManager, ir, walk
from tilewright.runtime.errors import BuildError

_HOST = """
    canonicalize, cse, loop-invariant-code-motion, convert-scf-to-cf,
    convert-math-to-libm, convert-vector-to-llvm, convert-ub-to-llvm,
    convert-index-to-llvm, convert-arith-to-llvm, convert-cf-to-llvm, convert-func-to-llvm,
    reconcile-unrealized-casts, canonicalize, cse"""

_GPU = """
    canonicalize, cse, loop-invariant-code-motion, cse, convert-scf-to-cf,
    convert-math-to-llvm, convert-vector-to-llvm, convert-nvvm-to-llvm, convert-ub-to-llvm,
    convert-index-to-llvm, convert-arith-to-llvm, convert-cf-to-llvm, convert-func-to-llvm,
    reconcile-unrealized-casts, canonicalize, cse"""


@dataclass(frozen=True)
class LowerToLlvm(Pass):
    """gpu: nvvm ops become intrinsics and no function of libm is called. Ops that have no lowering are an error."""

    name: ClassVar[str] = "lower-to-llvm"
    gpu: bool = False

    def run(self, module: ir.Module) -> None:
        pipeline = re.sub(r"\s+", "", _GPU if self.gpu else _HOST)
        try:
            manager = PassManager.parse(f"builtin.module({pipeline})")
            manager.enable_verifier(False)  # between these passes: as dear as they are; the whole is verified before and after
            manager.run(module.operation)
        except ir.MLIRError as error:
            raise BuildError(f"lowering to LLVM failed: {error}", str(module)) from error
        check_lowered(module)


def check_lowered(module: ir.Module) -> None:
    """BuildError names the ops that a translation to LLVM IR would not know, each with its location."""
    left = [
        op
        for op in walk(module.operation)
        if not op.name.startswith(("llvm.", "nvvm.", "builtin.")) or op.name == "builtin.unrealized_conversion_cast"
    ]
    if left:
        named = "; ".join(sorted({f"{op.name} at {op.location}" for op in left}))
        raise BuildError(
            f"ops are left that have no lowering: {named}. Wanted func, scf, arith, math, llvm and "
            "1-D vector ops; expand the others before",
            str(module),
        )
