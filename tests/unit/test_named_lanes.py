"""Places compared with one that a label names: right for labels of any size, in whole vectors and in what is left of a row."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops

COLUMNS = 37
LABELS = (0, 7, 8, 36, 37, -1, 2**32 + 3, -(2**32) + 3, 2**31, -(2**63), 2**63 - 1)


@pytest.fixture(scope="module", params=["eq", "ne"])
def labelled(request: pytest.FixtureRequest) -> tuple[str, tw.CompiledFunction]:
    """Elements at a row's label, or at all other places, are changed."""
    g = ops.Graph()
    x, label = g.input("x", ["T", COLUMNS], dtype="f32"), g.input("label", ["T", 1], dtype="i64")
    places = ops.iota(g, [1, COLUMNS], axis=1)
    g.output(ops.where(ops.compare(places, label, request.param), x - 1.0, x), name="y")
    return request.param, tw.compile(g, {"T": (1, 64)})


def test_labels_of_any_size_name_their_own_place(labelled: tuple[str, tw.CompiledFunction]) -> None:
    predicate, fn = labelled
    label = np.array(LABELS, np.int64)[:, None]
    x = np.random.default_rng(0).standard_normal((len(LABELS), COLUMNS)).astype(np.float32)
    here = np.arange(COLUMNS)[None] == label
    want = np.where(here if predicate == "eq" else ~here, x - np.float32(1), x)
    assert np.array_equal(fn(x, label), want)
    for row in range(len(LABELS)):
        assert np.array_equal(fn(x[row : row + 1], label[row : row + 1]), want[row : row + 1])
