"""gathered-channels: what reads pixels at computed places, the same of all channels, reads all channels of a pixel at once.

Places differ from one element of the result to the next, so that vectors along the result are gathered element by element; with
channels last a pixel's are one run of memory (sampling by a grid, deformable attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.compile_time import constant_arguments
from tilewright.passes.analysis.gates import loop_of
from tilewright.passes.base import Pass
from tilewright.passes.linalg.collapse import e_uses
from tilewright.passes.linalg.copies import transposed
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.linalg.structured import (
    body,
    erase_unused,
    inputs,
    iterator_kinds,
    loop_extents,
    main_of,
    rebuild,
    replace,
    use_count,
)
from tilewright.passes.mlir import ir, maps_of, operations, position, replace_all_uses, tensor, walk

# on Zen 5, in hundredths of ns: an element that is gathered, one out of a run, one of a copy with other axes last
_GATHERED, _RUN, _COPIED = 38, 3, 20
_MIDDLE = 64  # stands for dims


@dataclass(frozen=True)
class GatheredChannels(Pass):
    """Elementwise operations that read one tensor at `taps` or more places that they compute along its last axis, the same for
    all of `channels` or more along another axis: it is read through a copy with these last, and so is the result written. Not
    where copies are predicted to take more time than that saves; extents that are not known count as equal ones."""

    name: ClassVar[str] = "gathered-channels"
    channels: int = 16
    taps: int = 4

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views, constants = Reshaper(fn), constant_arguments(fn)
            for op in walk(fn, "linalg.generic"):
                found = _Sample.of(op, views, self)
                if found is not None and (found.image in constants or found.gains(views)):
                    found.turn(views)
            erase_unused(fn)


@dataclass(frozen=True)
class _Sample:
    """An operation that reads an image at computed places. channel: the loop of the channels; axis: the image's."""

    op: ir.Operation
    image: ir.Value
    reads: tuple[ir.Operation, ...]
    channel: int
    axis: int

    @staticmethod
    def of(op: ir.Operation, views: Reshaper, options: GatheredChannels) -> _Sample | None:
        block, maps = body(op), maps_of(op)
        reads = tuple(o for o in operations(block) if o.name == "tensor.extract")
        own = list(block.arguments)[len(inputs(op)) :]
        one = len(op.results) == 1 and len({r.operands[0] for r in reads}) == 1 and len(reads) >= options.taps
        if not one or "reduction" in iterator_kinds(op) or not maps[-1].is_permutation or use_count(own[0]):
            return None
        places = [[loop_of(v) for v in list(r.operands)[1:]] for r in reads]
        if any(p != places[0] for p in places) or places[0][-1] is not None:
            return None
        extents = loop_extents(op, views.shapes)
        for axis, loop in reversed(list(enumerate(places[0]))):
            if loop is None or (extents[loop].constant or 0) < options.channels or places[0].count(loop) != 1:
                continue
            read = any(e_uses(e, loop) for m in maps[:-1] for e in m.results)
            if loop != position(maps[-1].results[-1]) and not read and _apart(reads, axis, loop, block):
                return _Sample(op, reads[0].operands[0], reads, loop, axis)
        return None

    def gains(self, views: Reshaper) -> bool:
        """Are both copies predicted to take less time than gathering costs more?"""
        sizes = [product(views.shapes.dims(v)) for v in (self.image, self.op.results[0])]
        image, result = (size.evaluate(dict.fromkeys(size.symbols, _MIDDLE)) for size in sizes)
        return _COPIED * (image + result) <= (_GATHERED - _RUN) * len(self.reads) * result

    def turn(self, views: Reshaper) -> None:
        """Read and write with channels last."""
        op, maps = self.op, maps_of(self.op)
        rank = ir.RankedTensorType(self.image.type).rank
        order = [*(a for a in range(rank) if a != self.axis), self.axis]
        loops = [position(e) for e in maps[-1].results]
        last = [*(d for d in loops if d != self.channel), self.channel]
        dims = dict(zip(loops, views.shapes.dims(op.results[0]), strict=True))
        element = ir.RankedTensorType(op.results[0].type).element_type
        with ir.InsertionPoint(op), op.location:
            turned = transposed(views, self.image, order)
            empty = views.empty([dims[d] for d in last], element)
            result = ir.AffineMap.get(len(loops), 0, [ir.AffineExpr.get_dim(d) for d in last])
            for read in self.reads:
                with ir.InsertionPoint(read):
                    at = list(read.operands)[1:]
                    replace_all_uses(read.results[0], tensor.extract(turned, [at[a] for a in order]))
                    read.erase()
            made = rebuild(op, inputs(op), [empty], [*maps[:-1], result], iterator_kinds(op))
            back = transposed(views, made.results[0], [last.index(d) for d in loops])
        replace(op, [back])


def _apart(reads: Sequence[ir.Operation], axis: int, loop: int, block: ir.Block) -> bool:
    """Do all other coordinates follow from neither the loop nor an element that is read?"""
    moved = {r.results[0] for r in reads}
    for op in operations(block):
        if loop in map(loop_of, op.results) or not moved.isdisjoint(op.operands):
            moved.update(op.results)
    return not any(v in moved for r in reads for a, v in enumerate(list(r.operands)[1:]) if a != axis)
