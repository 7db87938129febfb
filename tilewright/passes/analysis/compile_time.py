"""Which tensors are known at compile time: constant arguments, and what is computed of them alone."""

from __future__ import annotations

from collections.abc import Container

from tilewright.passes.linalg.symbolic import CONSTANT, argument_attributes
from tilewright.passes.mlir import ir, operations, owner


def constant_arguments(fn: ir.Operation) -> set[ir.Value]:
    """Arguments of a function that are bound at compile time."""
    named = zip(fn.regions[0].blocks[0].arguments, argument_attributes(fn), strict=True)
    return {v for v, found in named if CONSTANT in found}


def known_values(fn: ir.Operation) -> set[ir.Value]:
    """All tensors of a function that are known at compile time."""
    known = constant_arguments(fn)
    for op in operations(fn.regions[0].blocks[0]):
        if follows(op, known):
            known.update(op.results)
    return known


def follows(op: ir.Operation, known: Container[ir.Value]) -> bool:
    """Is it computed of known tensors alone, beside those that hold no values or the same one everywhere?"""
    tensors = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    return any(v in known for v in tensors) and all(v in known or _is_plain(v) for v in tensors)


def _is_plain(value: ir.Value) -> bool:
    made = owner(value)
    return made is not None and made.name in ("tensor.empty", "linalg.fill", "arith.constant")
