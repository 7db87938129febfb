"""What a search tunes a ragged model for: batches of its declared lengths."""

from __future__ import annotations

from collections import Counter

import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.tuning.ragged_demand import batches_of, declares_batches, shapes_of, told_apart

SAMPLES = (5, 5, 5, 40, 0)


def outlined(samples: tuple[int, ...] | None) -> OutlinedModel:
    """A product by rows, and a softmax along the sequence."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", 8])
    g.output(ops.softmax(ops.dense(x, g.input("w", [8, 8])), 1))
    dims = {"B": tw.Dim(1, 64, samples=None if samples is None else [4]), "S": tw.Ragged(0, 40, over="B", samples=samples)}
    return outline(Compilation(g, dims, full_target("host"), tw.CompileOptions()))


@pytest.fixture(scope="module")
def model() -> OutlinedModel:
    return outlined(SAMPLES)


def test_batches(model: OutlinedModel) -> None:
    assert declares_batches(model) and not declares_batches(outlined(None))
    batches = list(batches_of(model, 200, seed=0))
    assert {len(b["S"]) for b in batches} == {4}
    counts = Counter(n for b in batches for n in b["S"])
    assert set(counts) == set(SAMPLES)
    assert 2 < counts[5] / counts[40] < 4.5  # three of the samples are 5
    assert batches == list(batches_of(model, 200, seed=0))
    assert batches[:8] != list(batches_of(model, 8, seed=1))


def test_shapes(model: OutlinedModel) -> None:
    """A product sees each batch once, over all its rows; the softmax each sequence that has rows."""
    batches = [{"S": [5, 40, 0, 5]}, {"S": [40, 40, 40, 40]}, {"S": [0]}]
    found = {w.name: [tuple(shape.values()) for shape, _ in shapes_of(w, model, batches)] for w in model.workloads}
    assert found["matmul"] == [(50,), (160,)]
    assert sorted(found["softmax"]) == [(5,), (5,), (40,), (40,), (40,), (40,), (40,)]


def test_shapes_that_differ_little_are_one() -> None:
    """The one that is run most often stands for them, with the weight of all; small ones, and those apart, stay."""
    sizes = ((1, 1.0), (2, 1.0), (3, 1.0), (1347, 1.0), (1340, 3.0), (1352, 1.0), (1600, 1.0))
    shapes = [({"d0": n}, weight) for n, weight in sizes]
    found = told_apart([*shapes, ({"d0": 3}, 2.0)])
    assert found == [({"d0": 1}, 1.0), ({"d0": 2}, 1.0), ({"d0": 3}, 3.0), ({"d0": 1340}, 5.0), ({"d0": 1600}, 1.0)]
    assert sum(weight for _, weight in found) == 11.0
    assert told_apart([({"m": 100, "n": 8}, 1.0), ({"m": 100, "n": 64}, 1.0)]) == [({"m": 100, "n": 8}, 1.0),
                                                                                  ({"m": 100, "n": 64}, 1.0)]


def test_lengths_of_a_range() -> None:
    lengths = {n for b in batches_of(outlined(None), 40, seed=0) for n in b["S"]}
    assert len(lengths) == 41
