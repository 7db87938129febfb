"""Transposed convolutions with steps, as their builder makes them: results a step apart are phases beside places of the image.

Where the phases are filters instead, they are one ordinary convolution, or, with one tap each, one product of all pixels; what
they make is then laid side by side by a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import linear_terms, product_of
from tilewright.passes.linalg.copies import transposed
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.linalg.structured import inits, inputs, iterator_kinds, loop_map, rebuild
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, owner, position
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class PhasedConvolution:
    """Sums of products over channels and windows of an image [n, c, place...] at [n, f, place, phase, ...].

    batch, filter, channel: loops; places, phases, taps: those of each axis of the image behind its channels. by: the loop at each
    axis of the filters.
    """

    op: ir.Operation
    batch: int
    filter: int
    channel: int
    places: tuple[int, ...]
    phases: tuple[int, ...]
    taps: tuple[int, ...]
    by: tuple[int, ...]

    @staticmethod
    def of(op: ir.Operation) -> PhasedConvolution | None:
        """None of anything else, or of what is added to another tensor."""
        if op.name != "linalg.generic" or len(op.results) != 1 or product_of(op) is None:
            return None
        image, filters, result = maps_of(op)
        written, by = ([position(e) for e in m.results] for m in (result, filters))
        start = owner(inits(op)[0])
        rank, known = len(image.results) - 2, [d for d in (*written, *by) if d is not None]
        if rank < 1 or len(known) != len(written) + len(by) or len(written) != 2 * rank + 2 or start is None or \
                start.name not in ("tensor.empty", "linalg.fill"):
            return None
        batch, filter_, *rest = known[: len(written)]
        places, phases, channel = rest[::2], rest[1::2], position(image.results[1])
        windows = [set(linear_terms(e) or ()) - {place} for e, place in zip(list(image.results)[2:], places, strict=True)]
        taps = [d for window in windows for d in window]
        loops = [batch, filter_, *rest, *taps, *([] if channel is None else [channel])]
        kinds = iterator_kinds(op)
        if channel is None or position(image.results[0]) != batch or any(len(window) != 1 for window in windows) or \
                sorted(loops) != list(range(len(kinds))) or sorted(known[len(written):]) != sorted(
                    [filter_, channel, *phases, *taps]) or any(kinds[d] != "reduction" for d in (*taps, channel)):
            return None
        return PhasedConvolution(op, batch, filter_, channel, tuple(places), tuple(phases), tuple(taps),
                                 tuple(known[len(written):]))

    def has_one_tap(self, shapes: SymbolicShapes) -> bool:
        """Does every phase of a place read that place of the image alone?"""
        image, result = shapes.dims(self.op.operands[0])[2:], shapes.dims(self.op.results[0])[2::2]
        return list(image) == list(result) and all(self._extent(d, shapes) == Expr.of(1) for d in self.taps)

    def as_product(self, views: Reshaper) -> ir.Value:
        """Of one tap: [n, phases of each filter, p] = sum over c of image[n, c, p] * filter[c, phases of each filter]."""
        image, shapes = inputs(self.op)[0], views.shapes
        n, c, *places = shapes.dims(image)
        filters, rows = self._filters(views, [self.channel, self.filter, *self.phases], 1)
        start = views.reshape(inits(self.op)[0], [n, rows, product(places)])
        maps = [loop_map(4, 0, 3, 2), loop_map(4, 3, 1), loop_map(4, 0, 1, 2)]
        made = rebuild(self.op, [views.reshape(image, [n, c, product(places)]), filters], [start], maps,
                       ["parallel", "parallel", "parallel", "reduction"])
        return self._beside(views, made.results[0])

    def as_convolution(self, views: Reshaper) -> ir.Value:
        """Of any taps: a convolution whose filters are the phases of each filter; loops n, filter, place..., c, tap..."""
        rank, shapes = len(self.places), views.shapes
        filters, rows = self._filters(views, [self.filter, *self.phases, self.channel, *self.taps], 0)
        d = [ir.AffineExpr.get_dim(i) for i in range(3 + 2 * rank)]
        read = [d[0], d[2 + rank]]
        for i, e in enumerate(list(maps_of(self.op)[0].results)[2:]):
            terms = linear_terms(e) or {}
            read.append(d[2 + i] * terms[self.places[i]] + d[3 + rank + i] * terms[self.taps[i]])
        by, written = loop_map(len(d), 1, *range(2 + rank, len(d))), loop_map(len(d), *range(2 + rank))
        maps = [ir.AffineMap.get(len(d), 0, read), by, written]
        dims = shapes.dims(self.op.results[0])
        start = views.reshape(inits(self.op)[0], [dims[0], rows, *dims[2::2]])
        made = rebuild(self.op, [inputs(self.op)[0], filters], [start], maps,
                       ["parallel"] * (2 + rank) + ["reduction"] * (1 + rank))
        return self._beside(views, made.results[0])

    def _extent(self, loop: int, shapes: SymbolicShapes) -> Expr:
        """Of a loop that the filters have an axis of."""
        return shapes.dims(inputs(self.op)[1])[self.by.index(loop)]

    def _filters(self, views: Reshaper, loops: Sequence[int], at: int) -> tuple[ir.Value, Expr]:
        """The filters with axes along these loops, those of filter and phases merged to one at `at`; its extent."""
        value, axes = inputs(self.op)[1], [self.by.index(d) for d in loops]
        if axes != sorted(axes):
            value = transposed(views, value, [*axes, *(a for a in range(len(self.by)) if a not in axes)])
        rows = product([self._extent(d, views.shapes) for d in (self.filter, *self.phases)])
        extents = [self._extent(d, views.shapes) for d in loops]
        return views.reshape(value, [*extents[:at], rows, *extents[at + 1 + len(self.phases):]]), rows

    def _beside(self, views: Reshaper, value: ir.Value) -> ir.Value:
        """[n, phases of each filter, place...] as the operation's own result."""
        rank, dims = len(self.places), list(views.shapes.dims(self.op.results[0]))
        apart = views.reshape(value, [*dims[:2], *dims[3::2], *dims[2::2]])
        return transposed(views, apart, [0, 1, *(a for i in range(rank) for a in (2 + rank + i, 2 + i))])
