"""Calls with tw.Jagged that native code takes: results, keywords, references, and what it hands to Python."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.errors import TilewrightError

pytestmark = pytest.mark.usefixtures("built_here")

LENGTHS = [3, 1, 0, 8, 2, 5, 5, 8]
DIMS = {"B": (0, 64), "S": tw.Ragged(0, 40, over="B")}


@pytest.fixture(scope="module")
def two() -> tw.CompiledFunction:
    """x + r as rows, and the largest of each column: several arguments and results."""
    g = ops.Graph()
    y = ops.add(g.input("x", ["B", "S", 4]), g.input("r", ["B", "S", 4]))
    g.output(y, ops.max(y, 1))
    return tw.compile(g, DIMS)


@pytest.fixture(scope="module")
def one() -> tw.CompiledFunction:
    g = ops.Graph()
    g.output(ops.relu(g.input("x", ["B", "S", 4])))
    return tw.compile(g, DIMS)


def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((sum(LENGTHS), 4)).astype(np.float32)


@pytest.fixture
def without_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls that reach Python fail."""
    def refuse(*args: object, **named: object) -> object:
        raise AssertionError("a call came to Python")

    monkeypatch.setattr("tilewright.runtime.call.ragged_call.RaggedCall.simple", refuse)
    monkeypatch.setattr("tilewright.runtime.call.ragged_call.RaggedCall.pack", refuse)
    yield


@pytest.mark.usefixtures("without_python")
def test_results(one: tw.CompiledFunction, two: tw.CompiledFunction) -> None:
    x = tw.Jagged(rows(), lengths=LENGTHS)
    r = tw.Jagged(-2 * rows(), offsets=x.offsets)
    found = one(x)
    assert type(found) is tw.Jagged
    assert found.offsets is x.offsets
    np.testing.assert_array_equal(found.values, np.maximum(x.values, 0))
    for named in ({}, {"threads": 1}):
        y, most = two(x, r, **named)
        np.testing.assert_array_equal(y.values, x.values + r.values)
        assert type(most) is np.ndarray
        assert most.shape == (len(LENGTHS), 4)


@pytest.mark.usefixtures("without_python")
def test_given_results(one: tw.CompiledFunction, two: tw.CompiledFunction) -> None:
    """The caller's tuple stays as it is."""
    x = tw.Jagged(rows(), lengths=LENGTHS)
    out = np.empty_like(x.values)
    assert one(x, out=out).values is out
    given = out, np.empty((len(LENGTHS), 4), np.float32)
    y, most = two(x, tw.Jagged(rows(), offsets=x.offsets), out=given)
    assert y.values is out
    assert given[0] is out
    assert most is given[1]


def test_what_goes_to_python(one: tw.CompiledFunction, two: tw.CompiledFunction) -> None:
    """Offsets that are equal and not the same array; arguments of other kinds; errors as of other calls."""
    x, r = (tw.Jagged(rows(), lengths=LENGTHS) for _ in range(2))
    np.testing.assert_array_equal(two(x, r)[0].values, 2 * x.values)
    values = tw.Jagged(rows().astype(np.float64)[:, ::-1], lengths=LENGTHS)
    for wrong in (tw.Jagged(rows(), lengths=[sum(LENGTHS)]), tw.Jagged(np.zeros((41, 4), np.float32), lengths=[41]), values,
                  tw.Jagged.checked(rows(), 3), tw.Jagged.checked([1], x.offsets),
                  tw.Jagged.checked(rows(), x.offsets[:-1].copy())):
        try:
            found = one(wrong)
        except TilewrightError as error:
            assert str(error)
        else:
            np.testing.assert_array_equal(found.values, np.maximum(wrong.values, 0))
    with pytest.raises(TilewrightError, match="S = 41 of sequence 0"):
        one(tw.Jagged(np.zeros((41, 4), np.float32), lengths=[41]))
    with pytest.raises(TilewrightError):
        one(x, out=3)


def test_references(one: tw.CompiledFunction, two: tw.CompiledFunction) -> None:
    x = tw.Jagged(rows(), lengths=LENGTHS)
    r = tw.Jagged(rows(), offsets=x.offsets)
    out = np.empty_like(x.values), np.empty((len(LENGTHS), 4), np.float32)

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(o) for o in (x.offsets, x.values, r.values, out, out[0], out[1])]

    one(x), two(x, r)
    before = counts()
    for _ in range(200):
        one(x), two(x, r), two(x, r, out=out)
    assert counts() == before
