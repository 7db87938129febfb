"""Sizes in bytes as text: 64M is 64 times 2^20."""

from __future__ import annotations

_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int:
    """Bytes of `512`, `64K`, `200M`, `1.5G`, binary multiples; ValueError for anything else."""
    scale = _UNITS.get(text[-1:].upper())
    value = float(text if scale is None else text[:-1]) * (1 << (scale or 0))
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return int(value)


def size_text(size: int) -> str:
    """A size as such a text, exactly: 64M, 65537, 3K."""
    for unit, shift in reversed(_UNITS.items()):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)
