"""The chosen kernels beside what runs untuned, region by region of the range, before the choice is made (judged.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.dispatch import select
from tilewright.search.protocols import RunnerInTurns
from tilewright.search.search_strategy.judged import OPEN_TURNS, TURNS, WITHIN, Judged, Pair, Variant
from tilewright.search.search_strategy.ledger import SearchLedger
from tilewright.search.search_strategy.selection import VERIFIED, Selection, verified
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Untuned

_ROUNDS = 3  # of a request at least; of short calls it takes more
Rivals = tuple[tuple[TileConfig, int], ...]  # what is dispatched at a shape and what runs untuned, with their threads


def compare(ledger: SearchLedger, runner: RunnerInTurns) -> None:
    """Time what is hoped for beside what runs untuned until the choice stands or the time for that is over: at shapes that stand
    for the range, and at the ends of each region of it that would be dispatched to another kernel. Each shape has its turn before
    any has its next one, on operands of its own; those first where most is to gain. What was faster so far at a shape has all its
    turns before another one is tried there."""
    measurer = ledger.measurer
    stand = verified(ledger.task)
    order = [stand[i] for i in np.random.default_rng(ledger.options.seed).permutation(len(stand))]
    tried: Counter[tuple[Dims, Rivals]] = Counter()
    begun: dict[Dims, Rivals] = {}
    while ledger.verifying and (chosen := ledger.selection(hopeful=True)) is not None:
        usual = ledger.untuned()
        judged = ledger.judged()
        pairs = {s: rivals_at(ledger, chosen, usual, s) for s in [*order, *region_ends(ledger, chosen, usual)]}
        pairs |= {s: both for s, both in begun.items() if _is_open(ledger, judged, s, both, tried[s, both], promising=True)}
        open_ = [s for s, both in pairs.items() if _is_open(ledger, judged, s, both, tried[s, both])]
        if not open_:
            return
        gain = dict(zip(ledger.task.points.shapes, chosen.untuned / chosen.seconds, strict=True))
        for shape in sorted(open_, key=lambda s: -gain[s]):
            if not ledger.verifying:
                return
            both = pairs[shape]
            tried[shape, both] += 1
            if len(both) == 1:
                measurer.measure(both[0][0], shape, both[0][1])
            else:
                known = judged.at(_pair(both), shape)
                measurer.in_turns(runner, both, shape, _ROUNDS, WITHIN[0] if known is None else known.fewest)
                begun[shape] = both
            ledger.report("verifying")
        ledger.outdate()


def _is_open(ledger: SearchLedger, judged: Judged, shape: Dims, both: Rivals, tried: int, promising: bool = False) -> bool:
    """Is there more to measure? What runs untuned is measured once where nothing else would run; what crashed has its tries.

    promising: only where it was faster so far."""
    if len(both) == 1:
        return not tried and not ledger.measurer.turns(both[0][0], shape, both[0][1])
    found = judged.at(_pair(both), shape)
    if found is None:
        return tried < TURNS and not promising
    return not found.settled and tried < OPEN_TURNS and not (promising and found.mean >= 0)


def _pair(both: Rivals) -> Pair:
    other, usual = ((config_text(config), threads) for config, threads in both)
    return other, usual


def rivals_at(ledger: SearchLedger, chosen: Selection, usual: Untuned, shape: Dims) -> Rivals:
    """What is dispatched at a shape and what would run untuned; one where they are the same."""
    configs, root = usual
    leaf, plain = chosen.leaf(dict(shape)), select(root, dict(shape))
    both = ((ledger.lattice.configs[chosen.configs[leaf.kernel]], leaf.threads), (configs[plain.kernel], plain.threads))
    return tuple(dict.fromkeys((config, threads or ledger.options.threads) for config, threads in both))


def region_ends(ledger: SearchLedger, chosen: Selection, usual: Untuned) -> list[Dims]:
    """Shapes beside which, along one dim, another kernel is dispatched or would run untuned, where it is another one that is
    dispatched at them: some of them, evenly, where there are many."""
    shapes = ledger.task.points.without(ledger.task.held_out).shapes
    at = {shape: _texts(rivals_at(ledger, chosen, usual, shape)) for shape in shapes}
    found: dict[Dims, None] = {}
    for axis in range(len(shapes[0])):
        along = sorted(shapes, key=_line_of(axis))
        for before, after in pairwise(along):
            if _line_of(axis)(before)[0] == _line_of(axis)(after)[0] and at[before] != at[after]:
                found.update({s: None for s in (before, after) if len(at[s]) > 1})
    kept = np.unique(np.round(np.linspace(0, len(found) - 1, min(VERIFIED, len(found)))).astype(int))
    ends = list(found)
    return [ends[i] for i in kept]


def _texts(both: Rivals) -> tuple[Variant, ...]:
    return tuple((config_text(config), threads) for config, threads in both)


def _line_of(axis: int) -> Callable[[Dims], tuple[Dims, int]]:
    """The other extents of a shape, and that of this axis."""
    return lambda shape: ((*shape[:axis], *shape[axis + 1 :]), shape[axis][1])
