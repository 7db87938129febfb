"""taps-with-channels: places along a row of a window, and their few channels, become one loop over a run of memory.

A row of 7 places of 3 colours is 21 values side by side: sums over them take whole words and vectors, where those over 3 channels
take one value at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import LHS, RHS, Contraction, is_contraction, linear_terms
from tilewright.passes.base import Pass
from tilewright.passes.linalg.copies import transposed
from tilewright.passes.linalg.reshape import Reshaper, collapses_free
from tilewright.passes.linalg.structured import erase_unused, inits, iterator_kinds, main_of, rebuild, replace
from tilewright.passes.mlir import ir, maps_of, owner, position, walk
from tilewright.passes.transforms.find_codes import CODES

# bf16 and f16: 3 to 14 channels with tiles 2.0 to 4.6 times as fast, without 1.0 to 1.7 times; f32 .98 to 1.05 times
FEW_CHANNELS = 15


@dataclass(frozen=True)
class TapsWithChannels(Pass):
    """Contractions over the windows of an image whose last axis is 1 to `channels` channels of at most `bits` bits, where windows
    of more than one place a row are not dilated along it. The filters are read through a copy with the channels behind those
    places, made at compile time where they are known. pairs: does the target multiply bf16 in pairs? Floats that it does not stay
    as they are in windows of 3x3 with steps of one, which host_winograd saves products of."""

    name: ClassVar[str] = "taps-with-channels"
    channels: int = FEW_CHANNELS
    bits: int = 16
    pairs: bool = False

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            views = Reshaper(fn)
            for op in walk(fn):
                if op.name == "linalg.generic" and is_contraction(op):
                    found = _Run.of(op, views, self)
                    if found is not None:
                        found.join(views)
            erase_unused(fn)


@dataclass(frozen=True)
class _Run:
    """image: the number of the operand that windows pass over; along, tap, channel: loops of the places of a row of the result,
    of a window, and of their channels; step: places between windows."""

    view: Contraction
    image: int
    along: int
    tap: int
    channel: int
    step: int

    @staticmethod
    def of(op: ir.Operation, views: Reshaper, options: TapsWithChannels) -> _Run | None:
        view = Contraction.of(op, views.shapes)
        types = [ir.RankedTensorType(view.operand(which).type).element_type for which in (LHS, RHS)]
        if any(t.width > options.bits for t in types):
            return None
        words = (options.pairs and view.multiplies_bf16()) or any(isinstance(t, ir.IntegerType) for t in types)
        for image in (LHS, RHS):
            found = _Run._over(view, image, options.channels)
            if found is not None and (words or not found.is_square()) and not _is_decoded(view.operand(1 - image)) and \
                    collapses_free(view.operand(image), found.axes, views.shapes):
                return found
        return None

    @staticmethod
    def _over(view: Contraction, image: int, most: int) -> _Run | None:
        """Of an operand's last two axes."""
        results, kinds = [linear_terms(e) for e in view.maps[image].results], iterator_kinds(view.op)
        filters = [position(e) for e in view.maps[1 - image].results]
        if len(results) < 3 or None in results or None in filters:
            return None
        *outer, row, last = (r or {} for r in results)
        taps, places = ([d for d in row if kinds[d] == kind] for kind in ("reduction", "parallel"))
        channels = [d for d in last if kinds[d] == "reduction"]
        if not len(taps) == len(places) == len(channels) == len(last) == 1 or row[taps[0]] != 1 or last[channels[0]] != 1:
            return None
        count, taken = view.extents[channels[0]].constant or 0, view.extents[taps[0]].constant or 0
        elsewhere = {d for terms in outer for d in terms} & {taps[0], places[0], channels[0]}
        if not 1 <= count <= most or taken < 2 or elsewhere or not filters.count(taps[0]) == filters.count(channels[0]) == 1:
            return None
        return _Run(view, image, places[0], taps[0], channels[0], row[places[0]])

    @property
    def axes(self) -> range:
        """Of the image, which become one."""
        rank = len(self.view.maps[self.image].results)
        return range(rank - 2, rank)

    def is_square(self) -> bool:
        """Are windows 3x3, with steps of one?"""
        terms = [linear_terms(e) or {} for e in self.view.maps[self.image].results]
        windows = [t for t in terms if len(t) == 2]
        extents = [self.view.extents[d].constant for t in windows for d in t if iterator_kinds(self.view.op)[d] == "reduction"]
        return extents == [3, 3] and all(set(t.values()) == {1} for t in windows)

    def join(self, views: Reshaper) -> None:
        """One loop, the last, in place of that of the window and that of the channels."""
        op, kinds = self.view.op, iterator_kinds(self.view.op)
        left = [d for d in range(len(kinds)) if d not in (self.tap, self.channel)]
        loop = {d: ir.AffineExpr.get_dim(n) for n, d in enumerate(left)}
        with ir.InsertionPoint(op), op.location:
            operands = [self._pixels(views, loop), self._filters(views, loop)][:: 1 if self.image == LHS else -1]
            results = [*(results for _, results in operands), [_moved(e, loop) for e in maps_of(op)[-1].results]]
            maps = [ir.AffineMap.get(len(left) + 1, 0, r) for r in results]
            made = rebuild(op, [v for v, _ in operands], inits(op), maps, [*(kinds[d] for d in left), "reduction"])
        replace(op, list(made.results))

    def _pixels(self, views: Reshaper, loop: dict[int, ir.AffineExpr]) -> tuple[ir.Value, list[ir.AffineExpr]]:
        """The image with its last two axes as one, and how it is read."""
        value, results = self.view.operand(self.image), list(self.view.maps[self.image].results)
        *outer, row, channels = views.shapes.dims(value)
        places = loop[self.along] * (self.step * (channels.constant or 1)) + ir.AffineExpr.get_dim(len(loop))
        return views.reshape(value, [*outer, row * channels]), [*(_moved(e, loop) for e in results[:-2]), places]

    def _filters(self, views: Reshaper, loop: dict[int, ir.AffineExpr]) -> tuple[ir.Value, list[ir.AffineExpr]]:
        """The filters with the channels behind the places of a row, as one axis, and what is not summed last."""
        value, kinds = self.view.operand(1 - self.image), iterator_kinds(self.view.op)
        walked, dims = [position(e) for e in self.view.maps[1 - self.image].results], views.shapes.dims(value)
        tap, channel = walked.index(self.tap), walked.index(self.channel)
        left = sorted((a for a in range(len(walked)) if a != channel), key=lambda a: kinds[walked[a] or 0] == "parallel")
        order = [b for a in left for b in ((a, channel) if a == tap else (a,))]
        if order != sorted(order):
            value = transposed(views, value, order)
        value = views.reshape(value, [dims[a] * dims[channel] if a == tap else dims[a] for a in left])
        return value, [ir.AffineExpr.get_dim(len(loop)) if a == tap else loop[walked[a] or 0] for a in left]


def _is_decoded(value: ir.Value) -> bool:
    """Is it made from codes, which kernels read as they lie?"""
    made = owner(value)
    return made is not None and CODES in made.attributes


def _moved(e: ir.AffineExpr, loop: dict[int, ir.AffineExpr]) -> ir.AffineExpr:
    """A sum of loops times constants, or a constant, of the loops that are left."""
    if isinstance(e, ir.AffineConstantExpr):
        return e
    total: ir.AffineExpr | None = None
    for d, factor in (linear_terms(e) or {}).items():
        term = loop[d] * factor
        total = term if total is None else total + term
    assert total is not None
    return total
