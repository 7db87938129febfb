"""BeliefPool: the beliefs of all arms of a model. Similar arms share a prior, so that a fresh arm is not blind.

Samples are re-weighted where a prior has changed, which costs next to nothing (importance sampling), and drawn again where an arm
has trials of its own. With `draws` those too only re-weight them, as long as enough of them count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.search.space.array_types import Floats
from tilewright.search.task_scheduler.belief import (
    Belief,
    Data,
    EmceeSampler,
    Hyperprior,
    Jumps,
    Prediction,
    Sampler,
    fit,
    posterior,
    relative,
)
from tilewright.search.task_scheduler.tuning_curve import HIGH, JUMP, LOW, log_power

_FLOOR = np.array([0.15, 0.4, 0.15, 0.4])
_DRAWS = 2048
_ENOUGH = 4  # points from which an arm tells others something
_FEW = 20  # trials a jump, before anything is known
_LEVELS = 200
_LEAST = 20.0  # effective samples below which re-weighting is not trusted
_COUNTED, _KEPT = 100.0, 400  # draws that have to count, and samples that are made of them
_ROUNDS, _SPREAD, _FREEDOM = 16, 40.0, 5.0  # of draws; those that count for the next round; degrees of freedom of its tails
_SHORT = (120, 72, 2)  # steps of a chain, those that are dropped, of which one each is kept
_NARROWEST = np.array([1e-5, 1e-3, 1e-3, 1e-3])  # deviations of a round's draws, at least
_LEFT = 0.25  # share of the samples that new trials have to leave

# arm -> (group of similar arms, trials, throughput as a share of the peak, trials that the next slot holds)
Histories = Mapping[str, tuple[str, Floats, Floats, float]]


@dataclass(frozen=True)
class BeliefOptions:
    """segments: cut the curve at jumps. shared: learn the prior from similar arms. Both off only for ablations. draws: of the
    prior, which are weighted by what was seen; where enough of them count no chain is run, which takes longer. 0: none."""

    segments: bool = True
    shared: bool = True
    seed: int = 0
    draws: int = 0


class FitCache:
    """Beliefs by the digest of all that decides them."""

    def __init__(self) -> None:
        self._found: dict[str, Belief] = {}
        self.hits = 0

    def get(self, digest: str, make: Callable[[], Belief]) -> tuple[Belief, bool]:
        """The belief, and whether it was made now."""
        if digest in self._found:
            self.hits += 1
            return self._found[digest], False
        made = self._found[digest] = make()
        return made, True


@dataclass
class _Fitted:
    group: str
    data: Data
    hyperprior: Hyperprior | None
    base: Belief
    belief: Belief = field(init=False)

    def __post_init__(self) -> None:
        self.belief = self.base


class BeliefPool:
    """Beliefs by arm.

    Args:
        sampler: default emcee. clock: seconds, to measure what fits cost.
    fits: chains drawn; reused: taken from the cache; seconds: spent on fits and re-weighting.
    """

    def __init__(
        self,
        options: BeliefOptions | None = None,
        sampler: Sampler | None = None,
        cache: FitCache | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.options, self.sampler, self.clock = options or BeliefOptions(), sampler, clock
        self.cache = cache or FitCache()
        self.fits, self.reused, self.seconds = 0, 0, 0.0
        self.acceptance: list[float] = []
        self.autocorrelation: list[float] = []
        self._arms: dict[str, _Fitted] = {}
        self._facts: dict[str, tuple[Floats, Floats]] = {}
        self._seen: dict[str, tuple[int, float]] = {}

    def update(self, histories: Histories) -> None:
        """Bring all beliefs up to date."""
        begin = self.clock()
        for key, (group, x, y, ahead) in histories.items():
            self._seen[key] = (int(np.count_nonzero(y[1:] > (1 + JUMP) * y[:-1])), float(x[-1]))
            data = Data.of(x, y, ahead, self.options.segments)
            known = self._arms.get(key)
            if known is not None and known.data.digest() == data.digest() and not self.options.shared:
                continue
            prior = self._hyperprior(key, group)
            if known is None or not self._moved(known, data, prior):
                self._fit(key, group, data, prior)
            elif self.options.draws and len(data.y) >= _ENOUGH:
                self._facts[key] = _moments(known.belief, data.first)
        self.seconds += self.clock() - begin

    def predictions(self, histories: Histories, pending: Mapping[str, int]) -> Mapping[str, Prediction]:
        """What the next slot does to each arm, after an `update`; pending: trials of arms that are under way, beyond which it
        counts."""
        self.update(histories)
        found = {}
        for key, (_, x, y, ahead) in histories.items():
            under_way, best, at = pending.get(key, 0), float(y[-1]), float(x[-1])
            found[key] = self.predict(key, best, at + under_way + ahead)
            if under_way:
                found[key] = found[key].beyond(self.predict(key, best, at + under_way))
        return found

    def belief(self, key: str) -> Belief:
        return self._arms[key].belief

    def likeliest(self, key: str) -> Floats:
        """The parameters of an arm's curve that are most likely."""
        return self.belief(key).likeliest

    def predict(self, key: str, best: float, at: float) -> Prediction:
        """Of the arm's throughput at `at` trials."""
        return self._arms[key].belief.predict(best, at, self._jumps(key, best, at))

    def _jumps(self, key: str, best: float, at: float) -> Jumps | None:
        """Segments begin at a rate that is Gamma distributed: on average that of all arms, with the weight of one jump."""
        seen, trials = self._seen[key]
        if not self.options.segments or trials <= 1:
            return None
        every = [sum(values) for values in zip(*self._seen.values(), strict=True)]
        usual = (every[0] + 1) / (every[1] + _FEW)
        chance = 1 - ((1 / usual + trials) / (1 / usual + at)) ** (seen + 1)
        rng = np.random.default_rng([self.options.seed, 2])
        prior = self._arms[key].hyperprior
        top = rng.uniform(best, 1.0, _LEVELS)
        if prior is not None:
            top = np.minimum(np.exp(prior.centre[0] + prior.deviation[0] * rng.standard_normal(_LEVELS)), 1.0)
        levels = best * np.exp(rng.uniform(0, 1, _LEVELS) * np.log(np.maximum(top / best, 1.0)))
        return Jumps(chance, np.where(top > (1 + JUMP) * best, levels, best))

    def _moved(self, known: _Fitted, data: Data, prior: Hyperprior | None) -> bool:
        """Re-weight the samples of an arm for what is known now; False where too few are left."""
        if known.data.origin + known.data.x[-1] == data.origin + data.x[-1]:
            moved, least = known.base.reweighted(data, known.hyperprior, prior), _LEAST
        elif self.options.draws and known.data.origin == data.origin and len(known.data.y) > 1:
            moved = known.base.after(posterior(known.data, known.hyperprior), posterior(data, prior))
            least = max(_LEAST, _LEFT * len(moved.weights))
        else:
            return False
        if moved.effective >= least:
            known.belief = moved
            return True
        return False

    def _fit(self, key: str, group: str, data: Data, prior: Hyperprior | None) -> None:
        seed = self.options.seed
        drawn = weighed(data, prior, self.options.draws, seed) if len(data.y) > 1 and self.options.draws else None
        if len(data.y) == 1:
            made = fresh(data, prior, seed)
        elif drawn is not None:
            made = drawn
        else:
            made, new = self.cache.get(data.digest(prior, seed), lambda: fit(data, prior, self.sampler, seed))
            self.fits, self.reused = self.fits + new, self.reused + (not new)
            self.acceptance.append(made.acceptance)
            self.autocorrelation.append(made.autocorrelation)
        self._arms[key] = _Fitted(group, data, prior, made)
        if len(data.y) >= _ENOUGH:
            self._facts[key] = _moments(made, data.first)

    def _hyperprior(self, key: str, group: str) -> Hyperprior | None:
        """From arms of the group, or where it has less than two, from all."""
        if not self.options.shared:
            return None
        others = [k for k in self._facts if k != key]
        alike = [k for k in others if self._arms[k].group == group]
        return pooled([self._facts[k] for k in (alike if len(alike) >= 2 else others)])


