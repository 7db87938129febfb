"""resolve-reshape: tensor.reshape to a computed shape becomes expand_shape and collapse_shape by symbolic equality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import erase_unused, main_of, replace
from tilewright.passes.mlir import ir, walk


@dataclass(frozen=True)
class ResolveReshape(Pass):
    """Extents are grouped by equal products of Exprs; a group that is many to many is collapsed and expanded."""

    name: ClassVar[str] = "resolve-reshape"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if op.name == "tensor.reshape":
                    with ir.InsertionPoint(op), op.location:
                        new = views.reshape(op.operands[0], views.shapes.dims(op.results[0]))
                        replace(op, [views.as_type(new, op.results[0].type)])
            erase_unused(fn)
