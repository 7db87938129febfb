"""The keys that some query of a block sees: from which to which they are computed, by places (causal) and by run-time masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.passes.codegen.attention_seen import SeenKeys
from tilewright.passes.codegen.emit import all_of, first_where, integer_type, when_values
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.families.host.host_attention_softmax import VectorSoftmax
from tilewright.passes.families.host.host_matmul_rows import Loops
from tilewright.passes.mlir import arith, ir, vector


@dataclass(frozen=True)
class KeySpan:
    """Keys that follow each other: the first one, how many, and how many of their copied block come before them, whole panels."""

    first: Index
    count: Index
    skipped: Index = Index(0)  # noqa: RUF009 - immutable

    def within(self, start: Index, end: Index, panel: int, lanes: int) -> KeySpan:
        """Those in [start, end), from a whole panel on, to a whole vector where there are as many; none where start is above."""
        skipped = (start - start % panel - self.first).max(0).known_multiple(panel)
        count = ((end - self.first).max(0).ceildiv(lanes) * lanes).min(self.count)
        return KeySpan(self.first + skipped, (count - skipped).max(0), skipped)


@dataclass(frozen=True)
class KeyRange:
    """seen: the run-time mask, None where places say all."""

    softmax: VectorSoftmax
    seen: SeenKeys | None

    @staticmethod
    def of(softmax: VectorSoftmax) -> KeyRange:
        """Logits that are a multiple of the scores but for the mask by places have no other mask."""
        return KeyRange(softmax, None if softmax.hidden.scale is not None else SeenKeys.of(softmax.view))

    @property
    def narrows(self) -> bool:
        """Is there a mask?"""
        return self.softmax.hidden.reach is not None or self.seen is not None

    def bounds(self, points: Sequence[Loops]) -> tuple[Index, Index]:
        """First and end of the keys that the queries at the points see, or more keys; end <= first where they see none."""
        limits = self.softmax.limits(points, self.softmax.evaluator.emit(self.softmax.view.keys))
        end = limits[0]
        for limit in limits[1:]:
            end = end.max(limit)
        if self.seen is None:
            return Index(0), end
        index, seen, zero = self.softmax.scores.index, self.seen, Index(0)
        asked = points if seen.by_row else points[:1]
        found = when_values(end.ge(self.softmax.lanes), [zero.value(index), end.value(index)],
                            lambda: [x.value(index) for x in self._searched(seen, asked, end)])
        return Index(found[0]), Index(found[1])

    def _searched(self, seen: SeenKeys, points: Sequence[Loops], end: Index) -> tuple[Index, Index]:
        """Vectors of keys are asked from both ends on, up to the first with a key that is seen: what is asked is what is saved,
        and nothing beyond the mask is read."""
        lanes, index = self.softmax.lanes, self.softmax.scores.index
        count = end.ceildiv(lanes)

        def front(i: Index) -> Index:
            return (i * lanes).min(end - lanes)

        def back(i: Index) -> Index:
            return (end - (i + 1) * lanes).max(0)

        def asked(at: Index, some: Sequence[Loops]) -> ir.Value:
            keys = Index.ramp(at, lanes)
            flags = [seen.at(self.softmax.evaluator, point, keys) for point in some]
            together = flags[0]
            for flag in flags[1:]:
                together = arith.ori(together, flag)
            return vector.reduction(integer_type(1), vector.CombiningKind.OR, together)

        def first_asked(point: Loops, i: Index) -> ir.Value:
            return asked(front(i), [point])

        after = first_where(count, lambda i: asked(back(i), points), index)
        last = select(after.lt(count), back(after) + lanes, Index(0))
        if not seen.lenient:
            return front(first_where(count, lambda i: asked(front(i), points), index)), last
        firsts = [first_where(count, partial(first_asked, point), index) for point in points]
        low = firsts[0]
        for first in firsts[1:]:
            low = low.min(first)
        all_see = all_of([first.lt(count) for first in firsts])
        return select(all_see, front(low), Index(0)), select(all_see, last, end)

