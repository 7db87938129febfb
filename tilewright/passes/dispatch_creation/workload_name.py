"""Readable names of workloads; nothing but people and file names depends on them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.passes.analysis.op_kinds import OpKind, body_names, op_kind
from tilewright.passes.linalg.strides import Views
from tilewright.passes.mlir import ir

_WORDS = {
    "math.exp": "exp",
    "math.erf": "erf",
    "math.tanh": "tanh",
    "math.rsqrt": "rsqrt",
    "math.sqrt": "sqrt",
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.subf": "sub",
    "arith.subi": "sub",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.divf": "div",
    "arith.maximumf": "max",
    "arith.minimumf": "min",
    "arith.maxnumf": "max",
    "arith.minnumf": "min",
    "arith.select": "select",
    "tensor.extract": "gather",
}


_SHORT = (
    (r"row_max_sub_exp_row_add_div", "softmax"),
    (r"(div|mul)_erf_add_mul(_mul)?", "gelu"),
    (r"row_add_div_sub_mul_row_add_div_add_rsqrt_mul_mul_add", "layernorm"),
)
_LONGEST = 8


def workload_name(ops: Sequence[ir.Operation], views: Views) -> str:
    """Words for what the region computes, in order, at most eight: matmul_add_gelu, softmax, layernorm."""
    shown = "_".join(word for op in ops for word in _words(op, op_kind(op, views)))
    for pattern, short in _SHORT:
        shown = re.sub(pattern, short, shown)
    return "_".join(shown.split("_")[:_LONGEST]) or "copy"


def _words(op: ir.Operation, kind: OpKind) -> list[str]:
    if kind in (OpKind.CONTRACTION, OpKind.WINDOW) and op.name == "linalg.generic":
        return ["contraction" if kind is OpKind.CONTRACTION else "reduction"]
    if kind in (OpKind.CONTRACTION, OpKind.WINDOW, OpKind.MOVEMENT) or op.name == "linalg.fill":
        return [op.name.split(".")[1]]
    found = [_WORDS[n] for n in body_names(op) if n in _WORDS]
    prefix = {OpKind.REDUCTION: "row", OpKind.PARTS: "part"}.get(kind)
    return found if prefix is None else [f"{prefix}_{word}" for word in found[-1:]]
