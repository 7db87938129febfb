"""Weights out of code books of other tools: against their own formula, in a product, and what is no such weight."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops import PooledWeight
from tilewright.runtime.errors import OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(9)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def aqlm(books: int, bits: int, shape: tuple[int, int] = (72, 64), kind: str = "i1", vector: int = 8) -> Arrays:
    """Tensors as AQLM stores them, with codes of a sign where their bits fill the type."""
    n, k = shape
    codes = RNG.integers(0, 1 << bits, (n, k // vector, books)).astype(kind)
    return (codes, RNG.standard_normal((books, 1 << bits, 1, vector)).astype(np.float16),
            (RNG.random((n, 1, 1, 1)) + 0.5).astype(np.float16))


def weight(codes: np.ndarray, codebooks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[N, K] in float64, as AQLM's own `_dequantize_weight` has it for groups of one output."""
    books, entries = codebooks.shape[:2]
    named = codes.astype(np.int64) % entries
    values = sum(codebooks[b, named[:, :, b], 0].astype(np.float64) for b in range(books))
    return np.asarray(values).reshape(len(codes), -1) * scales.reshape(-1, 1).astype(np.float64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("books,bits,kind", [(2, 8, "i1"), (1, 8, "i1"), (1, 6, "i2"), (4, 8, "i4")])
def test_products_with_books(books: int, bits: int, kind: str) -> None:
    given = aqlm(books, bits, kind=kind)
    made = PooledWeight.aqlm(*given)
    assert made.bytes == 72 * 8 * books + books * (1 << bits) * 16 + 72 * 2
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["M", 64]), made.tensor(g), transposed=True))
    fn, wanted = tw.compile(g, {"M": (1, 9)}), weight(*given)
    assert "host_pools" in str(fn.explain(M=1))
    for rows in (1, 9):
        x = RNG.standard_normal((rows, 64)).astype(np.float32)
        room = np.abs(x) @ np.abs(wanted).T
        assert (np.abs(fn(x) - x.astype(np.float64) @ wanted.T) / room).max() < 1e-5


def test_longer_vectors_are_decoded() -> None:
    given = aqlm(1, 8, vector=16)
    g = ops.Graph()
    g.output(ops.dense(g.input("x", [3, 64]), PooledWeight.aqlm(*given).tensor(g), transposed=True))
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    assert np.allclose(tw.compile(g)(x), x @ weight(*given).T, rtol=1e-3, atol=1e-3)


def test_what_is_no_such_weight_is_named() -> None:
    codes, books, scales = aqlm(2, 8)
    for given, error, message in (
        ((codes[:, :, 0], books, scales), ShapeError, "wanted \\[N, groups, books\\]"),
        ((codes, books[:1], scales), ShapeError, "codebooks \\(1, 256, 1, 8\\)"),
        ((codes, books, scales[:5]), ShapeError, "scales \\(5, 1, 1, 1\\)"),
        ((codes, books.repeat(2, axis=2), scales), ShapeError, "groups of one output"),
        ((codes, books[:, :100], scales), OptionError, "books of 100 entries"),
        ((codes.astype("i2"), np.zeros((2, 1 << 16, 1, 8), "f2"), scales), OptionError, "up to 256"),
        ((codes.astype("f4"), books, scales), ShapeError, "codes of float32"),
    ):
        with pytest.raises(error, match=message):
            PooledWeight.aqlm(*given)
