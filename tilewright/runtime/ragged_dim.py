"""Ragged: a dim that has a length of its own for every entry of another dim, such as tokens of the sequences of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Dim, Expr


@dataclass(frozen=True, init=False)
class Ragged(Dim):
    """A dim whose value differs from entry to entry of another dim: `{"B": (1, 128), "S": tw.Ragged(1, 512, over="B")}`.

    A call with it gives what the model gives for each entry alone, with B = 1 and S = its length; nothing is spent on padding.
    Arguments and results hold the entries one after the other (`tw.Jagged`).

    Args:
        lo, hi, multiple_of, samples, at: as of Dim, of a single length; lo may be 0.
        over: the dim that counts the entries, by its name or its place.
    Raises:
        OptionError: as of Dim, or `over` is no text.
    """

    over: str = ""

    def __init__(self, lo: Any, hi: int | None = None, over: str = "", multiple_of: int = 1,
                 samples: Iterable[int] | None = None, at: str | Iterable[str] | None = None) -> None:
        if not isinstance(over, str) or not over:
            raise OptionError(f'Ragged: over={over!r}: wanted the name of the dim that counts the sequences; write over="B"')
        object.__setattr__(self, "over", over)
        super().__init__(lo, hi, multiple_of, samples, at)

    def __str__(self) -> str:
        return f"{super().__str__()}, ragged over {self.over}"


def total_name(name: str) -> str:
    """What the sum of all lengths of a ragged dim is called in sizes."""
    return f"sum({name})"


def total(name: str) -> Expr:
    """The sum of all lengths of a ragged dim."""
    return Expr.dim(total_name(name))


def offsets_name(name: str) -> str:
    """The input that says where each sequence of a ragged dim begins."""
    return f"{name}_offsets"
