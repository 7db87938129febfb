"""What an operation on tensors is to the graph passes: root, reduction, elementwise, data movement, view or cheap."""

from __future__ import annotations

from enum import Enum

from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.analysis.parts import parts_of
from tilewright.passes.linalg.data_movement import MOVEMENT_OPS
from tilewright.passes.linalg.strides import VIEW_OPS, Views
from tilewright.passes.linalg.structured import CASTS, CHEAP_OPS, UPDATE, iterator_kinds
from tilewright.passes.mlir import ir, maps_of, operations, owner, position


class OpKind(Enum):
    """CONTRACTION: sums of products, convolutions too. REDUCTION: projected maps and one combiner, as in softmax. PARTS: one in
    parts (passes/analysis/parts.py).

    WINDOW: any other linalg op with reduction loops, such as pooling, or that scatters. MOVEMENT: places elements and
    computes none. VIEW: a strided window. CHEAP: made again by every reader. SCALAR: no tensor. CALL: of a function, such
    as a branch or loop by itself, or a part put into what a loop carries. OPAQUE: nothing that can be compiled.
    """

    CONTRACTION = "contraction"
    REDUCTION = "reduction"
    PARTS = "parts"
    WINDOW = "window"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    VIEW = "view"
    CHEAP = "cheap"
    SCALAR = "scalar"
    CALL = "call"
    OPAQUE = "opaque"


def op_kind(op: ir.Operation, views: Views) -> OpKind:
    """The kind of `op`, one of the list above."""
    if op.name in CHEAP_OPS:
        return OpKind.CHEAP
    if op.name == "func.call" or UPDATE in op.attributes:
        return OpKind.CALL
    if not any(isinstance(r.type, ir.RankedTensorType) for r in op.results):
        return OpKind.SCALAR
    if op.name in VIEW_OPS:
        return OpKind.VIEW if views.is_view(op) else OpKind.MOVEMENT
    if op.name in MOVEMENT_OPS:
        return OpKind.MOVEMENT
    if not op.name.startswith("linalg.") or op.name == "linalg.softmax":
        return OpKind.OPAQUE
    if is_contraction(op):
        return OpKind.CONTRACTION
    if scatters(op):
        return OpKind.WINDOW if parts_of(op) is None else OpKind.PARTS
    if "reduction" not in iterator_kinds(op):
        return OpKind.ELEMENTWISE
    return OpKind.REDUCTION if is_row_reduction(op) else OpKind.WINDOW


def scatters(op: ir.Operation) -> bool:
    """Is a result of a linalg op written through a map that is no permutation of its parallel loops?

    So in out[i + j] += x[i, j], out[i, i] = x[i] and out[i, 2] = x[i]: an element cannot be computed alone.
    """
    if not op.name.startswith("linalg."):
        return False
    maps = maps_of(op)
    parallel = {d for d, kind in enumerate(iterator_kinds(op)) if kind == "parallel"}
    for result, m in zip(op.results, maps[len(maps) - len(op.results) :], strict=True):
        sizes = ir.RankedTensorType(result.type).shape
        loops = [position(e) for e, n in zip(m.results, sizes, strict=True)
                 if n != 1 or not isinstance(e, ir.AffineConstantExpr)]
        if None in loops or len(set(loops)) != len(loops) or not parallel <= set(loops):
            return True
    return False


def combiner(op: ir.Operation) -> ir.Operation | None:
    """The operation that joins the accumulator of a one-result reduction with a new value; None without one."""
    block = op.regions[0].blocks[0]
    if len(op.results) != 1:
        return None
    accumulator = block.arguments[len(block.arguments) - 1]
    last = owner(operations(block)[-1].operands[0])
    if last is None or len(list(accumulator.uses)) != 1 or accumulator not in list(last.operands):
        return None
    return last


ROW_COMBINERS = ("arith.addf", "arith.mulf", "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf",
                 "arith.addi", "arith.muli", "arith.andi", "arith.ori", "arith.xori", "arith.maxsi", "arith.minsi", "arith.maxui",
                 "arith.minui")


def is_row_reduction(op: ir.Operation) -> bool:
    """A generic whose maps are projected permutations, with one result and one associative combiner."""
    if op.name != "linalg.generic" or not all(m.is_projected_permutation for m in maps_of(op)):
        return False
    last = combiner(op)
    return last is not None and last.name in ROW_COMBINERS and "linalg.index" not in body_names(op)


def body_names(op: ir.Operation) -> list[str]:
    return [o.name for o in operations(op.regions[0].blocks[0])] if len(op.regions) else []


_FREE = ("linalg.yield", "arith.constant", "linalg.index", "arith.index_cast", "arith.index_castui", *CASTS)
_EXPENSIVE = ("arith.divf", "arith.divsi", "arith.divui", "arith.remf", "arith.remsi", "arith.remui", "tensor.extract")
_ALGEBRAIC = frozenset(f"math.{n}" for n in (
    "absf", "absi", "ceil", "clampf", "copysign", "ctlz", "ctpop", "cttz", "floor", "fma", "isfinite", "isinf", "isnan",
    "isnormal", "round", "roundeven", "rsqrt", "sqrt", "trunc"))


def arithmetic(op: ir.Operation) -> int:
    """Scalar operations per element, casts and constants not counted."""
    return sum(n not in _FREE for n in body_names(op)) if op.name.startswith("linalg.") else 0


def expensive(op: ir.Operation) -> bool:
    """Dearer than a load: a function of math, a division or a lookup in each element."""
    return any(n.startswith("math.") or n in _EXPENSIVE for n in body_names(op))


def is_transcendental(name: str) -> bool:
    """Is an operation of this name an exponential, a logarithm or the like, which takes dozens of instructions?"""
    return name.startswith("math.") and name not in _ALGEBRAIC
