"""Two models of one graph beside each other: equal results first, then the time of one over that of the other at some shapes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.compiler.verification.keep_what_gains import Verdict
from tilewright.compiler.verification.random_inputs import Array, random_inputs
from tilewright.compiler.verification.verify_in_turns import why_other
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.host.benchmark import Timing, time_beside
from tilewright.runtime.program.program import Program

SEED = 5
_TURNS, _LEAST = 0.2, 0.01  # seconds of rounds at a shape, at most and at least
_FEWEST = 8  # rounds

Ratios = Callable[[Sequence[Array], Timing], list[float]]


@dataclass(frozen=True)
class Called:
    """A model that can be called with a host array for each of its inputs."""

    program: Program
    call: Callable[..., object]

    def results(self, arrays: Sequence[Array]) -> object:
        """Of arguments that stay as they are."""
        return self.call(*(a.copy() for a in arrays) if self.program.donated else arrays)


@dataclass(frozen=True)
class Shapes:
    """Where models are compared. bits: are results to be equal bit for bit?"""

    dims: Sequence[Mapping[str, int]]
    bits: bool


def verdict_of(base: Called, new: Called, shapes: Shapes, ratios: Ratios, end: float) -> Verdict:
    """The time of one model over that of another: the geometric mean of the shapes.

    Args:
        ratios: with arguments and how to time, the new model's time over the other's, a figure a round. end: of the time, by
            time.monotonic().
    Raises:
        CudaError: a GPU failed.
    """
    given = [g for g in (_arrays(base, dims) for dims in shapes.dims) if g is not None]
    found = []
    for number, arrays in enumerate(given):
        wrong = why_other(base.program.outputs, base.results(arrays), new.results(arrays), shapes.bits)
        if wrong:
            return Verdict(math.inf, 0.0, 0, wrong)
        left = (end - time.monotonic()) / (len(given) - number)
        timing = Timing(longest=max(_LEAST, min(_TURNS, left)), fewest=_FEWEST)
        found.append(Verdict.of(ratios(arrays, timing)))
    if not found:
        return Verdict(1.0, math.inf, 0)
    ratio = math.exp(statistics.fmean(math.log(v.ratio) for v in found))
    error = math.sqrt(sum(v.error**2 for v in found)) / len(found)
    return Verdict(ratio, error, sum(v.rounds for v in found))


def ratios_here(base: Called, new: Called) -> Ratios:
    """By the clock of this process, for models on the host."""
    return lambda arrays, timing: time_beside(partial(new.call, *arrays), partial(base.call, *arrays), timing)


def _arrays(model: Called, dims: Mapping[str, int]) -> list[Array] | None:
    """Arguments at a shape; None where the model asserts more of its dims than their ranges say."""
    try:
        arrays = random_inputs(model.program, dims, SEED)
        model.results(arrays)
    except CudaError:
        raise
    except TilewrightError:
        return None
    return arrays