def pooled(facts: list[tuple[Floats, Floats]]) -> Hyperprior | None:
    """The prior of one more arm from means and variances of others; None from less than two."""
    if len(facts) < 2:
        return None
    means, variances = (np.stack([f[i] for f in facts]) for i in range(2))
    spread = means.var(axis=0, ddof=1) * (1 + 2 / len(facts)) + variances.mean(axis=0)
    deviation = np.maximum(np.sqrt(spread), _FLOOR)
    centre, width = (np.round(row, 2).tolist() for row in (means.mean(axis=0), deviation))
    return Hyperprior((centre[0], centre[1], centre[2], centre[3]), (width[0], width[1], width[2], width[3]))


def weighed(data: Data, hyperprior: Hyperprior | None, draws: int, seed: int) -> Belief | None:
    """The posterior by draws that are weighted by it: of the prior first, then of a t-distribution about those that counted
    (after Cappe et al., Population Monte Carlo, 2004). None where too few of them count after some rounds."""
    found, rng, density = fresh(data, hyperprior, seed, draws), np.random.default_rng([seed, 3]), posterior(data, hyperprior)
    samples, from_ = found.samples, np.zeros(len(found.samples))
    if hyperprior is not None:  # the density of the draws, in which ln a is normal
        from_ = hyperprior.log_density(samples, data.first) - np.log(samples[:, 0])
    for _ in range(_ROUNDS):
        logs = density(samples) - from_
        if not np.isfinite(logs).any():
            return None
        weights = np.exp(logs - logs.max())
        if weights.sum() ** 2 / float(weights @ weights) >= _COUNTED:
            which = (np.arange(_KEPT) + rng.uniform()) / _KEPT * weights.sum()
            kept = np.searchsorted(np.cumsum(weights), which).clip(0, len(weights) - 1)
            return replace(found, samples=samples[kept], weights=np.full(_KEPT, 1 / _KEPT), noise=rng.standard_normal(_KEPT),
                           likeliest=samples[int(np.argmax(logs))])
        centre, spread = _moments_of(samples, logs)
        samples, from_ = _around(centre, spread, draws, rng)
    return None


