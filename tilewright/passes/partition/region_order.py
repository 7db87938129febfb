"""The order of dispatch regions while they grow: does a path lead from one region to another through a third?

Every region has a level, which is below that of each region that reads it; so a path is looked for only between the levels of
its ends, and a question costs what lies between them, not what came before. Operations are added in program order.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Op = TypeVar("Op", bound=Hashable)


@dataclass(eq=False)
class _Region(Generic[Op]):
    """readers: operations added so far that are outside and read a value of the region."""

    members: set[Op]
    readers: set[Op] = field(default_factory=set)
    level: int = 0


class RegionOrder(Generic[Op]):
    """Regions without cycles. visits: how many readers were looked at, for tests of what questions cost."""

    def __init__(self) -> None:
        self._of: dict[Op, _Region[Op]] = {}
        self.visits = 0

    def add(self, op: Op, producers: Iterable[Op]) -> None:
        """A region of one operation; its producers were added before."""
        region = self._of[op] = _Region({op})
        for producer in producers:
            source = self._of[producer]
            source.readers.add(op)
            region.level = max(region.level, source.level + 1)

    def level(self, op: Op) -> int:
        """Above that of each region that the region of `op` reads: an order in which they can be run."""
        return self._of[op].level

    def leads(self, source: Op, reader: Op) -> bool:
        """Does any path lead from the region of `source` to that of `reader`?"""
        return self._leads(source, reader, True)

    def leads_around(self, source: Op, reader: Op) -> bool:
        """Does a path lead from the region of `source` to that of `reader`, which reads it, through another region?"""
        return self._leads(source, reader, False)

    def _leads(self, source: Op, reader: Op, straight: bool) -> bool:
        first, last = self._of[source], self._of[reader]
        seen: set[int] = {id(first), id(last)}
        found: list[tuple[int, int, _Region[Op]]] = []  # highest level first: the nearest to `reader`

        def spread(region: _Region[Op]) -> bool:
            for op in region.readers:
                self.visits += 1
                outside = self._of[op]
                if outside is last and (straight or region is not first):
                    return True
                if id(outside) not in seen and outside.level < last.level:
                    seen.add(id(outside))
                    heapq.heappush(found, (-outside.level, len(seen), outside))
            return False

        if spread(first):
            return True
        while found:
            if spread(heapq.heappop(found)[2]):
                return True
        return False

    def merge(self, source: Op, reader: Op) -> None:
        """One region in place of two, of which the second reads the first, and no path leads around."""
        kept, gone = sorted((self._of[source], self._of[reader]), key=lambda r: len(r.members), reverse=True)
        for op in gone.members:
            self._of[op] = kept
        kept.members |= gone.members
        kept.readers |= gone.readers
        few, many = sorted((kept.readers, kept.members), key=len)
        kept.readers -= {op for op in few if op in many}
        kept.level = max(kept.level, gone.level)
        self._raise(kept)

    def _raise(self, region: _Region[Op]) -> None:
        """Readers above what they read, the lowest first, so that each is looked at once."""
        todo = [(region.level, 0, region)]
        while todo:
            level, _, below = heapq.heappop(todo)
            for op in below.readers if below.level == level else ():
                self.visits += 1
                above = self._of[op]
                if above.level <= level:
                    above.level = level + 1
                    heapq.heappush(todo, (above.level, self.visits, above))
