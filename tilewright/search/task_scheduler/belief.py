"""Belief: what the tuning curve of one arm may still do, as samples of a posterior (DynaTune, ICLR'21, section 4.3).

The curve is fitted by least squares, then by maximum likelihood, then sampled by an affine-invariant ensemble. The prior is
uniform within bounds, zero where the curve would fall below what is known, and may be narrowed by what similar arms did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tilewright.search.space.array_types import Floats
from tilewright.search.task_scheduler.tuning_curve import HIGH, LOW, MOST, least_squares, log_power, segment_start, thinned

LogProbability = Callable[[Floats], Floats]
_POINTS = 48


@dataclass(frozen=True)
class Chain:
    """samples: [sample, parameter]. acceptance: share of moves taken. autocorrelation: steps until a walker forgets, of
    those that moved; nan where none did or the chain is too short to say."""

    samples: Floats
    acceptance: float
    autocorrelation: float


class Sampler(Protocol):
    """Draws from a density; `start` is [walker, parameter], the density takes many points at once."""

    def __call__(self, density: LogProbability, start: Floats, seed: int) -> Chain: ...


@dataclass(frozen=True)
class EmceeSampler:
    """emcee's ensemble. The walkers are those of `start`; of `steps` the first `burn` are dropped, then every `thin`-th kept."""

    steps: int = 500
    burn: int = 300
    thin: int = 10

    def __call__(self, density: LogProbability, start: Floats, seed: int) -> Chain:
        import emcee

        sampler = emcee.EnsembleSampler(*start.shape, density, vectorize=True)
        state = emcee.State(start, random_state=np.random.RandomState(seed).get_state())
        sampler.run_mcmc(state, self.steps, skip_initial_state_check=True)
        chain = sampler.get_chain(discard=self.burn)
        moved = chain[:, (chain != chain[0]).any(axis=0).all(axis=1)]  # of a walker that stood still the correlation is 0 / 0
        times = emcee.autocorr.integrated_time(moved, quiet=True, tol=0) if moved.shape[1] else np.nan
        samples = np.asarray(chain[:: self.thin].reshape(-1, start.shape[1]))
        return Chain(samples, float(np.mean(sampler.acceptance_fraction)), float(np.mean(times)))


@dataclass(frozen=True)
class Hyperprior:
    """Normal density of (ln a, b, c, ln deviation/y0): which share of the peak similar arms reach, how soon, how smoothly."""

    centre: tuple[float, float, float, float]
    deviation: tuple[float, float, float, float]

    def log_density(self, parameters: Floats, first: float) -> Floats:
        z = (relative(parameters, first) - np.array(self.centre)) / np.array(self.deviation)
        return np.asarray(-0.5 * np.sum(z * z, axis=1))


@dataclass(frozen=True)
class Data:
    """Observations of one segment: trials since it began at trial `origin`, best throughput so far as a share of the peak.

    `ahead` trials are to come.
    """

    x: Floats
    y: Floats
    ahead: float
    origin: float = 0.0

    @staticmethod
    def of(x: Floats, y: Floats, ahead: float, segments: bool = True) -> Data:
        """The last segment of a history, thinned."""
        y = np.minimum(np.maximum.accumulate(np.asarray(y, np.float64)), MOST)
        begin = segment_start(y) if segments else 0
        kept, values = thinned(np.asarray(x, np.float64)[begin:], y[begin:], _POINTS)
        return Data(kept - kept[0], values, float(ahead), float(kept[0]))

    @property
    def first(self) -> float:
        """Where the segment begins."""
        return float(self.y[0])

    @property
    def best(self) -> float:
        return float(self.y[-1])

    @property
    def independent(self) -> float:
        """Share of the points that say something of their own: a best that does not change repeats what is known."""
        rises = int(np.count_nonzero(np.diff(self.y) > 0))
        return min(1.0, (rises + 2.0) / max(len(self.y) - 1, 1))

    @property
    def future(self) -> float:
        """Trials since the segment began, after the next slot."""
        return float(self.x[-1]) + self.ahead

    def digest(self, *more: object) -> str:
        """sha256 of the observations and of what else decides a fit."""
        return hashlib.sha256(self.x.tobytes() + self.y.tobytes() + repr((self.ahead, self.origin, more)).encode()).hexdigest()


@dataclass(frozen=True)
class Jumps:
    """A new segment: the chance that the next slot begins one, and [draw] the throughput that it may rise to."""

    chance: float
    levels: Floats


