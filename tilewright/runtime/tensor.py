"""Element types and symbolic tensor types that cross package borders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.errors import DTypeError
from tilewright.runtime.shape import Expr

_PLAIN = {"i1": "?", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "f16": "f2", "f32": "f4", "f64": "f8",
          "ui8": "u1", "ui16": "u2", "ui32": "u4", "ui64": "u8"}


class DType(Enum):
    """Element types by their MLIR names. In the IR, and so inside kernels, an unsigned type is the signless one of its width."""

    I1 = "i1"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "ui8"
    U16 = "ui16"
    U32 = "ui32"
    U64 = "ui64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    F8E4M3 = "f8E4M3FN"
    F8E5M2 = "f8E5M2"

    @cached_property
    def bytes(self) -> int:
        """Bytes one element takes in memory (i1 takes a whole byte)."""
        sizes = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
        return sizes.get(self.signless.value, 1)

    @property
    def is_unsigned(self) -> bool:
        return self.value.startswith("u")

    @property
    def signless(self) -> DType:
        """The type that the IR has for this one: of the same bits, without a sign of its own."""
        return DType(self.value.removeprefix("u"))

    @property
    def unsigned(self) -> DType:
        """The unsigned integer type of the same width."""
        return self if self.is_unsigned else DType("u" + self.value)

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest value of an integer type."""
        bits = 8 * self.bytes
        if self is DType.I1:
            return 0, 1
        return (0, (1 << bits) - 1) if self.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)

    @property
    def is_float(self) -> bool:
        return self.value.startswith(("f", "b"))

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype; bf16 and fp8 come from ml_dtypes."""
        if self.value in _PLAIN:
            return np.dtype(_PLAIN[self.value])
        try:
            import ml_dtypes
        except ImportError as error:
            raise DTypeError(f"NumPy has no {self.value} of its own: pip install ml_dtypes") from error
        extra: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
        made: np.dtype[np.generic] = np.dtype(extra[self.value])
        return made

    @staticmethod
    def of(dtype: npt.DTypeLike) -> DType:
        """From a NumPy dtype; DTypeError when there is no such element type."""
        wanted = np.dtype(dtype)
        for candidate in sorted(DType, key=lambda d: d.value not in _PLAIN):  # so that plain types need no ml_dtypes
            if candidate.numpy == wanted:
                return candidate
        raise DTypeError(f"element type {wanted} is not supported; use one of {', '.join(d.value for d in DType)}")


@dataclass(frozen=True)
class TensorSpec:
    """A ranked tensor whose extents are expressions over dims. `dims` is () for a scalar tensor."""

    dtype: DType
    dims: tuple[Expr, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.dims))}]"
