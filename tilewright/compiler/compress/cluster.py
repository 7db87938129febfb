"""k-means: a few vectors that stand for many.

Starting vectors are drawn by k-means++ (Arthur and Vassilvitskii, 2007), improved by mini-batches (Sculley, 2010), then by whole
rounds. The result follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SAMPLE = 1 << 14  # vectors that the first centres are drawn from
_BATCH, _BATCHES = 1 << 12, 60
_WHOLE, _ROUNDS = 1 << 17, 8  # most vectors of whole rounds, and how many of these
_AT_ONCE = 1 << 16


def cluster(vectors: np.ndarray, entries: int, seed: int, importance: np.ndarray | None = None) -> np.ndarray:
    """The centres [entries, V], f32, of vectors [count, V] that are finite; fewer vectors than entries repeat.

    importance: [count, V], above 0, by which the squares of differences are weighted; None where all weigh the same.
    """
    rng = np.random.default_rng(seed)
    vectors = np.ascontiguousarray(vectors, np.float32)
    if len(vectors) <= entries:
        return vectors[np.arange(entries) % max(1, len(vectors))] if len(vectors) else np.zeros((entries, vectors.shape[1]), "f4")
    every = Points(vectors, importance)
    centres = _starts(every.some(_SAMPLE, rng), entries, rng)
    if len(vectors) > _BATCH:
        _by_batches(every, centres, rng)
    most = every.some(_WHOLE, rng)
    for _ in range(_ROUNDS):
        before = centres.copy()
        _whole_round(most, centres)
        if np.array_equal(before, centres):
            break
    return centres


@dataclass(frozen=True)
class Points:
    """vectors: [count, V]. importance: by which squares of differences are weighted, like the vectors; None for 1."""

    vectors: np.ndarray
    importance: np.ndarray | None = None

    def at(self, places: np.ndarray | slice) -> Points:
        return Points(self.vectors[places], None if self.importance is None else self.importance[places])

    def some(self, most: int, rng: np.random.Generator) -> Points:
        """All, or so many drawn."""
        count = len(self.vectors)
        return self if count <= most else self.at(rng.choice(count, most, replace=False))

    def off(self, centres: np.ndarray) -> np.ndarray:
        """The weighted square of the distance of each vector to a centre, or to one of its own."""
        squares = np.square(self.vectors - centres)
        found: np.ndarray = (squares if self.importance is None else squares * self.importance).sum(1)
        return found


def nearest(vectors: np.ndarray, centres: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """The number of the nearest centre of each vector, the first of equals. importance: as of `cluster`."""
    found = np.empty(len(vectors), np.int64)
    squares = np.square(centres)
    for first in range(0, len(vectors), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        if importance is None:
            found[part] = (squares.sum(1) - 2 * (vectors[part] @ centres.T)).argmin(1)
        else:
            weighed = vectors[part] * importance[part]
            found[part] = (importance[part] @ squares.T - 2 * (weighed @ centres.T)).argmin(1)
    return found


def _starts(points: Points, entries: int, rng: np.random.Generator) -> np.ndarray:
    """Each next one is drawn with a probability that grows with the square of its distance to those before."""
    vectors = points.vectors
    centres = np.empty((entries, vectors.shape[1]), np.float32)
    centres[0] = vectors[rng.integers(len(vectors))]
    left = points.off(centres[0]).astype(np.float64)
    for n in range(1, entries):
        total = left.sum()
        at = rng.choice(len(vectors), p=left / total) if total > 0 else rng.integers(len(vectors))
        centres[n] = vectors[at]
        left = np.minimum(left, points.off(centres[n]))
    return centres


def _by_batches(points: Points, centres: np.ndarray, rng: np.random.Generator) -> None:
    counts = np.zeros(centres.shape)
    for _ in range(_BATCHES):
        batch = points.at(rng.integers(0, len(points.vectors), _BATCH))
        sums, some = _sums(batch, nearest(batch.vectors, centres, batch.importance), len(centres))
        counts += some
        moved = some > 0
        centres[moved] += ((sums[moved] - some[moved] * centres[moved]) / counts[moved]).astype(np.float32)


def _whole_round(points: Points, centres: np.ndarray) -> None:
    """Each centre becomes the mean of its vectors; one without any moves to the vector that is farthest from its own."""
    own = nearest(points.vectors, centres, points.importance)
    sums, counts = _sums(points, own, len(centres))
    empty = np.flatnonzero(np.bincount(own, minlength=len(centres)) == 0)
    if len(empty):
        far = points.off(centres[own]).argsort(kind="stable")[::-1][: len(empty)]
        centres[empty] = points.vectors[far]
    some = counts > 0
    centres[some] = (sums[some] / counts[some]).astype(np.float32)


def _sums(points: Points, own: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """[count, V] sums of the vectors of each centre, and of what they weigh."""
    places = range(points.vectors.shape[1])
    if points.importance is None:
        whole = np.bincount(own, minlength=count).astype(np.float64)
        sums = np.stack([np.bincount(own, points.vectors[:, c], count) for c in places], 1)
        return sums, np.repeat(whole[:, None], len(places), 1)
    weighed = points.vectors * points.importance
    return (np.stack([np.bincount(own, weighed[:, c], count) for c in places], 1),
            np.stack([np.bincount(own, points.importance[:, c], count) for c in places], 1))
