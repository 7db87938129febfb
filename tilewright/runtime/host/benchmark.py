"""Timing of short native calls: batches long enough for the clock, repeated until the median is steady."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from tilewright.runtime.host.giving_way import give_way


@dataclass(frozen=True)
class Timing:
    """How to time: seconds of warm-up, seconds of a batch at least, batches at least and at most, relative error wanted, seconds
    of a turn at least. longest: seconds after which what was timed so far has to do, for calls that take long. rest: seconds
    without work for each second of a batch or of a round, at least, so that others have the core in between (giving_way.py); of
    the limits they count for the last one alone. whole: a batch, a round or a warm-up is done within it (whole_timing.py); what
    it waits for counts as a rest."""

    warmup: float = 0.002
    batch: float = 0.001
    fewest: int = 5
    most: int = 40
    error: float = 0.02
    turn: float = 0.0002
    longest: float = 2.0
    rest: float = 0.0
    whole: Callable[[], AbstractContextManager[None]] = nullcontext


_LONGEST_REST = 0.2  # seconds
_PAIR = 2  # figures at least, of which a middle and a spread can be told
_WAKE, _LONG = Timing(warmup=0.00006), 0.001  # seconds of a call that needs no others before it
_SLOW, _FEW = 0.005, 3  # seconds of a call that lasts over what disturbs short ones, and rounds of such at least


def time_call(call: Callable[[], object], timing: Timing = Timing()) -> list[float]:
    """Seconds per call, one figure a batch, until the interquartile range of the median is within the wanted error."""
    begin = time.perf_counter()
    repeat = max(1, round(timing.batch / _warmed_up(call, timing)))
    times: list[float] = []
    parts = _Parts(timing, call)
    while len(times) < timing.most:
        with parts.part():
            times.append(time_batch(call, repeat))
        if len(times) >= timing.fewest and spread(times) <= timing.error:
            break
        if time.perf_counter() - begin > timing.longest:
            break
    return times


class _Parts:
    """Parts of what is timed, with rests between them. worked: seconds of the last one, with all that it needed."""

    def __init__(self, timing: Timing, *calls: Callable[[], object]) -> None:
        self.timing, self.calls, self.worked = timing, calls, 0.0

    @contextmanager
    def part(self) -> Iterator[float]:
        """Rest for the last part; then what is done within is whole, with operands brought back. Yields seconds of the rest."""
        begin = time.perf_counter()
        _rest(self.timing, self.worked)
        with self.timing.whole():
            held = time.perf_counter()
            yield held - begin + self._bring_back()
            self.worked = time.perf_counter() - held

    def _bring_back(self) -> float:
        begin = time.perf_counter()
        for call in self.calls if self.timing.rest else ():
            call()
        return time.perf_counter() - begin


def _warmed_up(call: Callable[[], object], timing: Timing) -> float:
    begin = time.perf_counter()
    with timing.whole():
        found = warm_up(call, timing)
    _rest(timing, time.perf_counter() - begin)
    return found


def _rest(timing: Timing, worked: float) -> None:
    if timing.rest and worked:
        give_way(min(timing.rest * worked, _LONGEST_REST))


def time_beside(call: Callable[[], object], other: Callable[[], object], timing: Timing = Timing()) -> list[float]:
    """A call's time over another's, one figure a round of a turn each, until their median is within the wanted error or they took
    as long as the most batches. Turns are so short that both have the speed that the machine just has, which changes many times
    a second where others share its cores."""
    whole = time.perf_counter()
    costs = [_warmed_up(c, timing) for c in (call, other)]
    calls = [(c, max(1, round(timing.turn / each)), each < _LONG) for c, each in zip((call, other), costs, strict=True)]
    ratios: list[float] = []
    fewest = min(timing.fewest, _FEW) if min(costs) > _SLOW else timing.fewest
    begin, parts = time.perf_counter(), _Parts(timing, call, other)
    while len(ratios) < fewest or time.perf_counter() - begin < timing.most * timing.batch:
        with parts.part() as rested:
            begin, first = begin + rested, len(ratios) % 2
            times = {place: time_turn(*calls[place]) for place in (first, 1 - first)}
        ratios.append(times[0] / times[1])
        enough = len(ratios) >= fewest and time.perf_counter() - begin >= timing.fewest * timing.batch
        if enough and spread(ratios) <= timing.error:
            break
        if len(ratios) >= _PAIR and time.perf_counter() - whole > timing.longest:
            break
    return ratios


def time_in_turns(calls: Sequence[Callable[[], object]], rounds: int, timing: Timing = Timing()) -> list[tuple[float, ...]]:
    """Seconds per call of each, one row a round, in which each has a turn: so many rounds, of short calls as many as the fewest
    batches of each take, and no more than one after the longest time. Every other round goes backwards."""
    whole = time.perf_counter()
    counts = [(max(1, round(timing.turn / each)), each < _LONG) for each in (_warmed_up(c, timing) for c in calls)]
    found: list[tuple[float, ...]] = []
    begin, parts = time.perf_counter(), _Parts(timing, *calls)
    while len(found) < rounds or time.perf_counter() - begin < timing.fewest * timing.batch * len(calls):
        with parts.part() as rested:
            begin, times = begin + rested, [0.0] * len(calls)
            for place in range(len(calls))[:: 1 - 2 * (len(found) % 2)]:
                times[place] = time_turn(calls[place], *counts[place])
        found.append(tuple(times))
        if time.perf_counter() - whole > timing.longest:
            break
    return found


def warm_up(call: Callable[[], object], timing: Timing) -> float:
    """Seconds per call, roughly."""
    start = time.perf_counter()
    count = 0
    while count < 1 or time.perf_counter() - start < timing.warmup:
        call()
        count += 1
    return max((time.perf_counter() - start) / count, 1e-9)


def time_turn(call: Callable[[], object], count: int, wake: bool) -> float:
    """Seconds per call of a batch. wake: after calls that bring operands into cache and wake threads that slept."""
    if wake:
        warm_up(call, _WAKE)
    return time_batch(call, count)


def time_batch(call: Callable[[], object], count: int) -> float:
    """Seconds per call."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def spread(times: list[float]) -> float:
    """`dispersion`, shrunk by the square root of the count: the error of the median."""
    return float(dispersion(times) / len(times) ** 0.5)


def dispersion(times: list[float]) -> float:
    """Half the interquartile range over the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return float((high - low) / 2 / middle)
