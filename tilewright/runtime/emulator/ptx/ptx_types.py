"""PTX types: their widths, and the NumPy element types that hold them."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=256)
def type_bits(name: str) -> int:
    """Width in bits of a fundamental type, `pred` is 1; ValueError names what is none."""
    if name == "pred":
        return 1
    digits = re.fullmatch(r"(?:[usbf]|bf|tf|e\dm)(\d+)(x2)?", name)
    if digits is None:
        raise ValueError(f"PTX type .{name} is unknown")
    return int(digits[1]) * (2 if digits[2] else 1)


@functools.lru_cache(maxsize=256)
def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy element type that holds a PTX type in a register; packed and bf16 types are held as bits."""
    bits = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16, "tf32": 32}.get(name)
    if bits == 1:
        return np.dtype(bool)
    if bits is not None:
        return np.dtype(f"u{bits // 8}")
    kind = {"b": "u", "u": "u", "s": "i", "f": "f"}[name[0]]
    return np.dtype(f"{kind}{int(name[1:]) // 8}")