@dataclass(frozen=True)
class Prediction:
    """Throughput at a future trial: mean and deviation of the curve there, expected improvement over the best, an interval of
    80 % of the best that will have been seen, and the expected share of the time that is saved, with its deviation.

    saved: [sample] of that share, with `weights`.
    """

    mean: float
    deviation: float
    improvement: float
    low: float
    high: float
    gain: float
    gain_deviation: float
    saved: Floats
    weights: Floats

    def beyond(self, sooner: Prediction) -> Prediction:
        """What is saved from an earlier trial to this one, by the same samples."""
        saved = np.maximum(self.saved - sooner.saved, 0.0)
        gain = float(self.weights @ saved)
        spread = float(np.sqrt(self.weights @ (saved - gain) ** 2))
        return replace(self, gain=gain, gain_deviation=spread, saved=saved)


@dataclass(frozen=True)
class Belief:
    """Weighted samples [sample, (a, b, c, ln deviation)] of the curve of an arm, with diagnostics of the chain.

    noise: a standard normal number a sample, so that predictions repeat. origin, first: where the segment begins.
    """

    samples: Floats
    weights: Floats
    noise: Floats
    acceptance: float
    autocorrelation: float
    likeliest: Floats
    origin: float
    first: float

    def curves(self, at: Floats) -> Floats:
        """Throughput of every sample after so many trials of the arm: [sample, point]."""
        return log_power(at - self.origin, self.samples, self.first)

    @property
    def effective(self) -> float:
        """Samples that the weights leave."""
        total = float(self.weights.sum())
        return total * total / float(np.sum(self.weights**2)) if total > 0 else 0.0

    def predict(self, best: float, at: float, jumps: Jumps | None = None) -> Prediction:
        """Of the best throughput at `at` trials when `best` is known; it never falls, and jumps if a new segment begins."""
        weights = self.weights / self.weights.sum()
        curve, noise = self.curves(np.array([at]))[:, 0], np.exp(self.samples[:, 3]) * self.noise
        if jumps is not None:
            risen = np.maximum(curve, np.resize(jumps.levels, len(curve)))
            curve, noise = np.concatenate([curve, risen]), np.tile(noise, 2)
            weights = np.concatenate([(1 - jumps.chance) * weights, jumps.chance * weights])
        mean = float(weights @ curve)
        deviation = float(np.sqrt(weights @ (curve - mean) ** 2))
        seen = np.clip(curve + noise, best, 1.0)
        order = np.argsort(seen)
        reached = np.cumsum(weights[order])
        low, high = (float(seen[order][min(int(np.searchsorted(reached, q)), len(seen) - 1)]) for q in (0.1, 0.9))
        later = np.clip(curve, best, 1.0)
        saved = 1.0 - best / later
        gain = float(weights @ saved)
        spread = float(np.sqrt(weights @ (saved - gain) ** 2))
        return Prediction(mean, deviation, float(weights @ (later - best)), low, high, gain, spread, saved, weights)

    def after(self, before: LogProbability, now: LogProbability) -> Belief:
        """The same samples, which were drawn from the density `before`, for another one."""
        change = now(self.samples) - before(self.samples)
        weights = self.weights * np.exp(change - change.max()) if np.isfinite(change).any() else np.zeros(len(change))
        return replace(self, weights=weights / weights.sum() if weights.sum() > 0 else weights)

    def reweighted(self, data: Data, before: Hyperprior | None, after: Hyperprior | None) -> Belief:
        """The same samples under another prior, and without those that the best and the future of `data` rule out."""
        change = np.zeros(len(self.samples))
        if after is not None:
            change += after.log_density(self.samples, self.first)
        if before is not None:
            change -= before.log_density(self.samples, self.first)
        rises = self.curves(np.array([data.origin + data.future]))[:, 0] >= data.best * (1 - 1e-9)
        weights = self.weights * np.exp(change - change.max()) * rises
        return replace(self, weights=weights / weights.sum()) if weights.sum() > 0 else replace(self, weights=weights)


def fit(
    data: Data, hyperprior: Hyperprior | None = None, sampler: Sampler | None = None, seed: int = 0, walkers: int = 10
) -> Belief:
    """The belief that the data support."""
    density = posterior(data, hyperprior)
    peak = maximum(density, _feasible(least_squares(data.x, data.y, data.first), data))
    rng = np.random.default_rng(seed)
    start = _ball(density, peak, data, walkers, rng)
    chain = (sampler or EmceeSampler())(density, start, seed)
    count = len(chain.samples)
    return Belief(
        chain.samples,
        np.full(count, 1 / count),
        rng.standard_normal(count),
        chain.acceptance,
        chain.autocorrelation,
        peak,
        data.origin,
        data.first,
    )


