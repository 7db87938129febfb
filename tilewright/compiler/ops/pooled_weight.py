"""Weights out of code books as other tools store them, in the form that `decode_pool` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.ops.graph import Graph, Tensor
from tilewright.compiler.ops.pools import MOST_ENTRIES, decode_pool
from tilewright.runtime.errors import OptionError, ShapeError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class PooledWeight:
    """The weight [N, K] whose values are sums of vectors that bytes name, one of each book, times a scale an output.

    index: ui8 [N, K / V] of each book. pools: [entries, V] of each, f32 or f16. scale: f32 or f16 [N].

    Made by `PooledWeight.aqlm(codes, codebooks, scales)`.
    """

    index: tuple[Array, ...]
    pools: tuple[Array, ...]
    scale: Array

    @staticmethod
    def aqlm(codes: Array, codebooks: Array, scales: Array) -> PooledWeight:
        """Of AQLM's tensors: codes [N, K / V, books], whole numbers of which the low bits count; codebooks
        [books, entries, 1, V]; scales [N, 1, 1, 1]. Source: Extreme Compression of Large Language Models via Additive
        Quantization (ICML 2024), and the layout of its package `aqlm`.

        Vectors of other than 8 values are decoded as they are loaded.

        Raises:
            ShapeError: no such tensors, or groups of several outputs. OptionError: more than 256 entries a book, as of 1x16,
                which a byte does not tell apart.
        """
        codes, codebooks, scales = np.asarray(codes), np.asarray(codebooks), np.asarray(scales)
        if codes.ndim != 3 or codebooks.ndim != 4 or len(codebooks) != codes.shape[2] or not len(codebooks) or \
                codebooks.shape[2] != 1 or not codebooks.shape[3] or scales.shape != (len(codes), 1, 1, 1):
            raise ShapeError(f"PooledWeight.aqlm: codes {codes.shape}, codebooks {codebooks.shape}, scales {scales.shape}; "
                             "wanted [N, groups, books], [books, entries, 1, values] and [N, 1, 1, 1], groups of one output")
        books, entries, _, vector = codebooks.shape
        if entries > MOST_ENTRIES or entries & (entries - 1) or not entries:
            raise OptionError(f"PooledWeight.aqlm: books of {entries} entries; wanted a power of two up to {MOST_ENTRIES}, which "
                              "a byte tells apart")
        if codes.dtype.kind not in "iu":
            raise ShapeError(f"PooledWeight.aqlm: codes of {codes.dtype}; wanted whole numbers")
        named = (codes.astype(np.int64) & (entries - 1)).astype(np.uint8)
        values = codebooks.reshape(books, entries, vector)
        values = values if values.dtype in (np.float16, np.float32) else values.astype(np.float32)
        index = tuple(np.ascontiguousarray(named[:, :, b]) for b in range(books))
        pools = tuple(np.ascontiguousarray(v) for v in values)
        scale = scales.reshape(-1)
        return PooledWeight(index, pools, scale if scale.dtype in (np.float16, np.float32) else scale.astype(np.float32))

    def tensor(self, graph: Graph) -> Tensor:
        """The weight [N, K] as constants of a graph, decoded where it is read: `dense(x, w.tensor(g), transposed=True)`."""
        return decode_pool([graph.constant(i) for i in self.index], [graph.constant(p) for p in self.pools],
                           graph.constant(self.scale))

    @property
    def bytes(self) -> int:
        """Of all that is stored, the books too."""
        return sum(a.nbytes for a in (*self.index, *self.pools, self.scale))
