"""What the range of a dimension may be written as: (lo, hi), (lo, hi, multiple), a range, a torch.export.Dim."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from tilewright.runtime.errors import OptionError

WANTED = "wanted (lo, hi), (lo, hi, multiple), range(lo, hi + 1) or tw.Dim(lo, hi)"


class Bounds(NamedTuple):
    """An inclusive range, and what every value is a multiple of."""

    lo: int
    hi: int
    multiple_of: int = 1


def bounds_of(value: Any, what: str) -> Bounds:
    """The bounds that a value states in one of these forms.

    Args:
        what: names the value in errors, as in "dim T".
    Raises:
        OptionError: it is none of them, or has no upper bound.
    """
    if isinstance(value, range):
        return _of_range(value, what)
    if isinstance(value, tuple | list) and len(value) in (2, 3):
        names = ("lo", "hi", "multiple_of")
        return Bounds(*(as_integer(v, f"{what}: {name}") for v, name in zip(value, names, strict=False)))
    if _is_torch_dim(value):
        return _of_torch(value, what)
    if _is_integer(value):
        raise OptionError(f"{what}: {WANTED}, got the number {value}; give ({value}, {value}) for this size alone, or (1, "
                          f"{value})")
    raise OptionError(f"{what}: {WANTED}, got {value!r} of type {type(value).__name__}; give both ends, as in (1, 128)")


def as_integer(value: Any, what: str) -> int:
    """An integer of Python or NumPy; OptionError for what is none, a bool too."""
    if not _is_integer(value):
        raise OptionError(f"{what}: wanted an integer, got {value!r} of type {type(value).__name__}; convert it with int()")
    return operator.index(value)


def as_integers(values: Any, what: str) -> tuple[int, ...] | None:
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise OptionError(f"{what}: wanted integers, got {values!r}; give them as a tuple, (1, 64)")
    return tuple(as_integer(v, what) for v in values)


def as_places(at: Any) -> tuple[str, ...] | None:
    """One place or several, such as "x.1"."""
    if at is None or isinstance(at, str):
        return None if at is None else (at,)
    places = tuple(at) if isinstance(at, Iterable) else (at,)
    if wrong := [p for p in places if not isinstance(p, str)]:
        raise OptionError(f'at: wanted places such as "x.1" (axis 1 of argument x) or "arg0.1", got {wrong[0]!r}; '
                          "write it as text")
    return places


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_torch_dim(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("__name__", "min", "max")) and not isinstance(value, type)


def _of_torch(value: Any, what: str) -> Bounds:
    if hasattr(value, "root"):
        raise OptionError(f"{what}: wanted a dimension of its own, got {value.__name__}, which follows from "
                          f"{value.root.__name__}; give the range of {value.root.__name__} alone")
    if not _is_integer(value.max) or not _is_integer(value.min):
        raise OptionError(f"{what}: wanted both bounds, got torch.export.Dim({value.__name__!r}) without a largest value; "
                          "give it one with max=, or (lo, hi)")
    return Bounds(operator.index(value.min), operator.index(value.max))


def _of_range(value: range, what: str) -> Bounds:
    if value.step < 1 or not value:
        raise OptionError(f"{what}: wanted a range that counts up and is not empty, got {value}; give range(lo, hi + 1, step)")
    if value.start % value.step:
        raise OptionError(f"{what}: wanted multiples of the step {value.step}, got {value}, which starts at {value.start}; "
                          f"start at a multiple, or give ({value.start}, {value[-1]})")
    return Bounds(value.start, value[-1], value.step)
