"""Ragged: a dim that has a length of its own for every entry of another dim, such as tokens of the sequences of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.dim_forms import as_integer
from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Dim, Expr

_LARGEST = (1 << 31) - 1  # length before it is known from `of`


@dataclass(frozen=True, init=False)
class Ragged(Dim):
    """A dim whose value differs from entry to entry of another dim: `{"B": (1, 128), "S": tw.Ragged(1, 512, over="B")}`.

    A call with it gives what the model gives for each entry alone, with B = 1 and S = its length; nothing is spent on padding.
    Arguments and results hold the entries one after the other (`tw.Jagged`).

    Args:
        lo, hi, multiple_of, at: as of Dim, of a single length; lo may be 0.
        samples: lengths as they come, each as often as it does: a search tunes for batches of these.
        over: the dim that counts the entries, by its name or its place.
        of: the length as an expression of the entry's number, which goes by the name `over`: `tw.Ragged(of="i + 1", over="i")`
            are the rows of a lower triangle. lo and hi follow from it, and calls need no lengths.
        align: every entry begins at a row that is a multiple of it. The rows in between are padding of the storage alone: they
            belong to no entry, may hold anything in arguments, and hold anything in results.
    Raises:
        OptionError: as of Dim, `over` is no text, `of` is no expression of it alone, or `align` is below 1.
    """

    over: str = ""
    length: str = ""
    align: int = 1

    def __init__(self, lo: Any = None, hi: int | None = None, over: str = "", multiple_of: int = 1,
                 samples: Iterable[int] | None = None, at: str | Iterable[str] | None = None, of: str = "",
                 align: int = 1) -> None:
        if not isinstance(over, str) or not over:
            raise OptionError(f'Ragged: over={over!r}: wanted the name of the dim that counts the sequences; write over="B"')
        object.__setattr__(self, "over", over)
        object.__setattr__(self, "length", of and _expression(of, over))
        object.__setattr__(self, "align", checked_align(align, "Ragged"))
        if lo is None and not of:
            raise OptionError('Ragged: wanted the range of one length, as in Ragged(1, 512, over="B"), or its expression, as in '
                              'Ragged(of="i + 1", over="i"), got neither; give one')
        super().__init__(0 if lo is None else lo, _LARGEST if lo is None else hi, multiple_of, samples, at)

    def __str__(self) -> str:
        aligned = f", aligned to {self.align}" if self.align > 1 else ""
        return f"{super().__str__()}, ragged over {self.over}{aligned}"


def checked_align(align: Any, what: str) -> int:
    """What rows of sequences are aligned to; OptionError for what is no number from 1 on."""
    found = as_integer(align, f"{what}: align")
    if found < 1:
        raise OptionError(f"{what}: align={found}: wanted a number of rows from 1 on; leave it out for sequences without rows "
                          "between them")
    return found


def total_name(*names: str) -> str:
    """What the sum over all sequences of a length, or of the product of several, is called in sizes. Lengths that are aligned
    count with the rows up to the next sequence."""
    return f"sum({' * '.join(sorted(names))})"


def factors_of(name: str) -> tuple[str, ...]:
    """The ragged dims whose product is summed, of what `total_name` gave; none of another dim."""
    return tuple(name[len("sum("):-1].split(" * ")) if name.startswith("sum(") else ()


def total(*names: str) -> Expr:
    """The sum over all sequences of a length, or of the product of several."""
    return Expr.dim(total_name(*names))


def _expression(of: str, over: str) -> str:
    """A length by the number of its entry, in one way of writing."""
    found = Expr.parse(of) if isinstance(of, str) else None
    if found is None or not found.symbols <= {over}:
        raise OptionError(f"Ragged: of={of!r}: wanted an expression of the entry's number, {over}; write of=\"{over} + 1\"")
    return str(found)


def offsets_name(name: str) -> str:
    """The input that says where each sequence of a ragged dim begins."""
    return f"{name}_offsets"
