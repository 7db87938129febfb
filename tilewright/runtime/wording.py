"""Wording: what a user may write, said in the words of the door he came through: Python or the command line.

An error is raised with one as its message: `str(error)` speaks Python, `command_text(error)` speaks of options.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """A text in both wordings. Strings may be added on both sides."""

    python: str
    command: str

    def __str__(self) -> str:
        return self.python

    def __add__(self, other: Wording | str) -> Wording:
        return Wording(f"{self}{other}", self.command + command_text(other))

    def __radd__(self, other: str) -> Wording:
        return Wording(f"{other}{self}", f"{other}{self.command}")


def option(name: str, value: object = None) -> Wording:
    """An option of `compile` or of CompileOptions, with the value it has or should have: `max_kernels=4`, `--max-kernels 4`."""
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return Wording(f"{name}=", flag)
    if isinstance(value, bool):
        return Wording(f"{name}={value}", flag if value else f"--no-{flag[2:]}")
    return Wording(f"{name}={value!r}", f"{flag} {value}")


def option_name(name: str) -> Wording:
    """An option without a value: `max_kernels`, `--max-kernels`."""
    return Wording(name, option(name).command)


def choices(values: Iterable[str]) -> Wording:
    """The values that an option may have."""
    known = list(values)
    return Wording(", ".join(map(repr, known)), ", ".join(known))


def ranges_to_paste(ranges: Iterable[tuple[str, int, int]]) -> Wording:
    """Dims with their ranges, as they are given to a compile."""
    known = list(ranges)
    python = ", ".join(f'"{n}": tw.Dim({lo}, {hi})' for n, lo, hi in known)
    return Wording(f"dynamic_dims={{{python}}}", " ".join(f"--dim {n}={lo}:{hi}" for n, lo, hi in known))


def command_text(said: object) -> str:
    """What is said, in the words of the command line; of an exception, its message."""
    if isinstance(said, BaseException) and len(said.args) == 1 and isinstance(said.args[0], Wording):
        said = said.args[0]
    return said.command if isinstance(said, Wording) else str(said)
