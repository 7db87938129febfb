"""Policies: which arm the next slot goes to. Those with `believes` read what the belief expects; the others are baselines.

All rewards are shares of the model's present latency, so that no constant depends on the unit or the size of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from tilewright.search.space.array_types import Floats


@dataclass(frozen=True)
class ArmView:
    """What a policy sees of an arm.

    latency: seconds that it contributes to the model's, calls and traffic counted. share: of the model's. flops: likewise.
    latencies: after each slot of its own, the untuned first. gain, deviation: expected share of the model's latency that the
    next slot saves. saved: samples of that, with `weights`.
    """

    key: str
    group: str
    order: int
    pulls: int
    latency: float
    share: float
    flops: float
    latencies: tuple[float, ...]
    gain: float = 0.0
    deviation: float = 0.0
    saved: Floats = field(default_factory=lambda: np.zeros(1))
    weights: Floats = field(default_factory=lambda: np.ones(1))

    @property
    def last_gain(self) -> float:
        """What the last slot saved, as a share of the model's latency; before the first slot, all of the arm."""
        if len(self.latencies) < 2:
            return self.share
        return self.share * (self.latencies[-2] / self.latencies[-1] - 1)


class Policy(Protocol):
    """Chooses among open arms; `slot` counts from 1. The answer is an index into `arms`."""

    name: ClassVar[str]
    believes: ClassVar[bool]

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int: ...


def _best(values: Sequence[float] | Floats, rng: np.random.Generator) -> int:
    """An index of the largest value, ties broken at random."""
    found = np.asarray(values, np.float64)
    return int(rng.choice(np.flatnonzero(found >= found.max())))


@dataclass(frozen=True)
class Ucb:
    """Expected gain plus sqrt(c ln t / pulls) of its deviation (after DynaTune 4.2; the deviation makes it scale free)."""

    name: ClassVar[str] = "ucb"
    believes: ClassVar[bool] = True
    c: float = 0.2

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        return _best([a.gain + np.sqrt(self.c * np.log(slot + 1) / (a.pulls + 1)) * a.deviation for a in arms], rng)


@dataclass(frozen=True)
class LastGainUcb:
    """UCB without a belief: the gain of the last slot stands for the next."""

    name: ClassVar[str] = "ucb_last_gain"
    believes: ClassVar[bool] = False
    c: float = 0.2

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        scale = float(np.mean([a.last_gain for a in arms]))
        return _best([a.last_gain + scale * np.sqrt(self.c * np.log(slot + 1) / (a.pulls + 1)) for a in arms], rng)


@dataclass(frozen=True)
class EpsilonGreedy:
    """The largest expected gain, any arm with probability epsilon."""

    name: ClassVar[str] = "epsilon"
    believes: ClassVar[bool] = True
    epsilon: float = 0.05

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        if rng.random() < self.epsilon:
            return int(rng.integers(len(arms)))
        return _best([a.gain for a in arms], rng)


@dataclass(frozen=True)
class Boltzmann:
    """Boltzmann exploration: probabilities exp(gain / temperature); the temperature is a share of the largest gain."""

    name: ClassVar[str] = "softmax"
    believes: ClassVar[bool] = True
    temperature: float = 0.1

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        gains = np.array([a.gain for a in arms])
        weights = np.exp((gains - gains.max()) / max(self.temperature * gains.max(), 1e-12))
        return int(rng.choice(len(arms), p=weights / weights.sum()))


@dataclass(frozen=True)
class Thompson:
    """The largest gain in one draw from every belief."""

    name: ClassVar[str] = "thompson"
    believes: ClassVar[bool] = True

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        return _best([float(rng.choice(a.saved, p=a.weights)) for a in arms], rng)


@dataclass(frozen=True)
class RoundRobin:
    """In turn."""

    name: ClassVar[str] = "round_robin"
    believes: ClassVar[bool] = False

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        return min(range(len(arms)), key=lambda i: (arms[i].pulls, arms[i].order))


@dataclass(frozen=True)
class Random:
    """Any arm."""

    name: ClassVar[str] = "random"
    believes: ClassVar[bool] = False

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        return int(rng.integers(len(arms)))


@dataclass(frozen=True)
class Sequential:
    """The first arm until it is finished, then the next, as AutoTVM does."""

    name: ClassVar[str] = "sequential"
    believes: ClassVar[bool] = False

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        return min(range(len(arms)), key=lambda i: arms[i].order)


@dataclass(frozen=True)
class LinearInFlops:
    """Slots in proportion to the arithmetic of the arms."""

    name: ClassVar[str] = "linear"
    believes: ClassVar[bool] = False

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        return _best([a.flops / (a.pulls + 0.5) for a in arms], rng)


@dataclass(frozen=True)
class AnsorGradient:
    """The task scheduler of Ansor (OSDI'20, section 6): the recent slope and two optimistic guesses of the next one.

    alpha: weight of the recent slope over `window` slots. beta: how far similar arms are trusted.
    """

    name: ClassVar[str] = "ansor"
    believes: ClassVar[bool] = False
    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3
    epsilon: float = 0.05

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        unseen = [i for i, a in enumerate(arms) if a.pulls == 0]
        if unseen:
            return min(unseen, key=lambda i: arms[i].order)
        if rng.random() < self.epsilon:
            return int(rng.integers(len(arms)))
        return _best([-self._gradient(a, arms) for a in arms], rng)

    def _gradient(self, arm: ArmView, arms: Sequence[ArmView]) -> float:
        past = arm.latencies
        back = (past[-1] - past[-1 - self.window]) / self.window if len(past) > self.window else 0.0
        next_latency = arm.latency - arm.latency / max(arm.pulls, 1)
        alike = [a.flops / a.latency for a in arms if a.group == arm.group]
        if len(alike) > 1:
            next_latency = min(next_latency, self.beta * arm.flops / max(alike))
        return self.alpha * back + (1 - self.alpha) * (next_latency - arm.latency)


@dataclass(frozen=True)
class Recorded:
    """A schedule of the past: the arms of its slots in order."""

    name: ClassVar[str] = "recorded"
    believes: ClassVar[bool] = False
    schedule: tuple[str, ...] = ()

    def choose(self, arms: Sequence[ArmView], slot: int, rng: np.random.Generator) -> int:
        wanted = self.schedule[slot - 1] if slot <= len(self.schedule) else ""
        return next((i for i, a in enumerate(arms) if a.key == wanted), 0)


def policies() -> Mapping[str, Policy]:
    """The selectable ones by name, with their default constants."""
    found: tuple[Policy, ...] = (
        Ucb(),
        EpsilonGreedy(),
        Boltzmann(),
        Thompson(),
        LastGainUcb(),
        RoundRobin(),
        Random(),
        Sequential(),
        LinearInFlops(),
        AnsorGradient(),
    )
    return {p.name: p for p in found}
