"""Order of calls in which those that may write over a donated argument come behind those that read it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence


def readers_first(producers: Sequence[Sequence[int]], over: Mapping[int, Iterable[int]]) -> tuple[list[int], list[list[int]]]:
    """Numbers of calls in an order that can be run, as near to theirs as can be, and what each call in this order waits for, by
    its place in it.

    Args:
        producers: numbers of the calls that each one reads, all of them smaller than its own.
        over: call -> those that read what it would write over. One that needs what the call gives is behind it anyway, and reads
            memory of its own.
    """
    waits = [list(p) for p in producers]
    moved = False
    for writer, readers in over.items():
        for reader in dict.fromkeys(readers):
            if (moved or reader > writer) and _needs(waits, reader, writer):
                continue
            waits[writer].append(reader)
            moved = moved or reader > writer
    order = _order(waits) if moved else list(range(len(waits)))
    place = {number: at for at, number in enumerate(order)}
    return order, [[place[n] for n in waits[number]] for number in order]


def _needs(waits: Sequence[Sequence[int]], call: int, other: int) -> bool:
    """Does a call wait for another one, or for what waits for it?"""
    todo, seen = [call], set[int]()
    while todo:
        number = todo.pop()
        if number == other:
            return True
        if number not in seen:
            seen.add(number)
            todo += waits[number]
    return False


def _order(waits: Sequence[Sequence[int]]) -> list[int]:
    """Each call behind what it waits for, the smallest number that is ready first."""
    readers: list[list[int]] = [[] for _ in waits]
    left = [len(set(each)) for each in waits]
    for number, each in enumerate(waits):
        for other in set(each):
            readers[other].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    found: list[int] = []
    while ready:
        found.append(number := heapq.heappop(ready))
        for reader in readers[number]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    return found
