"""Which calls of a program are launched together: independent ones that rows and elements keep busy, ready at the same point."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.spaces.workload import Kind

LARGEST = 512  # calls of one launch
_ALONE = (Kind.CONTRACTION, Kind.ATTENTION)  # they keep all threads busy, and what lies between them stays there


def launch_numbers(kinds: Sequence[Kind], producers: Sequence[Sequence[int]]) -> list[int]:
    """The number of the launch that each call is part of, calls being given in an order that can be run.

    A call joins the first launch behind all of its producers that has room, but no launch in front of a product or an attention:
    values live no longer than between two of those. A product is a launch of its own.

    Args:
        kinds: of each call's workload.
        producers: numbers of the calls that each one reads.
    """
    found: list[int] = []
    sizes: list[int] = []
    first = 0  # the first launch that calls may still join
    for number, kind in enumerate(kinds):
        ready = max((found[p] + 1 for p in producers[number]), default=0)
        at = len(sizes)
        if kind not in _ALONE:
            at = next((n for n in range(max(ready, first), len(sizes)) if sizes[n] < LARGEST), at)
        if at == len(sizes):
            sizes.append(0)
        if kind in _ALONE:
            first = at + 1
        sizes[at] += 1
        found.append(at)
    return found
