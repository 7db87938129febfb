"""Which calls of a program are launched together: rows and elements between two products, independent ones side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, groupby, pairwise

from tilewright.compiler.host.plan_steps import Launch
from tilewright.passes.spaces.workload import Kind

LARGEST = 512  # calls of one launch
ALONE = 64  # calls of a program up to which each has its own code: a launch is then 5 to 8 of some 36 ns shorter
LEAST = 4  # calls that are alike, from which they are one launch of a GPU
_ALONE = (Kind.CONTRACTION, Kind.ATTENTION)  # they keep all threads busy, and what lies between them stays there


def phase_numbers(kinds: Sequence[Kind], producers: Sequence[Sequence[int]]) -> list[int]:
    """The number of the phase that each call is part of, calls being given in an order that can be run.

    A call joins the first phase behind all of its producers that has room, but no phase in front of a product or an attention:
    values live no longer than between two of those. A product is a phase of its own.

    Args:
        kinds: of each call's workload.
        producers: numbers of the calls that each one reads.
    """
    found: list[int] = []
    sizes: list[int] = []
    first = 0  # the first phase that calls may still join
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


def in_phases(found: Sequence[int]) -> list[list[int]]:
    """Numbers of the calls of each phase, in an order that can be run. found: the phase of each call."""
    order = sorted(range(len(found)), key=found.__getitem__)
    return [list(group) for _, group in groupby(order, key=found.__getitem__)]


def groups_alike(keys: Sequence[tuple[int, Hashable]]) -> list[list[int]]:
    """Numbers of the calls that are one launch each, in an order that can be run: those of a phase that are alike, where they are
    LEAST or more. keys: of each call its phase, and what is equal for those that are alike."""
    groups: dict[tuple[int, Hashable], list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    if all(len(group) < LEAST for group in groups.values()):
        return [[number] for number, _ in enumerate(keys)]
    found = [groups[at] for at in sorted(groups, key=lambda at: at[0])]
    return [part for group in found for part in ([group] if len(group) >= LEAST else [[number] for number in group])]


def launches_of(sizes: Sequence[int], kinds: Sequence[Kind], first: int) -> list[Launch]:
    """The launches of phases: those that follow each other are one, until it is full; a product is one alone.

    Args:
        sizes: of each phase. kinds: of its workloads, of which a product is the only one.
        first: number of the first call; the calls of the phases follow each other.
    """
    found: list[tuple[int, ...]] = []
    was_alone = True
    for size, kind in zip(sizes, kinds, strict=True):
        is_alone = kind in _ALONE
        if was_alone or is_alone or sum(found[-1]) + size > LARGEST:
            found.append(())
        found[-1] = (*found[-1], size)
        was_alone = is_alone
    launches = []
    for counts in found:
        launches.append(Launch(tuple(range(first, first + sum(counts))), counts if len(counts) > 1 else ()))
        first += sum(counts)
    return launches


def launches_in_order(sizes: Sequence[int], first: int) -> list[Launch]:
    """A launch for each group of calls of these sizes. first: number of the first call."""
    ends = list(accumulate(sizes, initial=first))
    return [Launch(tuple(range(begin, end))) for begin, end in pairwise(ends)]
