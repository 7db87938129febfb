"""Windows over each channel by itself of an image, and the orders of its axes."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.analysis.contraction import linear_terms, product_of
from tilewright.passes.mlir import ir, maps_of, position

LAST = (0, 2, 3, 1)  # the axis of a channels-first image at each axis of the channels-last one
FIRST = (0, 3, 1, 2)
SAME = (0, 1, 2, 3)
_POOLING = ("linalg.pooling_nchw_max", "linalg.pooling_nchw_sum")


def is_window(op: ir.Operation, written: Sequence[int] = SAME, read: Sequence[int] = SAME) -> bool:
    """Windows of an image [n, c, row, column], over each channel by itself: pooling, a convolution with a filter a channel.
    written, read: the axis of the result and of the image at each of these."""
    if op.name in _POOLING:
        return written == read == SAME
    if product_of(op) is None or [ir.RankedTensorType(v.type).rank for v in op.operands] != [4, 3, 4]:
        return False
    image, filters, result = ([linear_terms(e) for e in m.results] for m in maps_of(op))
    if any(terms is None for terms in (*image, *filters, *result)):
        return False
    image, result = [image[a] for a in read], [result[a] for a in written]
    batch, channel, *places = (set(terms or {}) for terms in result)
    taps = [set(terms or {}) for terms in filters[1:]]
    windows = [set(terms or {}) for terms in image[2:]]
    return [image[0], image[1], filters[0]] == [result[0], result[1], result[1]] and len(batch | channel) == 2 and \
        all(len(place) == len(tap) == 1 and seen == place | tap for place, tap, seen in zip(places, taps, windows, strict=True))


def window_loops(op: ir.Operation) -> list[int | None]:
    """The loops over images, channels, rows and columns of windows."""
    at = [position(e) for e in maps_of(op)[-1].results]
    return [at[a] for a in (FIRST if is_window(op, FIRST) or is_window(op, FIRST, FIRST) else SAME)]
