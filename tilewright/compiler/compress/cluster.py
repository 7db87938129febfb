"""k-means: a few vectors that stand for many.

Starting vectors are drawn by k-means++ (Arthur and Vassilvitskii, 2007), improved by mini-batches (Sculley, 2010), then by whole
rounds. The result follows from the seed.
"""

from __future__ import annotations

import numpy as np

_SAMPLE = 1 << 14  # vectors that the first centres are drawn from
_BATCH, _BATCHES = 1 << 12, 60
_WHOLE, _ROUNDS = 1 << 17, 8  # most vectors of whole rounds, and how many of these
_AT_ONCE = 1 << 16


def cluster(vectors: np.ndarray, entries: int, seed: int) -> np.ndarray:
    """The centres [entries, V], f32, of vectors [count, V] that are finite; fewer vectors than entries repeat."""
    rng = np.random.default_rng(seed)
    vectors = np.ascontiguousarray(vectors, np.float32)
    if len(vectors) <= entries:
        return vectors[np.arange(entries) % max(1, len(vectors))] if len(vectors) else np.zeros((entries, vectors.shape[1]), "f4")
    sample = vectors if len(vectors) <= _SAMPLE else vectors[rng.choice(len(vectors), _SAMPLE, replace=False)]
    centres = _starts(sample, entries, rng)
    if len(vectors) > _BATCH:
        _by_batches(vectors, centres, rng)
    most = vectors if len(vectors) <= _WHOLE else vectors[rng.choice(len(vectors), _WHOLE, replace=False)]
    for _ in range(_ROUNDS):
        before = centres.copy()
        _whole_round(most, centres)
        if np.array_equal(before, centres):
            break
    return centres


def nearest(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The number of the nearest centre of each vector, the first of equals."""
    found = np.empty(len(vectors), np.int64)
    squares = np.square(centres).sum(1)
    for first in range(0, len(vectors), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        found[part] = (squares - 2 * (vectors[part] @ centres.T)).argmin(1)
    return found


def _starts(vectors: np.ndarray, entries: int, rng: np.random.Generator) -> np.ndarray:
    """Each next one is drawn with a probability that grows with the square of its distance to those before."""
    centres = np.empty((entries, vectors.shape[1]), np.float32)
    centres[0] = vectors[rng.integers(len(vectors))]
    left = np.square(vectors - centres[0]).sum(1).astype(np.float64)
    for n in range(1, entries):
        total = left.sum()
        at = rng.choice(len(vectors), p=left / total) if total > 0 else rng.integers(len(vectors))
        centres[n] = vectors[at]
        left = np.minimum(left, np.square(vectors - centres[n]).sum(1))
    return centres


def _by_batches(vectors: np.ndarray, centres: np.ndarray, rng: np.random.Generator) -> None:
    counts = np.zeros(len(centres))
    for _ in range(_BATCHES):
        batch = vectors[rng.integers(0, len(vectors), _BATCH)]
        sums, some = _sums(batch, nearest(batch, centres), len(centres))
        counts += some
        moved = some > 0
        centres[moved] += ((sums[moved] - some[moved, None] * centres[moved]) / counts[moved, None]).astype(np.float32)


def _whole_round(vectors: np.ndarray, centres: np.ndarray) -> None:
    """Each centre becomes the mean of its vectors; one without any moves to the vector that is farthest from its own."""
    own = nearest(vectors, centres)
    sums, counts = _sums(vectors, own, len(centres))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        far = np.square(vectors - centres[own]).sum(1).argsort(kind="stable")[::-1][: len(empty)]
        centres[empty] = vectors[far]
    some = counts > 0
    centres[some] = (sums[some] / counts[some, None]).astype(np.float32)


def _sums(vectors: np.ndarray, own: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    sums = np.stack([np.bincount(own, vectors[:, c], count) for c in range(vectors.shape[1])], 1)
    return sums, np.bincount(own, minlength=count).astype(np.float64)
