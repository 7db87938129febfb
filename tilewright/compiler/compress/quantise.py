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

    error: the norm of what is lost, as a share of the weight's, both weighted as errors were.
    """

    codes: tuple[np.ndarray, ...]
    scale: np.ndarray
    bits: int
    group: int
    error: float

    @property
    def bytes(self) -> int:
        return int(sum(c.nbytes for c in self.codes) + self.scale.nbytes)


def quantise(weight: np.ndarray, bits: int, group: int, squares: np.ndarray | None = None) -> Quantised:
    """The weight [N, K] as (code - 2 ** (bits - 1)) * scale. Of each group the scale with the least squared error is taken, out
    of some around the one that makes a code of the value of largest magnitude. squares: [K], by which squares of errors are
    weighted, the mean squares of what the weight is multiplied by; None for 1."""
    n, k = weight.shape
    size = group or max(1, k)
    groups = -(-k // size)
    padded = np.zeros((n, groups * size), np.float32)
    padded[:, :k] = weight
    values = padded.reshape(n * groups, size)
    codes, scale = np.empty(values.shape, np.uint8), np.empty(len(values), np.float32)
    rows = max(1, _AT_ONCE // size)
    weights = np.zeros((groups, size), np.float32)
    weights.reshape(-1)[:k] = 1 if squares is None else squares / (float(squares.mean()) or 1.0)
    for first in range(0, len(values), rows):
        part = slice(first, first + rows)
        own = weights[np.arange(first, min(first + rows, len(values))) % groups]
        codes[part], scale[part] = _nearest(values[part], bits, own)
    decoded = (codes.astype(np.float32) - np.float32(1 << (bits - 1))) * scale[:, None]
    root = np.sqrt(weights.reshape(-1)[:k].astype(np.float64))
    lost = float(np.linalg.norm((values - decoded).reshape(n, -1)[:, :k].astype(np.float64) * root))
    whole = float(np.linalg.norm(weight.astype(np.float64) * root))
    return Quantised(packed(codes.reshape(n, -1)[:, :k], bits), scale.reshape((n, groups) if groups > 1 else (n,)),
                     bits, group, lost / whole if whole else 0.0)


def _nearest(values: np.ndarray, bits: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scale of each row. weights: of the squares of errors, like the values."""
    middle = 1 << (bits - 1)
    largest = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)[:, 0]
    base = (largest / np.float32(-middle)).astype(np.float32)
    best = np.full(len(values), np.inf, np.float32)
    codes, scale = np.full(values.shape, middle, np.uint8), np.zeros(len(values), np.float32)
    for factor in _TRIED:
        tried = (base * np.float32(factor)).astype(np.float32)
        safe = np.where(tried == 0, np.float32(1), tried)
        code = np.clip(np.rint(values / safe[:, None]) + middle, 0, 2 * middle - 1)
        error = (np.square(values - (code - middle).astype(np.float32) * tried[:, None]) * weights).sum(1)
        better = error < best
        best[better], scale[better] = error[better], tried[better]
        codes[better] = code[better].astype(np.uint8)
    return codes, scale
