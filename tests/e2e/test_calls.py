"""Calls of compiled functions: what is accepted, copied, refused, and what comes back."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.reference import compare, evaluate
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target

RNG = np.random.default_rng(5)


def built(g: ops.Graph, dims: dict[str, tuple[int, int] | tw.Dim], target: str = "host",
          options: tw.CompileOptions | None = None, **given: object) -> CompiledFunction:
    """Compiled in this process."""
    here = replace(options or tw.CompileOptions(), builder=LocalBuilder(Target.parse(target)))
    return tw.compile(g, dims, target, here, **given)  # type: ignore[arg-type]


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def dense_graph() -> ops.Graph:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["M", 24]), g.input("w", [24, 10]), g.input("b", [10]), "relu"))
    return g


W, B = f32(24, 10), f32(10)


@pytest.fixture(scope="module")
def dense() -> CompiledFunction:
    return built(dense_graph(), {"M": (0, 64)})


def want(x: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype("f8") @ W + B, 0)


def check(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert compare(got, wanted).ok()


@pytest.mark.parametrize("m", [0, 1, 2, 7, 63, 64])
def test_every_extent_of_the_range(dense: CompiledFunction, m: int) -> None:
    x = f32(m, 24)
    check(dense(x, W, B), want(x))


@pytest.mark.parametrize("view", [
    lambda a: np.asfortranarray(a),
    lambda a: np.repeat(a, 2, axis=0)[::2],
    lambda a: np.repeat(a, 3, axis=1)[:, ::3],
    lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    lambda a: np.lib.stride_tricks.as_strided(np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view("f4"), a.shape, a.strides),
    lambda a: a.astype(">f4"),
], ids=["column-major", "rows apart", "columns apart", "negative strides", "unaligned", "big-endian"])
def test_any_layout_of_an_input_is_copied(dense: CompiledFunction, view: object) -> None:
    x = f32(9, 24)
    given = view(x)  # type: ignore[operator]
    check(dense(given, W, B), want(x))
    check(dense(x, np.asfortranarray(W), B), want(x))


def test_inputs_may_be_read_only_and_stay_as_they_are(dense: CompiledFunction) -> None:
    x = f32(9, 24)
    before = x.copy()
    x.flags.writeable = False
    check(dense(x, W, B), want(x))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(("args", "error", "says"), [
    ((f32(3, 24).astype("f8"), W, B), DTypeError, "argument x"),
    ((f32(3, 24), W.astype("f2"), B), DTypeError, "argument w"),
    ((f32(3, 24).astype(complex), W, B), DTypeError, "argument x"),
    ((f32(24), W, B), ShapeError, "rank 2"),
    ((f32(1, 3, 24), W, B), ShapeError, "rank 2"),
    ((f32(3, 23), W, B), ShapeError, "24"),
    ((f32(3, 24), W.T, B), ShapeError, "argument w"),
    ((f32(65, 24), W, B), ShapeError, r"M.*65|65.*M"),
    ((f32(3, 24), W), DTypeError, "3 arguments"),
    ((f32(3, 24), W, B, B), DTypeError, "3 arguments"),
    (("no array", W, B), DTypeError, "argument x"),
])
def test_what_does_not_fit_is_refused(
    dense: CompiledFunction, args: tuple[object, ...], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        dense(*args)
    check(dense(x := f32(5, 24), W, B), want(x))


def test_out_is_written_in_place(dense: CompiledFunction) -> None:
    x, out = f32(6, 24), np.full((6, 10), np.nan, np.float32)
    assert dense(x, W, B, out=out) is out
    check(out, want(x))
    part = np.full((9, 10), 7, np.float32)
    dense(x, W, B, out=part[1:7])
    check(part[1:7], want(x))
    assert (part[[0, 7, 8]] == 7).all()


MEMORY = f32(400)


@pytest.mark.parametrize(("out", "error", "says"), [
    (np.zeros((6, 10)), DTypeError, "float32"),
    (np.zeros((10, 6), "f4"), ShapeError, r"\(6, 10\)"),
    (np.zeros((6, 10), "f4", order="F"), ShapeError, "contiguous"),
    (np.zeros((6, 20), "f4")[:, ::2], ShapeError, "contiguous"),
    (np.frombuffer(bytes(240), "f4").reshape(6, 10), ShapeError, "writeable"),
    (MEMORY[100:160].reshape(6, 10), ShapeError, "overlaps"),
    ((np.zeros((6, 10), "f4"),) * 2, DTypeError, "1 arrays"),
])
def test_out_that_does_not_fit_is_refused(dense: CompiledFunction, out: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        dense(MEMORY[:144].reshape(6, 24), W, B, out=out)


def test_out_of_range_falls_back_when_asked() -> None:
    options = tw.CompileOptions(out_of_range="fallback")
    fn = built(dense_graph(), {"M": (1, 16)}, options=options)
    for m in (1, 16, 17, 300):
        x = f32(m, 24)
        check(fn(x, W, B), want(x))


def test_what_holds_in_the_range_alone_is_not_taken_for_granted_outside() -> None:
    """A temporary of M rows is smaller than one of 40 within the range; a branch on M is decided, and M is a multiple of 4."""
    g = ops.Graph()
    x, w, fixed = g.input("x", ["M", 24]), g.input("w", [24, 24]), g.input("fixed", [40, 24])
    product = ops.matmul(ops.matmul(x, w), w)
    g.output(product, ops.matmul(ops.matmul(fixed, w), w), ops.full(g, [Expr.dim("M").minimum(Expr.of(32))], 1.0))
    fn = built(g, {"M": tw.Dim(4, 32, multiple_of=4)}, options=tw.CompileOptions(out_of_range="fallback"))
    weights, others = f32(24, 24), f32(40, 24)
    for m in (0, 1, 32, 39, 41, 300):
        rows = f32(m, 24)
        of_rows, of_others, ones = fn(rows, weights, others)
        check(of_rows, rows @ weights @ weights)
        check(of_others, others @ weights @ weights)
        np.testing.assert_array_equal(ones, np.ones(min(m, 32), "f4"))


def test_multiples_are_kept() -> None:
    g = ops.Graph()
    g.output(ops.relu(g.input("x", ["T"])))
    fn = built(g, {"T": tw.Dim(4, 64, multiple_of=4)})
    np.testing.assert_array_equal(fn(x := f32(60)), np.maximum(x, 0))
    for wrong in (0, 6, 63, 68):
        with pytest.raises(ShapeError, match="T"):
            fn(f32(wrong))


def test_several_results_an_argument_and_a_view() -> None:
    """The sum, the argument itself, a transposed window of it, and the sum again."""
    g = ops.Graph()
    x = g.input("x", ["M", 6])
    total = ops.sum(x, 1)
    g.output(total, x, ops.transpose(ops.slice(x, [None, 1], [None, 4])), total)
    fn = built(g, {"M": (0, 40)})
    for m in (0, 1, 17):
        a = f32(m, 6)
        first, same, window, again = fn(a)
        check(first, a.astype("f8").sum(1))
        np.testing.assert_array_equal(same, a)
        np.testing.assert_array_equal(window, a[:, 1:4].T)
        np.testing.assert_array_equal(first, again)
        assert not any(np.shares_memory(a, r) for r in (first, same, window, again)) and not np.shares_memory(first, again)
    outs = (np.empty(3, "f4"), np.empty((3, 6), "f4"), np.empty((3, 3), "f4"), np.empty(3, "f4"))
    assert all(r is o for r, o in zip(fn(f32(3, 6), out=outs), outs, strict=True))
    with pytest.raises(ShapeError, match="overlaps"):
        fn(f32(3, 6), out=(outs[0], outs[1], outs[2], outs[0]))


def test_a_scalar_dim() -> None:
    """A key-value length: the first L rows count."""
    g = ops.Graph()
    x, length = g.input("x", [32, "N"]), g.dim("L")
    g.output(ops.sum(ops.slice(x, [None, None], [length, None]), 0))
    fn = built(g, {"L": (0, 32), "N": (1, 20)})
    a = f32(32, 9)
    for n in (0, 1, 31, 32, np.int64(5), np.asarray(7)):
        check(fn(a, n), a[:int(n)].astype("f8").sum(0))
    for bad, error in ((33, ShapeError), (-1, ShapeError), (2.5, DTypeError), ("4", DTypeError)):
        with pytest.raises(error):
            fn(a, bad)


def test_constants_leave_the_signature() -> None:
    held = W.copy()
    fn = built(dense_graph(), {"M": (1, 40)}, constants={"arg1": held, "arg2": B})
    held[:] = 0
    assert [a.name for a in fn.inputs] == ["x"]
    check(fn(x := f32(33, 24)), want(x))
    with pytest.raises(ShapeError):
        built(dense_graph(), {"M": (1, 40)}, constants={"arg1": W.T})
    with pytest.raises(OptionError, match="arg9"):
        built(dense_graph(), {"M": (1, 40)}, constants={"arg9": W})


def test_donate_reuses_the_buffer() -> None:
    """A cache that grows in place; one that is not donated stays."""
    g = ops.Graph()
    cache, new = g.input("cache", ["T", 8]), g.input("new", ["T", 8])
    g.output(cache * 0.5 + new, ops.sum(cache))
    fn = built(g, {"T": (0, 64)}, donate=("arg0",))
    a, b = f32(20, 8), f32(20, 8)
    before = a.copy()
    updated, total = fn(a, b)
    assert np.shares_memory(updated, a)
    check(updated, before.astype("f8") * 0.5 + b)
    check(total, before.astype("f8").sum())
    check(fn(b, b)[0], b.astype("f8") * 1.5)  # no donation of memory that another argument uses
    frozen = before.copy()
    frozen.flags.writeable = False
    assert not np.shares_memory(fn(frozen, b)[0], frozen)
    with pytest.raises(OptionError, match="arg7"):
        built(g, {"T": (0, 64)}, donate=("arg7",))


def test_zero_extents_everywhere() -> None:
    g = ops.Graph()
    x, w = g.input("x", ["M", "K"]), g.input("w", ["K", "N"])
    product = ops.matmul(x, w)
    g.output(product, ops.softmax(product), ops.max(product, 1), ops.concat([product, product], 0))
    fn = built(g, dict.fromkeys("MKN", (0, 9)))
    for m, k, n in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (2, 3, 4)):
        a, b = f32(m, k), f32(k, n)
        for got, wanted in zip(fn(a, b), evaluate(g.module_text(), [a, b]), strict=True):
            assert got.shape == wanted.shape and compare(got, wanted).ok()


@pytest.mark.parametrize("target", ["host:x86-64", "host:x86-64-v2", "host:x86-64-v3"])
def test_older_processors(target: str) -> None:
    """Code for a lower level runs here: contractions, rows, functions of math, 16-bit floats, integers."""
    g = ops.Graph()
    x, w = g.input("x", ["M", 40]), g.input("w", [40, 24])
    h, q = g.input("h", ["M", 40], "f16"), g.input("q", ["M", 40], "i8")
    g.output(ops.softmax(ops.dense(x, w, activation="gelu")), ops.layernorm(h, g.input("g", [40], "f16")),
             ops.matmul(q, q, transpose_b=True), ops.tanh(ops.cast(x, "bf16")))
    fn = built(g, {"M": (1, 50)}, target)
    assert fn.program.target == target
    for m in (1, 7, 50):
        given = [f32(m, 40), f32(40, 24), f32(m, 40).astype("f2"), RNG.integers(-9, 9, (m, 40), np.int8),
                 np.ones(40, np.float16)]
        bounds = (2e-5, 2e-3, 0, 8e-3)
        for got, wanted, bound in zip(fn(*given), evaluate(g.module_text(), given), bounds, strict=True):
            assert compare(got, wanted).ok(bound, 5 * bound)


def test_threads_call_at_once_with_other_shapes(dense: CompiledFunction) -> None:
    cases = [(x := f32(m, 24), dense(x, W, B).tobytes()) for m in range(1, 65, 5)]
    wrong: list[int] = []

    def work(start: int) -> None:
        for i in range(150):
            x, bits = cases[(start + i) % len(cases)]
            if dense(x, W, B, threads=1 + i % 3).tobytes() != bits:
                wrong.append(len(x))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_after_a_fork(dense: CompiledFunction) -> None:
    x = f32(64, 24)
    bits = dense(x, W, B, threads=3).tobytes()
    child = os.fork()
    if child == 0:
        again = dense(x, W, B, threads=3).tobytes() == bits
        anew = built(dense_graph(), {"M": (1, 70)})(x, W, B)
        os._exit(0 if again and compare(anew, want(x)).ok() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert dense(x, W, B, threads=3).tobytes() == bits
