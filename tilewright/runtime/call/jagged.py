"""Jagged: entries of different lengths in one array, one after the other; the arguments and results of ragged calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.ragged_dim import checked_align

Offsets = npt.NDArray[np.int64]


class Jagged:
    """Sequences along axis 0 of one array: `jagged[i]` is `values[starts[i] : starts[i] + lengths[i]]`.

    Args:
        values: an array or torch tensor with the rows of all sequences.
        lengths: rows of each sequence. offsets: the sums of the lengths, 0 first. One of the two.
        align: every sequence begins at a row that is a multiple of it, and the rows end at one; 1: each begins where the one
            before ends, which is what offsets say.
    Raises:
        OptionError: neither or both, or `align` is below 1. DTypeError: they are no integers. ShapeError: they do not add up to
            the rows, or fall.
    """

    __slots__ = ("offsets", "values")

    align = 1

    def __new__(cls, values: Any, lengths: Any = None, offsets: Any = None, align: int = 1) -> Jagged:
        return object.__new__(cls if checked_align(align, "Jagged") == 1 else AlignedJagged)

    def __init__(self, values: Any, lengths: Any = None, offsets: Any = None, align: int = 1) -> None:
        if (lengths is None) == (offsets is None):
            raise OptionError("Jagged: wanted lengths or offsets, got " + ("neither" if lengths is None else "both")
                              + "; give one of them")
        self.values = values
        self.offsets: Offsets = checked_offsets(offsets) if offsets is not None else offsets_of(lengths)
        if not len(getattr(values, "shape", ())):
            raise ShapeError(f"Jagged: wanted an array with the rows of all sequences, got {type(values).__name__} without axes; "
                             "join the sequences along axis 0")
        rows = self.starts[-1]
        if rows != values.shape[0]:
            ends = f" with the rows that align={align} leaves between them" if align > 1 else ""
            raise ShapeError(f"Jagged: the lengths add up to {rows}{ends}, and the array has {values.shape[0]} rows; pass "
                             "one length for each sequence")

    @staticmethod
    def of(sequences: Sequence[Any], align: int = 1) -> Jagged:
        """From arrays, or torch tensors, that agree in all axes but the first; rows between them are 0."""
        values = joined(sequences, "Jagged")
        return Jagged(values, lengths=[len(s) for s in sequences]).aligned(align)

    @staticmethod
    def checked(values: Any, offsets: Offsets, align: int = 1) -> Jagged:
        """From offsets that are known to be those of the rows."""
        made = object.__new__(Jagged if align == 1 else AlignedJagged)
        made.values, made.offsets = values, offsets
        if isinstance(made, AlignedJagged):
            made.align = align
        return made

    def aligned(self, align: int) -> Jagged:
        """The same sequences with another alignment, in a new array; rows between them are 0."""
        if checked_align(align, "Jagged") == self.align:
            return self
        return Jagged.checked(spread(self.values, self.offsets, self.align, align), self.offsets, align)

    @property
    def starts(self) -> Offsets:
        """The row at which each sequence begins, then the number of rows."""
        return starts_of(self.offsets, self.align)

    @property
    def lengths(self) -> Offsets:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Any:
        position = range(len(self))[number]
        start, end = int(self.offsets[position]), int(self.offsets[position + 1])
        first = start if self.align == 1 else int(self.starts[position])
        return self.values[first : first + end - start]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Jagged({len(self)} sequences of {', '.join(map(str, self.lengths[:8]))}{', ...' if len(self) > 8 else ''} rows)"


class AlignedJagged(Jagged):
    """One whose sequences are aligned: what `Jagged` makes with align=."""

    __slots__ = ("align",)

    def __init__(self, values: Any, lengths: Any = None, offsets: Any = None, align: int = 1) -> None:
        self.align = align
        super().__init__(values, lengths, offsets, align)


def starts_of(offsets: Offsets, align: int) -> Offsets:
    """The row at which each sequence begins where these are aligned, then the number of rows."""
    if align == 1:
        return offsets
    found = np.zeros_like(offsets)
    np.cumsum(-(-np.diff(offsets) // align) * align, out=found[1:])
    return found


def spread(values: Any, offsets: Offsets, before: int, after: int) -> Any:
    """The rows of sequences that are aligned to `before` rows as those aligned to `after`; rows between them are 0."""
    old, new, lengths = (a.tolist() for a in (starts_of(offsets, before), starts_of(offsets, after), np.diff(offsets)))
    torch = sys.modules.get("torch")
    shape = (new[-1], *values.shape[1:])
    if torch is not None and isinstance(values, torch.Tensor):
        made = torch.zeros(shape, dtype=values.dtype, device=values.device)
    else:
        values = np.asarray(values)
        made = np.zeros(shape, values.dtype)
    for source, target, length in zip(old, new, lengths, strict=False):
        made[target : target + length] = values[source : source + length]
    return made


def offsets_of(lengths: Any, what: str = "lengths") -> Offsets:
    """Where sequences of these lengths begin, and where the last one ends."""
    given = _integers(lengths, what)
    if (low := np.flatnonzero(given < 0)).size:
        raise ShapeError(f"{what}: wanted lengths from 0 on, got {given[low[0]]} for sequence {low[0]}; pass its number of rows")
    found = np.zeros(len(given) + 1, np.int64)
    np.cumsum(given, out=found[1:])
    return found


def checked_offsets(offsets: Any, what: str = "offsets") -> Offsets:
    """Offsets that begin at 0 and do not fall."""
    given = _integers(offsets, what)
    if not len(given) or given[0] != 0:
        raise ShapeError(f"{what}: wanted 0 and then the end of each sequence, got {given[:1].tolist() or 'none'} first; begin "
                         "with 0")
    if (low := np.flatnonzero(np.diff(given) < 0)).size:
        number = low[0]
        raise ShapeError(f"{what}: sequence {number} ends at {given[number + 1]}, before it begins at {given[number]}; pass "
                         "offsets that do not fall")
    return given


def joined(sequences: Sequence[Any], what: str) -> Any:
    """One array of the rows of all."""
    if not len(sequences):
        raise ShapeError(f"{what}: a list of no sequences has no extents; pass tw.Jagged(values, lengths=[]) with values of no "
                         "rows")
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(s, torch.Tensor) for s in sequences):
        join: Any = torch.cat
    else:
        sequences, join = [array_of(s, f"{what}: sequence {number}") for number, s in enumerate(sequences)], np.concatenate
    first = sequences[0]
    if not first.shape:
        raise ShapeError(f"{what}: sequence 0 is {first.dtype} without axes; wanted an array with its rows along axis 0")
    for number, sequence in enumerate(sequences):
        if len(sequence.shape) < 1 or tuple(sequence.shape[1:]) != tuple(first.shape[1:]) or sequence.dtype != first.dtype:
            raise ShapeError(f"{what}: sequence {number} is {sequence.dtype}{list(sequence.shape)}, sequence 0 is {first.dtype}"
                             f"{list(first.shape)}; wanted arrays that differ in axis 0 alone")
    return join(list(sequences))


def _integers(given: Any, what: str) -> Offsets:
    array = array_of(given, what)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DTypeError(f"{what}: wanted integers in one axis, got {array.dtype.name}{list(array.shape)}; convert them with "
                         "astype('int64')")
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ShapeError(f"{what}: wanted numbers of rows, got {array.max()}; no array has as many")
    return np.ascontiguousarray(array, np.int64)


def array_of(given: Any, what: str) -> npt.NDArray[Any]:
    """As NumPy has it; DTypeError for nested lists of different lengths."""
    try:
        return np.asarray(given)
    except ValueError as error:
        raise DTypeError(f"{what}: wanted an array, got {type(given).__name__} whose parts differ in length; "
                         "pass an array") from error
