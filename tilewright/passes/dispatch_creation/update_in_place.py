"""update-in-place: what a loop only puts a part into is no kernel that makes all of it anew."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilewright.passes.analysis.counted_loop import CountedLoop, KeptLoopError
from tilewright.passes.analysis.loop_starts import call_of, only_begins, overwritten, start_of
from tilewright.passes.base import Pass
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.strides import Views, copy_loops, dense_strides
from tilewright.passes.linalg.structured import FRAME, OVERWRITTEN, UPDATE, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes, inserted_axes, mixed
from tilewright.passes.mlir import functions, ir, operations, owner


@dataclass(frozen=True)
class UpdateInPlace(Pass):
    """`tensor.insert_slice` operations that put parts into what a loop carries, a cache say, get `tw.update`. Fusion leaves these
    alone, and the host program copies the part to its place. Where somebody still reads the tensor as it was, the host program
    copies it first (compiler/host/host_plan.py). A tensor of which each step writes a row that nobody reads, and all
    steps all of it, begins with anything: a tensor.empty with `tw.overwritten`.

    runs: of elements side by side that a part has at most, each of which is a launch on a GPU, where the loop is counted; 0: any
    number, in any loop.
    """

    name: ClassVar[str] = "update-in-place"
    runs: int = 0

    def run(self, module: ir.Module) -> None:
        for frame in [f for f in functions(module) if FRAME in f.attributes]:
            if not any(op.name == "scf.while" for op in operations(frame.regions[0].blocks[0])):
                continue
            try:
                loop = CountedLoop.of(frame)
                _ = loop.count if self.runs else None
            except KeptLoopError:
                continue
            known, views = set(loop.carried), Views(SymbolicShapes(loop.function))
            for op in operations(loop.body):
                if op.name == "tensor.insert_slice" and uncast(op.operands[1]) in known \
                        and all(isinstance(s, int) for s in mixed(op, "static_strides", 4)) and self._few(op, views):
                    op.attributes[UPDATE] = ir.UnitAttr.get()
                    known.add(op.results[0])
            _forget_starts(module, frame, loop, views.shapes)

    def _few(self, op: ir.Operation, views: Views) -> bool:
        """Has a part few enough runs?"""
        if not self.runs:
            return True
        whole = dense_strides(views.shapes.dims(op.results[0]))
        steps = mixed(op, "static_strides", 4)
        into = [whole[a] * s for a in inserted_axes(op) if isinstance(s := steps[a], int)]
        loops, _ = copy_loops(views.shapes.dims(op.operands[0]), views.view(op.operands[0]).strides, into)
        counts = [loop.extent.constant for loop in loops]
        return None not in counts and prod(n for n in counts if n is not None) <= self.runs


def _forget_starts(module: ir.Module, frame: ir.Operation, loop: CountedLoop, inner: SymbolicShapes) -> None:
    """What a loop overwrites before anybody reads it begins with anything."""
    among = list(functions(module))
    for number, value in loop.following.items():
        made, argument = owner(value), start_of(loop, frame, number)
        if made is None or UPDATE not in made.attributes or argument is None or not only_begins(loop, frame, argument) \
                or not overwritten(loop, number, inner):
            continue
        call = call_of(frame, among)
        old, tensors = call.operands[argument], Reshaper(call.parent.operation)
        with ir.InsertionPoint(call), call.location:
            empty = tensors.empty(tensors.shapes.dims(old), ir.RankedTensorType(old.type).element_type)
            made = owner(empty)
            assert made is not None
            made.attributes[OVERWRITTEN] = ir.UnitAttr.get()
            call.operands[argument] = tensors.as_type(empty, old.type)
