"""What a search found for a model, held against what runs untuned, in turns, on batches of the declared lengths.

A search measures operators one by one, in a process of its own. Whether the model gains is seen where it runs: the new kernels
stay if the whole model is faster by more than its rounds leave open; else they are tried operator by operator, those first of
which most is expected, and an operator that gains nothing by itself runs as before. Both models read the same constants, and the
pool gives both the same temporaries, so that it is kernels that differ, not where memory lies.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.compiler.assemble import assemble
from tilewright.compiler.compilation.options import Deterministic
from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.compiler.tuning.dispatch_tables import Tables
from tilewright.compiler.tuning.ragged_demand import batches_of
from tilewright.compiler.verification.random_inputs import Array, batch_inputs
from tilewright.compiler.verification.verify_in_turns import why_other
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.load.devices import device_for
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.log import LOG
from tilewright.runtime.program.artifact import Bundle, Memory
from tilewright.runtime.program.program import Program
from tilewright.runtime.ragged_dim import factors_of

_BATCHES = 4  # of the declared lengths, other ones than those that are searched for or held out
_SEED = 2  # of their draw, behind the two of the search (operator_tuning.py)
_LEAST, _MOST = 8, 96  # rounds of a comparison
_GAIN = 0.005  # share by which the time has to fall, beyond what the rounds leave open
_OPEN = 2.0  # deviations of the median
_SECONDS = 8.0  # of all comparisons, where the search has no limit of time
_SHORT = 0.3  # seconds of the first one at least

Pair = tuple[Callable[[], object], Callable[[], object]]  # calls: old and new


@dataclass(frozen=True)
class Verdict:
    """ratio: of the new model's time to the old one's, the median of the rounds. error: deviation of that median. wrong: what
    tells their results apart; empty where nothing does."""

    ratio: float
    error: float
    rounds: int
    wrong: str = ""

    @staticmethod
    def of(ratios: Sequence[float]) -> Verdict:
        if len(ratios) < _LEAST:
            return Verdict(statistics.median(ratios) if ratios else 1.0, math.inf, len(ratios))
        low, middle, high = statistics.quantiles(ratios, n=4)
        return Verdict(middle, 0.93 * (high - low) / len(ratios) ** 0.5, len(ratios))  # as of a normal distribution

    @property
    def gains(self) -> bool:
        """Is the new model faster by more than its rounds leave open?"""
        return not self.wrong and self.ratio + _OPEN * self.error <= 1 - _GAIN

    @property
    def stands(self) -> bool:
        """Would more rounds hardly change it?"""
        return abs(self.ratio - (1 - _GAIN)) > 2 * _OPEN * self.error

    def __str__(self) -> str:
        return self.wrong or f"{self.ratio:.3f} of the time before, +- {_OPEN * self.error:.3f}, in {self.rounds} rounds"


def in_rounds(pairs: Sequence[Pair], seconds: float, clock: Callable[[], float] = time.perf_counter) -> Verdict:
    """Each round the calls of one pair take turns, the new one first in every other, until the verdict stands or the time is
    over.

    Args:
        pairs: for each batch. clock: seconds.
    """
    begin, ratios = clock(), list[float]()
    verdict = Verdict.of(ratios)
    while len(ratios) < _MOST and not verdict.stands:
        turn, number = divmod(len(ratios), len(pairs))
        taken = [0.0, 0.0]
        for which in ((0, 1), (1, 0))[(turn + number) % 2]:
            start = clock()
            pairs[number][which]()
            taken[which] = clock() - start
        if clock() - begin > seconds:
            break
        ratios.append(taken[1] / taken[0])
        verdict = Verdict.of(ratios)
    return verdict


def kept(model: OutlinedModel, found: Tables, seconds: float | None) -> Bundle:
    """The model with those of the tables that make it faster than untuned.

    Args:
        seconds: for all comparisons and the models that they take, at least one of a fraction of a second; None: some.
    """
    changed = _by_gain(found)
    if not changed:
        return assemble(model, found)
    held = _Held.of(model, found, changed, _SECONDS if seconds is None else seconds)
    if not held.given:
        return assemble(model, found)  # nothing to hold them against
    whole = held.bundle_with(changed)
    verdict = held.compare(whole, max(_SHORT, held.left / (1 + (len(changed) > 1))))
    LOG.info("kernels found for %s: %s", ", ".join(changed.values()), verdict)
    if verdict.gains:
        return held.finished(whole)
    stay, bundle = list[str](), held.untuned
    tried = held.affordable(list(changed)) if len(changed) > 1 else []
    for number, key in enumerate(tried):
        trial = held.bundle_with([*stay, key])
        verdict = held.compare(trial, held.left / (len(tried) - number))
        LOG.info("kernels found for %s alone: %s", changed[key], verdict)
        if verdict.gains:
            stay.append(key)
            bundle = trial
            held.base = function_of(trial)
    return held.finished(bundle)


@dataclass
class _Held:
    """Models with some of the tables that were found, and the constants of one of them.

    changed: keys of the operators that have other tables, with their names. untuned, base: the untuned model, and the model that
    others are held against. given: arguments, by batch. end: of the time, by time.monotonic(). cost: seconds that a model takes.
    """

    model: OutlinedModel
    found: Tables
    changed: Mapping[str, str]
    untuned: Bundle
    stored: Mapping[str, Memory]
    base: CompiledFunction
    given: Sequence[list[Array]]
    end: float
    cost: float
    pace: float = 0.0

    @staticmethod
    def of(model: OutlinedModel, found: Tables, changed: Mapping[str, str], seconds: float) -> _Held:
        begin = time.monotonic()
        made = assemble(model, found.with_untuned(changed))
        cost = time.monotonic() - begin
        untuned = replace(made, constants={digest: made.constants[digest] for digest in made.constants})
        base = function_of(untuned)
        given = [arrays for arrays in _batches(model, made.program) if _runs(base, arrays)]
        return _Held(model, found, changed, untuned, made.constants, base, given, begin + seconds, cost)

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def bundle_with(self, keys: Collection[str]) -> Bundle:
        """The model with the tables that were found for these operators."""
        return assemble(self.model, self.found.with_untuned(self.changed.keys() - keys), self.untuned)

    def compare(self, bundle: Bundle, seconds: float) -> Verdict:
        new, bits = function_of(bundle), self.model.compilation.options.deterministic is Deterministic.BATCH
        begin = time.monotonic()
        for given in self.given:
            wrong = why_other(new.outputs, self.base.call_flat(*given), new.call_flat(*given), bits)
            if wrong:
                return Verdict(math.inf, 0.0, 0, wrong)
        self.pace = time.monotonic() - begin
        pairs = [(partial(self.base.call_flat, *given), partial(new.call_flat, *given)) for given in self.given]
        return in_rounds(pairs, seconds)

    def affordable(self, keys: list[str]) -> list[str]:
        """As many of the first as there is time for."""
        each = self.cost + self.pace * (1 + _LEAST / len(self.given))
        return keys[: int(self.left / max(each, 1e-9))]

    def finished(self, bundle: Bundle) -> Bundle:
        """With constants that are laid out when they are asked for."""
        return replace(bundle, constants=self.stored)


def _batches(model: OutlinedModel, program: Program) -> list[list[Array]]:
    """Arguments for some batches; dims that have nothing to do with them are at their middle."""
    own = {o.dim.name for o in model.plan.ragged} | {o.dim.over for o in model.plan.ragged}
    free = {name: dim.values(3)[len(dim.values(3)) // 2] for name, dim in model.ranges.dims
            if name not in own and not factors_of(name)}
    batches = batches_of(model, _BATCHES, 3 * model.compilation.options.seed + _SEED)
    return [batch_inputs(program, lengths, number, dims=free) for number, lengths in enumerate(batches)]


def _runs(fn: CompiledFunction, arrays: Sequence[Array]) -> bool:
    """Not where the model asserts more of its dims than their ranges say."""
    try:
        fn.call_flat(*arrays)
    except TilewrightError:
        return False
    return True


def function_of(bundle: Bundle) -> CompiledFunction:
    """A model as it can be called, without being saved."""
    program = bundle.program
    return CompiledFunction(program, bundle.code, bundle.constants, device_for(program, bundle.code), llvm_ir=bundle.llvm_ir,
                            threads=program.asked.threads)


def _by_gain(found: Tables) -> dict[str, str]:
    """The operators that have other tables than untuned, by their keys, with their names: those first whose certificate expects
    most, over all shapes."""
    gains = {c.workload: sum(e.default - e.predicted for e in c.expected if e.default) for c in found.certificates}
    return {t.workload: t.name for t in sorted(found.changed, key=lambda t: -gains.get(t.workload, 0.0))}
