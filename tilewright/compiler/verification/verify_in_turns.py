"""Old and new model in turns: at every counted shape the new one must be as fast, and give what the old one gives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.tensor import DType

SLOWER = 0.03  # share that a call may take longer than before
_LEAST, _MOST = 5, 25  # rounds of turns at a shape
_BATCH = 0.002  # seconds of a turn, about
_SURE = 2.0  # deviations of the median by which a ratio has to be below or above the bound
_NORM = {DType.F64: 1e-11, DType.F32: 4e-5, DType.F16: 8e-3, DType.BF16: 6e-2}
_COARSE = 0.3

Arrays = Callable[[Mapping[str, int]], Sequence[Any]]


@dataclass(frozen=True)
class Compared:
    """At a shape. ratio: seconds of the new model over those of the old one, the median of rounds. wrong: what tells their
    results apart; empty where nothing does."""

    dims: Mapping[str, int]
    old_seconds: float
    ratio: float
    rounds: int
    wrong: str = ""

    @property
    def good(self) -> bool:
        return not self.wrong and self.ratio <= 1 + SLOWER


def compare(old: CompiledFunction, new: CompiledFunction, dims: Mapping[str, int], arrays: Arrays, bits: bool,
            rest: Callable[[], None] = lambda: None) -> Compared:
    """One shape. bits: results must be equal bit for bit. rest: called before each round."""
    given = arrays(dims)
    wrong = why_other(old, old.call_flat(*given), new.call_flat(*given), bits)
    if wrong:
        return Compared(dims, 0.0, 0.0, 0, wrong)
    calls = (lambda: old.call_flat(*given), lambda: new.call_flat(*given))
    each = max(_seconds(calls[0], 1), 1e-7)
    count = max(1, round(_BATCH / each))
    ratios: list[float] = []
    seconds: list[float] = []
    while len(ratios) < _MOST:
        rest()
        order = (0, 1) if len(ratios) % 2 else (1, 0)
        taken = {place: _seconds(calls[place], count) for place in order}
        ratios.append(taken[1] / taken[0])
        seconds.append(taken[0] / count)
        if len(ratios) >= _LEAST and _is_settled(ratios):
            break
    return Compared(dims, statistics.median(seconds), statistics.median(ratios), len(ratios))


def _is_settled(ratios: Sequence[float]) -> bool:
    """Are more rounds unlikely to move the median over the bound?"""
    low, _, high = statistics.quantiles(ratios, n=4)
    error = (high - low) / len(ratios) ** 0.5
    return bool(abs(statistics.median(ratios) - 1 - SLOWER) > _SURE * error)


def _seconds(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin


def why_other(fn: CompiledFunction, first: Any, second: Any, bits: bool) -> str:
    """What tells two results of a model apart: bits, NaN and inf, or more than two ways to round may differ by."""
    names = [a.name for a in fn.outputs]
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
