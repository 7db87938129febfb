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


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_call_was_given_comes_out(count: int) -> None:
    """The caller's own arrays, of NumPy or PyTorch; memory that cannot be written, or is given twice, is left as it is."""
    g = ops.Graph()
    for n in range(count):
        g.output(g.input(f"x{n}", ["N"]) * 2.0)
    fn = tw.compile(g, {"N": tw.Dim(0, 100)}, donate=[f"x{n}" for n in range(count)])

    def results(*given: object) -> list[object]:
        found = fn(*given)
        return [found] if count == 1 else list(found)

    values = [np.full(9, n + 1.0, np.float32) for n in range(count)]
    for _ in range(3):
        before = [v.copy() for v in values]
        assert all(a is b for a, b in zip(results(*values), values, strict=True))
        assert all((v == 2 * b).all() for v, b in zip(values, before, strict=True))
    fixed = [np.full(9, n + 1.0, np.float32) for n in range(count)]
    fixed[0].flags.writeable = False
    found = results(*fixed)
    assert found[0] is not fixed[0]
    assert (fixed[0] == 1).all()
    assert all((np.asarray(f) == 2 * (n + 1)).all() for n, f in enumerate(found))
    if count > 1:
        shared = np.full(9, 5.0, np.float32)
        found = results(shared, shared, np.zeros(9, np.float32))
        assert found[0] is not shared and found[1] is not shared
        assert (shared == 5).all()
        assert all((np.asarray(f) == 10).all() for f in found[:2])
    torch = pytest.importorskip("torch")
    tensors = [torch.full((9,), n + 1.0) for n in range(count)]
    assert all(a is b for a, b in zip(results(*tensors), tensors, strict=True))
    assert all((t == 2 * (n + 1)).all() for n, t in enumerate(tensors))
    with pytest.raises(tw.errors.DTypeError, match="f32"):
        results(*[np.zeros(9, np.int32)] * count)
