"""Spans of a result cut at its borders: within a part of each, no element chooses where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.passes.codegen.borders import Border
from tilewright.passes.codegen.emit import when
from tilewright.passes.codegen.evaluator import Evaluator
from tilewright.passes.codegen.index import Index

Span = tuple[Index, Index]  # begin and end
Spans = Mapping[int, Span]  # by axis of the result


def each_part(ev: Evaluator, left: Sequence[Border], where: Sequence[Index], spans: Spans, body: Callable[[Spans], None]) -> None:
    """Emit `body` for each part that the borders leave of some spans, and for what lies in one part alone a choice in front.

    left: borders, those along axes without a span first. where: the coordinates along these.
    """
    if not left:
        body(spans)
        return
    border = left[0]
    ends, key = [ev.emit(e) for e in border.ends], (border.op, border.own)

    def part(number: int, spans: Spans) -> None:
        ev.parts[key] = number
        rest = [b for b in left[1:] if b.op != border.op or not border.settles(number)]
        each_part(ev, rest, where, spans, body)
        del ev.parts[key]

    def choose(number: int) -> None:
        if number == len(ends):
            part(number, spans)
        else:
            when(where[border.axis].lt(ends[number]), lambda: part(number, spans), lambda: choose(number + 1))

    if border.axis not in spans:
        choose(0)
        return
    lo, hi = spans[border.axis]
    begins = [lo, *(e.max(lo) for e in ends)]
    for number, (first, last) in enumerate(zip(begins, [*ends, hi], strict=True)):
        part(number, {**spans, border.axis: (first, last.min(hi).max(first))})
