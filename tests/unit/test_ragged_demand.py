"""What a search tunes a ragged model for: batches of its declared lengths."""

from __future__ import annotations

from collections import Counter

import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.tuning.ragged_demand import (
    batches_of,
    declares_batches,
    demand_of,
    held_apart,
    shapes_of,
    told_apart,
    weight_of_batches,
)

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


def test_what_is_held_out_is_not_tuned_for() -> None:
    """Of lengths that are as good as one the search sees the most frequent, certificates the others."""
    tuned = told_apart([({"d0": n}, weight) for n, weight in ((100, 3.0), (102, 1.0), (200, 2.0), (203, 1.0), (64, 1.0))])
    held = [({"d0": n}, 1.0) for n in (100, 102, 203, 64)]
    assert held_apart(tuned, held) == (tuned, [{"d0": 102}, {"d0": 203}])


def test_short_lengths_are_held_out_too() -> None:
    """Where each stands for itself, some in between are not tuned for; what they weigh is kept."""
    tuned = [({"d0": n}, float(n)) for n in (4, 5, 6, 7, 8, 9, 10, 11)]
    local, held = held_apart(tuned, [({"d0": n}, 1.0) for n in (4, 7, 9)])
    assert len(held) == 2 and not [s for s, _ in local if s in held]
    assert {4, 11} <= {s["d0"] for s, _ in local}
    assert sum(weight for _, weight in local) == sum(weight for _, weight in tuned)
    assert held_apart(tuned[:3], []) == (tuned[:3], [])


def test_every_operator_of_a_batch_is_certified() -> None:
    """Also those made for each sequence, whose lengths are the declared ones."""
    model = outlined(tuple(range(5, 41)))
    for w in model.workloads:
        local, held = demand_of(w, model, 0)
        assert len(held) >= 4 and not [s for s, _ in local if s in held]


def test_weights_count_sequences(model: OutlinedModel) -> None:
    """A call that is made for each sequence weighs what all of them take."""
    weights = {w.name: weight_of_batches(w, model) for w in model.workloads}
    softmax = next(w for w in model.workloads if w.name == "softmax")
    one = dict.fromkeys(softmax.dims, 11)  # the mean of the samples
    alone = softmax.flops.evaluate(one) + 8 * softmax.bytes.evaluate(one)
    assert 2 * alone < weights["softmax"] ** 2 < 6 * alone
