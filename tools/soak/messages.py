"""What actors and driver tell each other: one JSON object a line, over the pipes of the actor."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """What became of a step. RIGHT and TYPED are as they should be; all others are findings."""

    RIGHT = "right"
    TYPED = "typed"
    WRONG = "WRONG"
    RAW = "raw"
    CRASH = "crash"
    HANG = "hang"

    @property
    def is_fine(self) -> bool:
        return self in (Outcome.RIGHT, Outcome.TYPED)


class Drawn(msgspec.Struct, frozen=True):
    """A call of a random model of the run's seed: all that it follows from."""

    number: int
    dims: dict[str, int]
    salt: int


class Began(msgspec.Struct, tag="began", frozen=True):
    """A step starts. what: its class; under: the condition in force; cases: those that it may call."""

    what: str
    under: str
    cases: tuple[Drawn, ...] = ()


class Done(msgspec.Struct, tag="done", frozen=True):
    """Part of a step is done, `count` times alike. kept: the folder of its reproducer."""

    what: str
    under: str
    outcome: Outcome
    count: int = 1
    detail: str = ""
    kept: str = ""


class Resources(msgspec.Struct, tag="resources", frozen=True):
    """What the process holds: open descriptors by what they are, resident bytes. at: "warm" or "end"."""

    at: str
    descriptors: Mapping[str, int]
    resident: int


class Condition(msgspec.Struct, frozen=True):
    """From the driver: the next `steps` steps run under this condition."""

    name: str
    steps: int


Report = Began | Done | Resources
