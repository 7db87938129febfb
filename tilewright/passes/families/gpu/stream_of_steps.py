"""StreamOfSteps: the steps of all tiles shared evenly among workers, and the sums of tiles that several of them have a part of.

Stream-K with whole tiles first (Osama et al., Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
Multiplication on the GPU, PPoPP 2023, sections 4 and 5.3). Each worker takes as many whole tiles as all of them can have, but
for one; what is left, less than two tiles for each, is a row of steps of which each takes as many as the others. A tile that
ends with one worker and begins with another leaves its sums in the workspace, and a second launch adds them up in the order of
k. The number of workers is the configuration's, not that of the blocks which a device holds: a block takes the work of several
where there are fewer, so that the same sums are added in the same order on every device. Nobody waits for another block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.passes.codegen.emit import all_of, loop, when
from tilewright.passes.codegen.index import Index, select
from tilewright.passes.mlir import ir


@dataclass(frozen=True)
class Piece:
    """Steps `first` up to `end` of tile `number`. whole: are these all of the tile's steps? slot: where its sums go otherwise,
    among two for each worker; None where tiles are always whole."""

    number: Index
    first: Index
    end: Index
    whole: ir.Value | bool = True
    slot: Index | None = None


@dataclass(frozen=True)
class StreamOfSteps:
    """Inside a launch. tiles: how many there are. steps: of each. workers: that share them, as the configuration says."""

    tiles: Index
    steps: Index
    workers: int

    @property
    def _length(self) -> Index:
        """Of a tile in the row of steps: one that has none is there too, since its results are stored."""
        return self.steps.max(1)

    @property
    def rounds(self) -> Index:
        """Whole tiles that every worker takes first."""
        return (self.tiles // self.workers - 1).max(0)

    @property
    def _shared(self) -> Index:
        """Steps in the row."""
        return (self.tiles - self.rounds * self.workers) * self._length

    def first(self, worker: Index) -> Index:
        """The first step in the row of a worker; that of the one behind the last is their number."""
        each, more = self._shared // self.workers, self._shared % self.workers
        return worker * each + worker.min(more)

    def worker(self, step: Index) -> Index:
        """Whose a step of the row is."""
        each, more = self._shared // self.workers, self._shared % self.workers
        longer = more * (each + 1)
        return select(step.lt(longer), step // (each + 1), more + (step - longer).max(0) // each.max(1))

    def over(self, worker: Index, body: Callable[[Piece, Index], None], done: Index, index: ir.Type) -> Index:
        """`body(piece, steps done before)` for the pieces of a worker, in their order; the steps done behind them. done: before
        them."""
        rounds, length = self.rounds, self._length
        begin, end = self.first(worker), self.first(worker + 1)
        tile = begin // length
        several = select(begin.lt(end), end.ceildiv(length) - tile, Index(0), type_=index)

        def one(place: Index, held: ir.Value) -> list[ir.Value]:
            alone = place.lt(rounds)
            behind = tile + (place - rounds)
            first = select(alone, Index(0), (begin - behind * length).max(0), type_=index)
            last = select(alone, length, (end - behind * length).min(length), type_=index)
            number = select(alone, worker + place * self.workers, rounds * self.workers + behind, type_=index)
            whole = all_of([first.eq(0), last.eq(length)])
            slot = select(first.eq(0), begun(worker), continued(worker))
            body(Piece(number, first, last.min(self.steps), whole, slot), Index(held))
            return [(Index(held) + (last.min(self.steps) - first)).value(index)]

        return Index(loop(Index(0), rounds + several, 1, one, [done.value(index)], index)[0])

    def cut(self, worker: Index, body: Callable[[Index, Index], None]) -> None:
        """`body(number, last)` where worker is the first to go on with a tile that the one before it began: the tile's number,
        and the last worker that has a part of it."""
        length, begin = self._length, self.first(worker)
        tile = begin // length
        start = tile * length
        goes_on = all_of([start.lt(begin), self.first(worker - 1).le(start)])
        when(goes_on, lambda: body(self.rounds * self.workers + tile, self.worker(start + length - 1)))


def begun(worker: Index) -> Index:
    """Slot of the sums of the tile that a worker began and did not end."""
    return worker * 2 + 1


def continued(worker: Index) -> Index:
    """Slot of the sums of the tile that a worker goes on with."""
    return worker * 2
