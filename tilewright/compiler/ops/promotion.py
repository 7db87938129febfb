"""Promotion: the element type in which operands of different types meet."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import numpy as np

from tilewright.runtime.errors import DTypeError
from tilewright.runtime.tensor import DType


class Promotion(StrEnum):
    """How a graph's operators treat operands of different element types.

    torch: bool < integers < floats; an integer meets a float in that float's type, and f16 meets bf16 in f32. A Python number
        changes the type only where its category is higher: True < 1 < 1.0; then it counts as i64 or f32.
    numpy: as NumPy 2: an integer of 32 or 64 bits meets any float in f64, one of 16 bits meets f16 in f32. A Python number counts
        as for torch, with f64 for f32.
    strict: no promotion; DTypeError when types differ or a Python number does not fit.
    """

    TORCH = "torch"
    NUMPY = "numpy"
    STRICT = "strict"


def promote_types(a: str | DType, b: str | DType, policy: str | Promotion = Promotion.TORCH) -> DType:
    """The smallest type that holds both, by the lattice of `policy`; DTypeError where the policy has none.

    No integer type holds u64 and a signed one: torch and numpy differ from each other there, and u64 with one is refused (torch)
    or f64 (numpy).
    """
    x, y, rule = DType(a), DType(b), Promotion(policy)
    if x is y:
        return x
    if rule is Promotion.STRICT:
        raise DTypeError(f"operands of {x.value} and {y.value}; cast() them to one type first")
    if DType.I1 in (x, y):
        return y if x is DType.I1 else x
    if x.is_float and y.is_float:
        return _wider_float(x, y)
    if x.is_float or y.is_float:
        floating, integer = (x, y) if x.is_float else (y, x)
        if rule is Promotion.TORCH or integer.bytes == 1:
            return floating
        return DType.F64 if integer.bytes >= 4 else _wider_float(floating, DType.F32)
    if x.is_unsigned == y.is_unsigned:
        return x if x.bytes > y.bytes else y
    unsigned, signed = (x, y) if x.is_unsigned else (y, x)
    if signed.bytes > unsigned.bytes:
        return signed
    if unsigned is DType.U64:
        if rule is Promotion.NUMPY:
            return DType.F64
        raise DTypeError(f"no integer type holds both {x.value} and {y.value}; cast() one of them first")
    return DType(f"i{16 * unsigned.bytes}")


def _wider_float(a: DType, b: DType) -> DType:
    if a.bytes != b.bytes:
        return a if a.bytes > b.bytes else b
    return a if a is b else DType.F32


def result_type(
    name: str, tensors: Iterable[DType], numbers: Iterable[object] = (), policy: str | Promotion = Promotion.TORCH
) -> DType:
    """The type in which tensors of these types and Python numbers meet.

    A number takes part by its category alone: a bool never changes the type, an int changes only i1, a float only i1 and
    integers.

    Raises:
        DTypeError: the policy refuses. name: the operator, for the message.
    """
    rule, common = Promotion(policy), None
    try:
        for dtype in tensors:
            common = dtype if common is None else promote_types(common, dtype, rule)
    except DTypeError as error:
        raise DTypeError(f"{name}: {error}") from None
    given = list(numbers)
    floating = any(isinstance(n, (float, np.floating)) for n in given)
    whole = any(not isinstance(n, (bool, np.bool_)) for n in given)
    wide = DType.F64 if rule is Promotion.NUMPY else DType.F32
    needed = wide if floating else DType.I64 if whole else DType.I1
    if common is None:
        return needed
    rises = (floating and not common.is_float) or (whole and common is DType.I1)
    if rises and rule is Promotion.STRICT:
        raise DTypeError(f"{name}: a number of {needed.value} beside operands of {common.value}; cast() them first")
    return needed if rises else common
