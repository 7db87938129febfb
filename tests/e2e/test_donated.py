"""Donated arguments that elementwise work is written over: right at every length, with and without the donation taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.main import main


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


def test_explain_says_what_becomes_of_donated_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elements beside a sum down the columns of few rows are made where they are read, a state of a row when it is known; a
    product reads all of a row for each element."""
    g = ops.Graph()
    x, state = g.input("x", ["N", 33]), g.input("state", ["N"])
    g.output(0.9 * x, name="decayed")
    g.output(ops.sum(x, [0]), name="total")
    g.output(0.9 * state + ops.max(g.input("y", ["N", 20]), [1]), name="next")
    rows = g.input("rows", ["N", 33])
    g.output(ops.matmul(rows, g.input("w", [33, 33])), name="turned")
    path = tmp_path / "model.tw"
    tw.compile(g, {"N": (1, 64)}, donate=("x", "state", "rows")).save(path)
    assert main(["explain", str(path), "--partition", "--json"]) == 0
    found = [e for line in capsys.readouterr().out.splitlines() if (e := json.loads(line))["event"] == "donated"]
    assert [(e["argument"], e["result"], bool(e["copied"])) for e in found] == [
        ("x", "decayed", False), ("state", "next", False), ("rows", "turned", True)]
    assert "kind contraction" in found[2]["copied"]
    assert main(["explain", str(path), "--partition"]) == 0
    assert "Donated arguments" in capsys.readouterr().out


def batch_norm(channels_last: bool) -> ops.Graph:
    """In training: the running statistics move along those of the batch."""
    g = ops.Graph()
    x = g.input("x", ["N", 24] if channels_last else ["N", 24, 9])
    others = [0] if channels_last else [0, 2]
    mean = ops.mean(x, others, keepdims=True)
    centred = x - mean
    variance = ops.mean(centred * centred, others, keepdims=True)
    g.output(centred / ops.sqrt(variance + 1e-5))
    for name, now in (("mean", mean), ("variance", variance)):
        g.output(0.9 * g.input(name, [24]) + 0.1 * ops.reshape(now, [24]), name=f"next_{name}")
    return g


@pytest.mark.parametrize("target", ["host", "emulator:sm_90a"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_running_statistics_of_a_batch_norm_stay_where_they_are(channels_last: bool, target: str) -> None:
    plain, donating = (tw.compile(batch_norm(channels_last), {"N": (1, 2000)}, target=target, donate=d)
                       for d in ((), ("mean", "variance")))
    assert len(donating.program.donated) == 2 and not donating.program.copied
    assert donating.memory(N=700).arena == plain.memory(N=700).arena
    for size in (1, 3, 700):
        given = [np.random.default_rng(n).standard_normal([e.evaluate({"N": size}) for e in a.spec().dims]).astype(np.float32)
                 for n, a in enumerate(plain.inputs)]
        for got, wanted in zip(donating(*(x.copy() for x in given)), plain(*given), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("extents", [["N", 9], ["N", 5, 40]])
def test_elements_beside_a_sum_that_is_not_cut_are_written_over_what_both_read(extents: list[str | int], threads: int) -> None:
    g = ops.Graph()
    x, along = g.input("x", extents), len(extents) - 2
    g.output(x * 2.0 + 1.0)
    g.output(ops.sum(x, [along]))
    fn = tw.compile(g, {"N": (0, 300)}, donate=("x",))
    assert not fn.program.copied
    for size in (0, 1, 16, 37, 300):
        given = np.random.default_rng(size).standard_normal([size if e == "N" else e for e in extents]).astype(np.float32)
        own = given.copy()
        elements, total = fn(own, threads=threads)
        assert np.array_equal(own, given * 2 + 1) and elements.ctypes.data == own.ctypes.data
        np.testing.assert_allclose(total, given.astype(np.float64).sum(along), rtol=1e-5, atol=1e-5)
