"""From a kernel module (func, scf, arith, vector, math, llvm) to LLVM IR as the bindings' LLVM spells it."""

from __future__ import annotations

from tilewright.passes.base import Mlir, Pass, PassPipeline
from tilewright.passes.lowering.lower_to_llvm import LowerToLlvm, check_lowered
from tilewright.passes.lowering.math_to_instructions import MathToInstructions
from tilewright.passes.lowering.math_to_libdevice import MathToLibdevice
from tilewright.passes.mlir import ir, llvm


def lowering_passes(gpu: bool = False) -> list[Pass]:
    """The pipeline into the LLVM dialect, for the host or a GPU."""
    return [MathToInstructions(), *([MathToLibdevice()] if gpu else []), LowerToLlvm(gpu)]


def to_llvm_text(module: ir.Module, gpu: bool = False) -> str:
    """Lower a module of kernels, of the host or of a GPU, or a host program in place and translate it.

    A host program computes each size where it is used. Equal ones are joined first: of a mixture of experts canonicalize takes
    34 s over 72,000 lines, .02 over the 6,800 that are left.

    Raises:
        BuildError: the lowering failed, or ops outside the llvm dialect are left over; names each with its location.
    """
    PassPipeline([Mlir("cse"), *lowering_passes(gpu)]).run(module)
    return translate(module, checked=True)


def translate(module: ir.Module, checked: bool = False) -> str:
    """A module in the LLVM dialect as LLVM IR. BuildError names ops of other dialects, on which the translation would crash.

    checked: its last pass was lower-to-llvm, which leaves none.
    """
    if not checked:
        check_lowered(module)
    with module.context, ir.Location.unknown():
        return str(llvm.translate_module_to_llvmir(module.operation))