def posterior(data: Data, hyperprior: Hyperprior | None = None) -> LogProbability:
    """Logarithm of the density of [curve, parameter], up to a constant; minus infinity where the prior is zero."""
    logarithms = np.log(np.maximum(np.append(data.x[1:], data.future), 1e-12))
    least, seen, floor = data.best * (1 - 1e-9), data.y[1:], data.first
    low, count, share = np.array([floor, *LOW[1:]]), len(seen), data.independent
    centre, width, first = np.zeros(4), np.ones(4), np.log(max(floor, 1e-6))
    if hyperprior is not None:
        centre, width = np.array(hyperprior.centre), np.array(hyperprior.deviation)

    def density(parameters: Floats) -> Floats:
        inside = ((parameters >= low) & (parameters <= HIGH)).all(axis=1)
        a, b, c, deviation = parameters.T
        exponent = np.minimum(c[:, None] * (logarithms - b[:, None]), 60.0)
        values = floor + (a - floor)[:, None] / (1.0 + np.exp(exponent))
        missed = values[:, :-1] - seen
        precision = np.exp(-2.0 * np.clip(deviation, -12.0, 1.0))
        found = share * (-0.5 * np.einsum("ij,ij->i", missed, missed) * precision - count * deviation)
        if hyperprior is not None:
            z = np.column_stack([np.log(np.maximum(a, 1e-9)), b, c, deviation - first])
            z = (z - centre) / width
            found = found - 0.5 * np.einsum("ij,ij->i", z, z)
        return np.where(inside & (values[:, -1] >= least), found, -np.inf)

    return density


def maximum(density: LogProbability, start: Floats) -> Floats:
    """The likeliest curve near `start`, which has to be possible."""
    from scipy.optimize import minimize

    def cost(parameters: Floats) -> float:
        value = float(density(parameters[None, :])[0])
        return -value if np.isfinite(value) else 1e10

    found = minimize(
        cost, start, method="L-BFGS-B", bounds=list(zip(LOW, HIGH, strict=True)), options={"maxiter": 30, "maxfun": 150}
    )
    return np.asarray(found.x if cost(found.x) <= cost(start) else start)


def relative(parameters: Floats, first: float) -> Floats:
    """[curve, (ln a, b, c, ln deviation/y0)]: what similar arms have in common, y0 being where the segment begins."""
    scale = np.log(max(first, 1e-6))
    return np.column_stack([np.log(parameters[:, 0]), parameters[:, 1:3], parameters[:, 3] - scale])


def expected_improvement(mean: float, deviation: float, best: float) -> float:
    """E[max(0, y - best)] of a normal y (Brochu et al., 2010), the form of the paper."""
    from scipy.special import ndtr

    if deviation <= 0:
        return max(0.0, mean - best)
    z = (mean - best) / deviation
    return float((mean - best) * ndtr(z) + deviation * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))


def _feasible(parameters: Floats, data: Data) -> Floats:
    """The curve, or where it ends below what is known, one that is flat just above it."""
    reached = log_power(np.array([data.future]), parameters[None, :], data.first)[0, 0]
    return parameters if parameters[0] > data.first and reached >= data.best else _flat(parameters, data)


def _flat(parameters: Floats, data: Data) -> Floats:
    return np.array([min(1.02 * data.best, 0.999), -2.5, -3.0, parameters[3]])


def _ball(density: LogProbability, centre: Floats, data: Data, walkers: int, rng: np.random.Generator) -> Floats:
    """Walkers close to the likeliest curve, all of them possible."""
    size = np.array([1e-3 * data.best, 1e-3, 1e-3, 1e-3])
    found: list[Floats] = []
    for middle in (centre, 0.9 * centre + 0.1 * _flat(centre, data), _flat(centre, data)):
        inner = np.clip(middle, LOW + 2 * size, HIGH - 2 * size)
        drawn = inner + size * rng.uniform(-1, 1, (4 * walkers, 4))
        found.extend(drawn[np.isfinite(density(drawn))])
        if len(found) >= walkers:
            break
    return np.array(found[:walkers])
