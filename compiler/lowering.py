"""From a kernel module (func, scf, arith, vector, math, llvm) to LLVM IR as the bindings' LLVM spells it."""

from __future__ import annotations

import re

from compiler.libdevice_calls import call_libdevice
from passes.mlir import PassManager, ir, llvm, walk
from runtime.errors import BuildError

EXPAND_MATH = "math-expand-ops{ops=clampf,fpowi,rsqrt}"  # libm has none of them

LOWER_HOST = """
    canonicalize, cse, loop-invariant-code-motion, convert-scf-to-cf,
    convert-math-to-libm, convert-vector-to-llvm, convert-ub-to-llvm,
    convert-index-to-llvm, convert-arith-to-llvm, convert-cf-to-llvm, convert-func-to-llvm,
    reconcile-unrealized-casts, canonicalize, cse"""

LOWER_GPU = """
    canonicalize, cse, loop-invariant-code-motion, cse, convert-scf-to-cf,
    convert-math-to-llvm, convert-vector-to-llvm, convert-nvvm-to-llvm, convert-ub-to-llvm,
    convert-index-to-llvm, convert-arith-to-llvm, convert-cf-to-llvm, convert-func-to-llvm,
    reconcile-unrealized-casts, canonicalize, cse"""

# Instructions of every target, vectors too. What is left of `math` becomes calls of libm, a vector one call per lane.
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


def to_llvm_text(module: ir.Module, gpu: bool = False) -> str:
    """Lower a kernel module of the host or of a GPU in place and translate it.

    Raises:
        BuildError: the lowering failed, or ops outside the llvm dialect are left over; names each with its location.
    """
    with module.context, ir.Location.unknown():
        _run(module, EXPAND_MATH)
        _use_instructions(module)
        if gpu:
            call_libdevice(module)
        _run(module, re.sub(r"\s+", "", LOWER_GPU if gpu else LOWER_HOST))
        _check_lowered(module)
        return str(llvm.translate_module_to_llvmir(module.operation))


def _run(module: ir.Module, pipeline: str) -> None:
    try:
        PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
    except ir.MLIRError as error:
        raise BuildError(f"lowering to LLVM failed: {error}", str(module)) from error


def _use_instructions(module: ir.Module) -> None:
    """math ops that are instructions become LLVM intrinsics, so that convert-math-to-libm leaves them alone."""
    for op in walk(module.operation):
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


def _check_lowered(module: ir.Module) -> None:
    """The translation crashes on any op that it does not know, so none may be left."""
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
