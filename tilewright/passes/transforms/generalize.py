"""generalize: named elementwise ops, linalg.map and linalg.reduce become linalg.generic, which the passes read; a loop that is
called a reduction and is an axis of every result is parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import body, erase_unused, inits, inputs, iterator_kinds, main_of, rebuild, replace
from tilewright.passes.mlir import ir, maps_of, position, walk

_NAMES = (
    "map",
    "reduce",
    "elementwise",
    "copy",
    "add",
    "sub",
    "mul",
    "div",
    "div_unsigned",
    "max",
    "min",
    "exp",
    "log",
    "abs",
    "ceil",
    "floor",
    "negf",
    "reciprocal",
    "round",
    "sqrt",
    "rsqrt",
    "square",
    "tanh",
    "erf",
    "powf",
    "select",
)


@dataclass(frozen=True)
class Generalize(Pass):
    """Contractions, convolutions, poolings, fill, transpose, broadcast and softmax keep their names."""

    name: ClassVar[str] = "generalize"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            for op in walk(fn):
                if op.name.startswith("linalg.") and op.name.removeprefix("linalg.") in _NAMES and op.results:
                    _add_accumulators(op)
                    new = rebuild(op, inputs(op), inits(op), maps_of(op), iterator_kinds(op))
                    replace(op, list(new.results))
                elif op.name == "linalg.generic" and iterator_kinds(op) != (kinds := _kinds(op)):
                    replace(op, list(rebuild(op, inputs(op), inits(op), maps_of(op), kinds).results))
            erase_unused(fn)


def _kinds(op: ir.Operation) -> list[str]:
    """The kinds of a generic's loops: one whose every iteration writes elements of its own reduces nothing."""
    walked = [{position(e) for e in m.results} for m in maps_of(op)[len(inputs(op)) :]]
    return ["parallel" if all(d in axes for axes in walked) else kind for d, kind in enumerate(iterator_kinds(op))]


def _add_accumulators(op: ir.Operation) -> None:
    """A generic's body has an argument per operand; linalg.map's may lack those of its results."""
    for value in list(op.operands)[len(body(op).arguments) :]:
        body(op).add_argument(ir.RankedTensorType(value.type).element_type, op.location)
