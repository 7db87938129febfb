"""Old and new model in turns: at every counted shape the new one must be as fast, and give what the old one gives."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import Argument
from tilewright.runtime.tensor import DType

SLOWER = 0.03  # share that a call may take longer than before
_LEAST, _MOST = 8, 120  # rounds of turns at a shape
_LONGEST = 10.0  # seconds of turns at a shape, after the least rounds
_BATCH = 0.002  # seconds of a turn, about
_DOUBT = 0.005  # that the median of all rounds there could be lies beyond a bound
_NORM = {DType.F64: 1e-11, DType.F32: 4e-5, DType.F16: 8e-3, DType.BF16: 6e-2}
_COARSE = 0.3

Arrays = Callable[[Mapping[str, int]], Sequence[Any]]


@dataclass(frozen=True)
class Compared:
    """At a shape. ratio: seconds of the new model over those of the old one, the median of rounds. most: what it is at most, by
    all that the rounds leave open. wrong: what tells their results apart; empty where nothing does."""

    dims: Mapping[str, int]
    old_seconds: float
    ratio: float
    rounds: int
    wrong: str = ""
    most: float = 1.0

    @property
    def good(self) -> bool:
        """Is the new model shown to be no slower than it may be? Not where noise leaves that open."""
        return not self.wrong and self.most <= 1 + SLOWER

    def __str__(self) -> str:
        shown = "slower" if self.ratio > 1 + SLOWER else "not shown to be as fast"
        return self.wrong or (f"{shown} at {dict(self.dims)}: {self.ratio:.3f} of the time before, at most {self.most:.3f}, "
                              f"in {self.rounds} rounds")


def compare(old: CompiledFunction, new: CompiledFunction, dims: Mapping[str, int], arrays: Arrays, bits: bool,
            timed: Callable[[], AbstractContextManager[None]] = nullcontext) -> Compared:
    """One shape. bits: results must be equal bit for bit. timed: each round is done within it."""
    given = arrays(dims)
    wrong = why_other(old.outputs, old.call_flat(*given), new.call_flat(*given), bits)
    if wrong:
        return Compared(dims, 0.0, 0.0, 0, wrong)
    calls = (lambda: old.call_flat(*given), lambda: new.call_flat(*given))
    with timed():
        count = max(1, round(_BATCH / max(_seconds(calls[0], 1), 1e-7)))

    def turn(order: Sequence[int]) -> list[float]:
        taken = [0.0, 0.0]
        with timed():
            for place in order:
                taken[place] = _seconds(calls[place], count) / count
        return taken

    return in_turns(dims, turn, _LONGEST / count)


def in_turns(dims: Mapping[str, int], turn: Callable[[Sequence[int]], Sequence[float]], longest: float) -> Compared:
    """Rounds until they show whether the new model is slower than it may be, or for so many seconds of calls.

    Args:
        turn: in which order the old (0) and the new model (1) run; returns the seconds of a call of each.
    """
    ratios, seconds, spent = list[float](), list[float](), 0.0
    while True:
        old, new = turn((0, 1) if len(ratios) % 2 else (1, 0))
        ratios.append(new / old)
        seconds.append(old)
        spent += old + new
        low, high = median_within(ratios)
        is_open = len(ratios) < _LEAST or low <= 1 + SLOWER < high
        if not is_open or len(ratios) >= _MOST or (len(ratios) >= _LEAST and spent > longest):
            return Compared(dims, statistics.median(seconds), statistics.median(ratios), len(ratios), most=high)


def median_within(values: Sequence[float]) -> tuple[float, float]:
    """What the median that values are drawn around is at least and at most, each with a doubt of `_DOUBT`: the sign test's
    interval, which knows no distribution (Conover, Practical Nonparametric Statistics, 3.2)."""
    count, beyond, doubt = len(values), 0, 0.5 ** len(values)
    if doubt > _DOUBT:
        return -math.inf, math.inf
    while (doubt := doubt + math.comb(count, beyond + 1) * 0.5 ** count) <= _DOUBT:
        beyond += 1
    ordered = sorted(values)
    return ordered[beyond], ordered[count - 1 - beyond]


def _seconds(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


def why_other(outputs: Sequence[Argument], first: Any, second: Any, bits: bool) -> str:
    """What tells two results of a model apart: bits, NaN and inf, or more than two ways to round may differ by."""
    names = [a.name for a in outputs]
    pair = ((r if isinstance(r, tuple) else (r,)) for r in (first, second))
    for name, a, b in zip(names, *pair, strict=True):
        exact = bits or a.dtype.kind in "iub"
        if exact:
            if a.tobytes() != b.tobytes():
                return f"{name}: {int((a != b).sum())} of {a.size} elements have other bits"
            continue
        wide, other = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(wide) & np.isfinite(other)
        if not np.array_equal(np.where(finite, 0.0, wide), np.where(finite, 0.0, other), equal_nan=True):
            return f"{name}: NaN and inf are at other places"
        norm = float(np.linalg.norm((wide - other)[finite])) / (float(np.linalg.norm(wide[finite])) or 1.0)
        bound = _NORM.get(DType.of(a.dtype), _COARSE)
        if norm > bound:
            return f"{name}: norm of the difference {norm:.1e}; wanted at most {bound:.0e}"
    return ""
