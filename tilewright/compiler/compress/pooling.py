"""Weights as indices of a pool of vectors of eight values: the pool, and what each weight loses by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.compress.cluster import cluster, nearest
from tilewright.compiler.compress.scopes import ASSIGNS, SCOPES
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.stored_indices import may_be_narrow, stored_size

VECTOR = 8  # values along the sum that one index stands for
MOST_ENTRIES = 256
LEAST_SHARE = 1e-6  # of the mean square of activations that a channel counts with, so that one that is always 0 has some code
_LARGEST = 127


@dataclass(frozen=True)
class PoolOptions:
    """entries: vectors of a pool, 2 to 256. scope: one pool for the "network", or one a "layer". assign: vectors are compared by
    their "distance", or, by "cosine", as they are beside others of the same output, which then has a scale of its own, or by
    their distance weighted by the "activations" that each channel meets. seed: of the k-means."""

    entries: int = 64
    scope: str = "network"
    assign: str = "distance"
    seed: int = 0

    def check(self) -> None:
        """OptionError names what is no option."""
        if not isinstance(self.entries, int) or not 2 <= self.entries <= MOST_ENTRIES:
            raise OptionError(f"compress: pool={self.entries!r}; wanted 2 to {MOST_ENTRIES} vectors, which a byte tells apart")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise OptionError(f"compress: seed={self.seed!r}; wanted a whole number from 0 on")
        for name, value, known in (("pool_scope", self.scope, SCOPES), ("assign", self.assign, ASSIGNS)):
            if value not in known:
                raise OptionError(f"compress: {name}={value!r}; wanted {' or '.join(map(repr, known))}")


@dataclass(frozen=True)
class Pooled:
    """index: ui8 [N, ..., C / 8]. pool: si8 [entries, 8]; each value times `factor`, and the output's scale, f32 [N], where it
    has one, is the weight. error: the norm of what is lost, as a share of the weight's, both weighted as vectors were."""

    index: np.ndarray
    pool: np.ndarray
    factor: float
    scale: np.ndarray | None
    error: float

    @property
    def bytes(self) -> int:
        """Stored without the pool."""
        return int(self.index.nbytes - self.saved + (0 if self.scale is None else self.scale.nbytes))

    @property
    def saved(self) -> int:
        """Bytes that indices take less in a file than in memory."""
        entries, size = len(self.pool), self.index.nbytes
        return size - stored_size(entries, size) if may_be_narrow(entries, size) else 0


def pooled(weights: Sequence[np.ndarray], options: PoolOptions, squares: Sequence[np.ndarray] = ()) -> list[Pooled]:
    """Each weight [N, ..., C] of floats, C a multiple of 8, by one pool for all or one for each. Pools are rounded to bytes.

    squares: of each weight, [C], the mean squares of what its channels are multiplied by, where vectors are compared by
    activations; else none."""
    if options.scope == "network":
        return _by_one_pool(weights, options, squares)
    return [made for n, weight in enumerate(weights) for made in _by_one_pool([weight], options, squares[n : n + 1])]


def _by_one_pool(weights: Sequence[np.ndarray], options: PoolOptions, squares: Sequence[np.ndarray]) -> list[Pooled]:
    sizes = [_sizes(w) if options.assign == "cosine" else None for w in weights]
    parts = [_vectors(w, s) for w, s in zip(weights, sizes, strict=True)]
    weighed = [_importance(w, s) for w, s in zip(weights, squares, strict=True)] if squares else [None] * len(weights)
    known = [h for h in weighed if h is not None]
    centres = cluster(np.concatenate(parts) if parts else np.zeros((0, VECTOR), np.float32), options.entries, options.seed,
                      np.concatenate(known) if known else None)
    largest = float(np.abs(centres).max(initial=0))
    factor = float(np.float32(largest / _LARGEST)) or 1.0
    pool = np.rint(centres / np.float32(factor)).clip(-_LARGEST, _LARGEST).astype(np.int8)
    values = pool.astype(np.float32) * np.float32(factor)
    found = []
    for weight, size, part, own in zip(weights, sizes, parts, weighed, strict=True):
        index = nearest(part, values, own)
        rows, wanted = values[index].reshape(len(weight), -1), weight.reshape(len(weight), -1)
        scale = None
        if size is not None:  # the scale with the least squared error, now that the vectors are known
            norm = np.square(rows.astype(np.float64)).sum(1)
            scale = np.where(norm > 0, (rows * wanted.astype(np.float64)).sum(1) / np.where(norm > 0, norm, 1), size)
            scale = scale.astype(np.float32)
            rows = rows * scale[:, None]
        root = np.ones(1) if own is None else np.sqrt(own.reshape(rows.shape).astype(np.float64))
        lost = float(np.linalg.norm((wanted - rows).astype(np.float64) * root))
        whole = float(np.linalg.norm(wanted.astype(np.float64) * root))
        shape = (*weight.shape[:-1], weight.shape[-1] // VECTOR)
        found.append(Pooled(index.astype(np.uint8).reshape(shape), pool, factor, scale, lost / whole if whole else 0.0))
    return found


def _importance(weight: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """[vectors, 8] mean squares of what each value is multiplied by, as shares of their mean; none is 0."""
    mean = float(squares.mean())
    shares = np.maximum(squares / mean, LEAST_SHARE) if mean > 0 else np.ones(len(squares))
    return np.tile(shares.astype(np.float32).reshape(-1, VECTOR), (weight.size // weight.shape[-1], 1))


def _sizes(weight: np.ndarray) -> np.ndarray:
    """The root of the mean square of each output, 1 where that is 0."""
    found = np.sqrt(np.square(weight.reshape(len(weight), -1).astype(np.float64)).mean(1))
    return np.where(found > 0, found, 1.0).astype(np.float32)


def _vectors(weight: np.ndarray, sizes: np.ndarray | None) -> np.ndarray:
    rows = weight.reshape(len(weight), -1).astype(np.float32)
    return (rows if sizes is None else rows / sizes[:, None]).reshape(-1, VECTOR)