def _moments_of(samples: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of weighted samples, the weights flattened until enough of them count."""
    power = 1.0
    while True:
        weights = np.exp(power * (logs - logs.max()))
        weights /= weights.sum()
        if 1 / float(weights @ weights) >= _SPREAD or power < 1e-6:
            break
        power *= 0.7
    centre = weights @ samples
    off = samples - centre
    return centre, np.asarray((weights[:, None] * off).T @ off + np.diag(_NARROWEST**2))


def _around(centre: Floats, spread: Floats, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws of a t-distribution, and the logarithm of its density there, up to a constant."""
    root = np.linalg.cholesky(spread)
    normal = rng.standard_normal((draws, len(centre)))
    scale = np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, draws))
    distance = (normal * normal).sum(axis=1) * scale**2
    return centre + (normal * scale[:, None]) @ root.T, -0.5 * (_FREEDOM + len(centre)) * np.log1p(distance / _FREEDOM)


def fresh(data: Data, hyperprior: Hyperprior | None, seed: int, count: int = _DRAWS) -> Belief:
    """The posterior of a curve of which only the beginning is known, which is the prior. count: draws."""
    rng = np.random.default_rng([seed, 1])
    low, high = np.array([data.first, *LOW[1:]]), HIGH
    drawn = rng.uniform(low, high, (count, 4))
    if hyperprior is not None:
        scale = np.log(max(data.first, 1e-6))
        wide = rng.standard_normal((count, 4)) * np.array(hyperprior.deviation) + np.array(hyperprior.centre)
        wide[:, 0] = np.exp(wide[:, 0])
        wide[:, 3] += scale
        inside = ((wide >= low) & (wide <= high)).all(axis=1)
        drawn = wide[inside] if inside.sum() > 50 else np.clip(wide, low, high)
    count = len(drawn)
    return Belief(
        drawn,
        np.full(count, 1 / count),
        rng.standard_normal(count),
        float("nan"),
        float("nan"),
        np.median(drawn, axis=0),
        data.origin,
        data.first,
    )


def _moments(belief: Belief, first: float) -> tuple[Floats, Floats]:
    values = relative(belief.samples, first)
    mean = belief.weights @ values / belief.weights.sum()
    return mean, np.asarray(belief.weights @ (values - mean) ** 2 / belief.weights.sum())


def quick_beliefs(options: BeliefOptions, clock: Callable[[], float] = lambda: 0.0) -> BeliefPool:
    """Of a farm, where one process decides for many: by draws, or short chains."""
    return BeliefPool(replace(options, draws=_DRAWS), EmceeSampler(*_SHORT), clock=clock)


def cost_of_fit(clock: Callable[[], float], sampler: Sampler | None = None) -> float:
    """Seconds that one fit takes here: of a curve of middling length; the first one, which loads libraries, does not count."""
    x = np.arange(1.0, 25.0)
    y = np.maximum.accumulate(log_power(x, np.array([[0.5, 2.0, -0.7]]))[0] * (1 + 0.02 * np.cos(5 * x)))
    data = Data.of(x, y, 8.0)
    fit(data, None, sampler)
    begin = clock()
    fit(data, None, sampler, seed=1)
    return clock() - begin
