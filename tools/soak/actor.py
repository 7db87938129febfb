"""Actor: a kind of work that a process does over and over; the steps that it is made of, and what comes of them."""

from __future__ import annotations

import importlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tools.soak.cases import Case
from tools.soak.conditions import CALM
from tools.soak.messages import Outcome


@dataclass(frozen=True)
class Place:
    """The folders of a run."""

    run: Path

    @property
    def models(self) -> Path:
        return self.run / "models"

    @property
    def damaged(self) -> Path:
        return self.run / "damaged"

    @property
    def failures(self) -> Path:
        return self.run / "failures"

    @property
    def cache(self) -> Path:
        return self.run / "cache"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def temporary(self) -> Path:
        return self.run / "tmp"

    def make(self) -> None:
        for folder in (self.models, self.damaged, self.failures, self.cache, self.logs, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Verdict:
    """What came of an action. case: what failed, if one case did; args: its arguments where they are not those of the case."""

    outcome: Outcome = Outcome.RIGHT
    detail: str = ""
    count: int = 1
    case: Case | None = None
    args: Sequence[Any] | None = None


@dataclass(frozen=True)
class Step:
    """What an actor does next. An error of Tilewright that leaves `run` was not expected. cases: those that it may call."""

    what: str
    run: Callable[[], Verdict | Sequence[Verdict]]
    cases: Sequence[Case] = ()


Beat = Callable[[Sequence[Case]], None]


class Actor(ABC):
    """One kind of work.

    Attributes:
        conditions: those that it can be put under. stays: is never killed, and its memory must not grow. builds: starts
            processes of its own, which are killed and stopped too.
        warm_after: steps until its descriptors and memory are looked at for the first time. rests: seconds to wait before that,
            in which what it keeps for its next step ends.
        condition: the one in force.
    """

    conditions: ClassVar[Sequence[str]] = ()
    stays: ClassVar[bool] = False
    builds: ClassVar[bool] = False
    warm_after: ClassVar[int] = 3
    rests: ClassVar[float] = 0.0

    def __init__(self, place: Place, seed: int, name: str) -> None:
        self.place, self.seed, self.name = place, seed, name
        self.rng = random.Random(f"{seed}/{name}")
        self.condition = CALM

    def prepare(self, beat: Beat) -> None:  # noqa: B027 - most have nothing to prepare
        """Once, before the first step. beat: says that the process lives, and what it is about to call."""

    @abstractmethod
    def next(self) -> Step:
        """The next step."""


def actor_class(spec: str) -> type[Actor]:
    """The class that MODULE:CLASS names."""
    module, _, name = spec.partition(":")
    found: type[Actor] = getattr(importlib.import_module(module), name)
    return found
