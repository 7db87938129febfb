"""A weight in few bits: codes, and the scale of each group, that are nearest to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.compiler.ops.packed_weight import packed

_TRIED = np.linspace(0.70, 1.05, 15)  # of the scale at which the largest value of a group is a code
_AT_ONCE = 1 << 20  # values


@dataclass(frozen=True)
class Quantised:
    """codes: ui8 [N, bytes], 8 / bits codes a byte, the first in its low bits; of 3, 5, 6 and 7 bits several, as `decode` takes
    them. scale: f32 [N, groups], or [N] of one group.

    error: the norm of what is lost, as a share of the weight's.
    """

    codes: tuple[np.ndarray, ...]
    scale: np.ndarray
    bits: int
    group: int
    error: float

    @property
    def bytes(self) -> int:
        return int(sum(c.nbytes for c in self.codes) + self.scale.nbytes)


def quantise(weight: np.ndarray, bits: int, group: int) -> Quantised:
    """The weight [N, K] as (code - 2 ** (bits - 1)) * scale. Of each group the scale with the least squared error is taken, out
    of some around the one that makes a code of the value of largest magnitude."""
    n, k = weight.shape
    size = group or max(1, k)
    groups = -(-k // size)
    padded = np.zeros((n, groups * size), np.float32)
    padded[:, :k] = weight
    values = padded.reshape(n * groups, size)
    codes, scale = np.empty(values.shape, np.uint8), np.empty(len(values), np.float32)
    rows = max(1, _AT_ONCE // size)
    for first in range(0, len(values), rows):
        part = slice(first, first + rows)
        codes[part], scale[part] = _nearest(values[part], bits)
    decoded = (codes.astype(np.float32) - np.float32(1 << (bits - 1))) * scale[:, None]
    lost = float(np.linalg.norm((values - decoded).reshape(n, -1)[:, :k].astype(np.float64)))
    whole = float(np.linalg.norm(weight.astype(np.float64)))
    return Quantised(packed(codes.reshape(n, -1)[:, :k], bits), scale.reshape((n, groups) if groups > 1 else (n,)),
                     bits, group, lost / whole if whole else 0.0)


def _nearest(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scale of each row."""
    middle = 1 << (bits - 1)
    largest = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)[:, 0]
    base = (largest / np.float32(-middle)).astype(np.float32)
    best = np.full(len(values), np.inf, np.float32)
    codes, scale = np.full(values.shape, middle, np.uint8), np.zeros(len(values), np.float32)
    for factor in _TRIED:
        tried = (base * np.float32(factor)).astype(np.float32)
        safe = np.where(tried == 0, np.float32(1), tried)
        code = np.clip(np.rint(values / safe[:, None]) + middle, 0, 2 * middle - 1)
        error = np.square(values - (code - middle).astype(np.float32) * tried[:, None]).sum(1)
        better = error < best
        best[better], scale[better] = error[better], tried[better]
        codes[better] = code[better].astype(np.uint8)
    return codes, scale
