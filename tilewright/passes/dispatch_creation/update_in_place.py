"""update-in-place: what a loop only puts a part into is no kernel that makes all of it anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.counted_loop import CountedLoop, KeptLoopError
from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import FRAME, UPDATE, uncast
from tilewright.passes.linalg.symbolic import mixed
from tilewright.passes.mlir import functions, ir, operations


@dataclass(frozen=True)
class UpdateInPlace(Pass):
    """`tensor.insert_slice` operations that put parts into what a loop carries, a cache say, get `tw.update`. Fusion leaves these
    alone, and the host program copies the part to its place. Where somebody still reads the tensor as it was, the host program
    copies it first (compiler/host/host_plan.py).
    """

    name: ClassVar[str] = "update-in-place"

    def run(self, module: ir.Module) -> None:
        for frame in [f for f in functions(module) if FRAME in f.attributes]:
            if not any(op.name == "scf.while" for op in operations(frame.regions[0].blocks[0])):
                continue
            try:
                loop = CountedLoop.of(frame)
            except KeptLoopError:
                continue
            known = set(loop.carried)
            for op in operations(loop.body):
                if op.name == "tensor.insert_slice" and uncast(op.operands[1]) in known \
                        and all(isinstance(s, int) for s in mixed(op, "static_strides", 4)):
                    op.attributes[UPDATE] = ir.UnitAttr.get()
                    known.add(op.results[0])
