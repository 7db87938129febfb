"""How far a computed array lies from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.errors import ShapeError


@dataclass(frozen=True)
class Comparison:
    """Errors of a result relative to the reference, over the positions where both are finite.

    norm_error: ||got - want||_2 / ||want||_2; max_error: max|got - want| / max|want|. Both are absolute when the
    reference is all zero.
    nonfinite_match: NaN, +inf and -inf stand at the same positions.
    """

    norm_error: float
    max_error: float
    nonfinite_match: bool

    def ok(self, norm: float = 2e-5, max: float = 1e-4) -> bool:  # noqa: A002
        """Are both errors within the bounds (inclusive), and the non-finite values where they should be?"""
        return self.nonfinite_match and self.norm_error <= norm and self.max_error <= max

    def __str__(self) -> str:
        places = "" if self.nonfinite_match else ", NaN or inf at other positions"
        return f"norm error {self.norm_error:.2e}, max error {self.max_error:.2e}{places}"


def compare(got: npt.ArrayLike, want: npt.ArrayLike) -> Comparison:
    """Compare `got` (any element type) with the reference `want` of the same shape; ShapeError when the shapes differ.

    Where the reference overflows the element type of `got`, an infinity is right.
    """
    result, reference = np.asarray(got), np.asarray(want)
    if result.shape != reference.shape:
        raise ShapeError(f"cannot compare an array of shape {result.shape} with a reference of shape {reference.shape}")
    with np.errstate(all="ignore"):
        rounded = reference.astype(result.dtype).astype(np.float64)
        wide = result.astype(np.float64)
        finite = np.isfinite(wide) & np.isfinite(rounded)
        match = np.array_equal(np.where(finite, 0.0, wide), np.where(finite, 0.0, rounded), equal_nan=True)
        difference = _difference(result, reference)[finite]
        scale = reference.astype(np.float64)[finite]
    return Comparison(_ratio(_norm(difference), _norm(scale)), _ratio(_peak(difference), _peak(scale)), match)


def _difference(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> npt.NDArray[Any]:
    exact = all(np.issubdtype(a.dtype, np.integer) for a in (got, want))
    return (got.astype(np.int64) - want.astype(np.int64) if exact else got.astype(np.float64) - want).astype(np.float64)


def _norm(a: npt.NDArray[Any]) -> float:
    return float(np.sqrt(np.sum(np.square(a))))


def _peak(a: npt.NDArray[Any]) -> float:
    return float(np.max(np.abs(a), initial=0.0))


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else error
