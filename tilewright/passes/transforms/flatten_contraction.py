"""flatten-contraction: adjacent loops that every operand of a contraction runs over together become one.

[B, S, K] x [K, N] runs over M = B*S; what is a plain matmul is called linalg.matmul.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.base import Pass
from tilewright.passes.linalg.loop_groups import can_merge, merge
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import body, erase_unused, inits, inputs, main_of, replace
from tilewright.passes.mlir import ir, linalg, maps_of, operations, position, walk


@dataclass(frozen=True)
class FlattenContraction(Pass):
    """Only contractions that are a linalg.generic: a named one has no loops to merge.

    named: write linalg.matmul where the maps allow.
    """

    name: ClassVar[str] = "flatten-contraction"
    named: bool = True

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if op.name == "linalg.generic" and sums_products(op):
                    flat = _flatten(op, views)
                    if self.named:
                        _name(flat)
            erase_unused(fn)


def _flatten(op: ir.Operation, views: Reshaper) -> ir.Operation:
    for _ in range(maps_of(op)[0].n_dims):  # each takes a loop away
        pairs = {
            (position(a), position(b)) for m in maps_of(op) for a, b in zip(m.results, m.results[1:], strict=False)
        }
        known = sorted((a, b) for a, b in pairs if a is not None and b is not None)
        pair = next((p for p in known if can_merge(op, p, views)), None)
        if pair is None:
            break
        op = merge(op, pair, views)
    return op


def _name(op: ir.Operation) -> None:
    order = _loop_order(op)
    inner = operations(body(op))
    if order is None or [o.name for o in inner] != ["arith.mulf", "arith.addf", "linalg.yield"]:
        return
    lhs, rhs, accumulator = body(op).arguments
    factors, terms = set(inner[0].operands), set(inner[1].operands)
    if factors != {lhs, rhs} or terms != {inner[0].results[0], accumulator}:
        return
    a, b = inputs(op) if order == "nn" else inputs(op)[::-1]
    with ir.InsertionPoint(op), op.location:
        replace(op, [linalg.matmul(a, b, outs=inits(op))])


def _loop_order(op: ir.Operation) -> str | None:
    """ "nn" when the maps are those of a matmul, "swapped" when they are with the inputs exchanged."""
    maps = maps_of(op)
    if (
        len(maps) != 3
        or any(position(e) is None for m in maps for e in m.results)
        or any(len(m.results) != 2 for m in maps)
    ):
        return None
    a, b, out = ([position(e) for e in m.results] for m in maps)
    for kind, (x, y) in (("nn", (a, b)), ("swapped", (b, a))):
        if x[1] == y[0] and [x[0], y[1]] == out and maps[0].n_dims == 3 and len({x[0], x[1], y[1]}) == 3:
            return kind
    return None
