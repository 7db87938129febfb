"""Donated arguments that elementwise work is written over: right at every length, with and without the donation taken."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops


def step() -> ops.Graph:
    """New values of three arguments, which need each other's old ones, and a norm that is read before they change."""
    g = ops.Graph()
    a, b, c = (g.input(n, ["N", 33], dtype="f32") for n in "abc")
    scale = 1.0 / (1.0 + ops.sum(a * a, [0, 1], keepdims=True))
    new = a + b * scale
    g.output(new, name="x")
    g.output(b * scale + c, name="y")
    g.output(c * scale - a * b, name="z")
    return g


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 8, 125, 607])
def test_results_are_written_over_what_they_are_made_of(size: int, threads: int) -> None:
    plain, donating = (tw.compile(step(), {"N": (1, 2000)}, donate=d) for d in ((), ("a", "b", "c")))
    given = [np.random.default_rng(size + n).standard_normal((size, 33)).astype(np.float32) for n in range(3)]
    want = plain(*given, threads=threads)
    taken = [x.copy() for x in given]
    got = donating(*taken, threads=threads)
    for result, own, expected in zip(got, taken, want, strict=True):
        assert result.ctypes.data == own.ctypes.data and np.array_equal(own, expected)
    for x in (fixed := [g.copy() for g in given]):
        x.flags.writeable = False
    for result, expected in zip(donating(*fixed, threads=threads), want, strict=True):
        assert np.array_equal(result, expected)
    assert all(np.array_equal(x, y) for x, y in zip(fixed, given, strict=True))
    assert donating.memory(N=size).arena == plain.memory(N=size).arena
