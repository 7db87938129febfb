"""Every environment variable of Tilewright, once, typed. Each is read when asked for, never at import."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tilewright.runtime.errors import OptionError
from tilewright.runtime.sizes import parse_size

T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One environment variable: `kind` is its type in words, `parse` reads a text or raises ValueError."""

    name: str
    kind: str
    default: T
    shown: str
    description: str
    parse: Callable[[str], T]

    def get(self) -> T:
        """The value now; an unset or empty variable gives the default. OptionError when the text is no such value."""
        text = os.environ.get(self.name, "")
        if not text.strip():
            return self.default
        try:
            return self.parse(text.strip())
        except ValueError:
            raise OptionError(f"environment variable {self.name}={text!r}: wanted {self.kind}") from None


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError(text)
        return value

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def _folder(text: str) -> Path:
    return Path(text).expanduser()


CACHE_DIR: Knob[Path | None] = Knob(
    "TILEWRIGHT_CACHE_DIR", "a folder", None, "the user's cache folder", "where built kernels are kept", _folder
)
CACHE_BYTES: Knob[int] = Knob(
    "TILEWRIGHT_CACHE_BYTES",
    "a size in bytes, as in 512M or 2G; 0 turns the cache off",
    2 << 30,
    "2G",
    "most bytes of the cache; the entries not used for longest go first",
    parse_size,
)
THREADS: Knob[int | None] = Knob(
    "TILEWRIGHT_THREADS",
    "an integer >= 1",
    None,
    "all cores the process may use",
    "most threads of a call",
    _at_least(1),
)
WORKERS: Knob[int | None] = Knob(
    "TILEWRIGHT_WORKERS",
    "an integer >= 1",
    None,
    "one per core, at most 8",
    "processes that build kernels",
    _at_least(1),
)
BUILD_SECONDS: Knob[float] = Knob(
    "TILEWRIGHT_BUILD_SECONDS", "a number of seconds > 0", 60.0, "60", "time limit of one kernel build", _seconds
)
DUMP: Knob[Path | None] = Knob(
    "TILEWRIGHT_DUMP", "a folder", None, "nothing is written", "where the IR after each pass is written", _folder
)
DEBUG: Knob[int] = Knob(
    "TILEWRIGHT_DEBUG", "an integer >= 0", 0, "0", "1 prints what is built and why, 2 also timings", _at_least(0)
)


def table() -> list[tuple[str, str, str, str]]:
    """(name, type, default, description) of every knob, in the order of the README table."""
    knobs = (CACHE_DIR, CACHE_BYTES, THREADS, WORKERS, BUILD_SECONDS, DUMP, DEBUG)
    return [(knob.name, knob.kind, knob.shown, knob.description) for knob in knobs]
