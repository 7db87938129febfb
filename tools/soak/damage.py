"""Damage to the bytes of a file."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[bytes, random.Random], bytes]


def flipped(data: bytes, rng: random.Random) -> bytes:
    """With another value of one bit."""
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1:]


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(max(1, len(data)))]


def scribbled(data: bytes, rng: random.Random) -> bytes:
    """With other bytes from some place on."""
    at = rng.randrange(max(1, len(data)))
    return data[:at] + rng.randbytes(len(data) - at)
