"""Operator: what is measured, independent of who computes it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

import ml_dtypes
import numpy as np

from tilewright.runtime.shape import Expr

Array = np.ndarray[Any, Any]
Extent = Union[int, str]
Shape = Mapping[str, int]

DTYPES: Mapping[str, Any] = {
    "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f64": np.float64, "i64": np.int64, "i32": np.int32, "ui8": np.uint8,
    "bool": np.bool_,
}  # fmt: skip
TOLERANCE: Mapping[str, float] = {"f32": 2e-5, "bf16": 8e-3}


@dataclass(frozen=True)
class Input:
    """One operand: extents are integers, names of dims or sizes over them; values are normal with this deviation.

    constant: known before the first call, so that a system may pack or fold it. dtype: where it is not the operator's. below: a
    size that integers are 0 up to; empty for floats.
    """

    dims: tuple[Extent, ...]
    constant: bool = False
    scale: float = 1.0
    dtype: str = ""
    below: str = ""


@dataclass(frozen=True)
class Operator:
    """One operator over a range of shapes.

    Args:
        name: unique, with what tells it from its siblings: dense_768x2304, dense_768x2304_argument.
        kind: which computation (the systems look it up by this): dense, bmm_nt, softmax, conv, ...
        suite: operators, models, avx2.
        ranges: dim -> (lo, hi), for which it is compiled once.
        points: the shapes measured. more_points: those added by --full.
        params: what the kind needs besides extents, such as stride.
        flops: floating-point operations as a product of extents, 0 where that says nothing.
        level: of x86-64 that code may use, such as x86-64-v3; empty for all that the machine has.
    """

    name: str
    kind: str
    suite: str
    inputs: Mapping[str, Input]
    output: tuple[Extent, ...]
    ranges: Mapping[str, tuple[int, int]]
    points: tuple[Shape, ...]
    more_points: tuple[Shape, ...] = ()
    dtype: str = "f32"
    params: Mapping[str, int | str] = field(default_factory=dict)
    flops: tuple[Extent, ...] = ()
    level: str = ""

    def constants(self) -> dict[str, Array]:
        """The operands that are the same at every shape."""
        return {n: self._values(n, {}) for n, i in self.inputs.items() if i.constant}

    def arguments(self, shape: Shape) -> dict[str, Array]:
        """The operands passed with every call."""
        return {n: self._values(n, shape) for n, i in self.inputs.items() if not i.constant}

    def empty_output(self, shape: Shape) -> Array:
        return np.empty(extents(self.output, shape), DTYPES[self.dtype])

    def work(self, shape: Shape) -> int:
        """Floating-point operations at a shape."""
        return int(np.prod(extents(self.flops, shape), dtype=np.int64)) if self.flops else 0

    def _values(self, name: str, shape: Shape) -> Array:
        given = self.inputs[name]
        rng = np.random.default_rng(zlib.crc32(f"{self.name}:{name}".encode()))
        if given.below:
            most = max(Expr.parse(given.below).evaluate(shape), 1)
            return rng.integers(0, most, extents(given.dims, shape)).astype(DTYPES[given.dtype])
        values = rng.standard_normal(extents(given.dims, shape), dtype=np.float32) * np.float32(given.scale)
        return values.astype(DTYPES[given.dtype or self.dtype])


def extents(dims: tuple[Extent, ...], shape: Shape) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else shape[d] if d in shape else Expr.parse(d).evaluate(shape) for d in dims)


def shown(shape: Shape) -> str:
    """T=5,B=1"""
    return ",".join(f"{n}={v}" for n, v in shape.items())


def relative_error(got: Array, reference: Array) -> float:
    """||got - reference|| / ||reference||; infinite when NaNs or shapes differ."""
    if got.shape != reference.shape:
        return float("inf")
    wide = got.astype(np.float64)
    if not np.array_equal(np.isnan(wide), np.isnan(reference)):
        return float("inf")
    scale = float(np.linalg.norm(np.nan_to_num(reference)))
    return float(np.linalg.norm(np.nan_to_num(wide - reference))) / (scale or 1.0)
