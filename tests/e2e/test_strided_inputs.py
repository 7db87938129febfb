"""Inputs whose rows lie apart: read as they lie, with the bits of a contiguous copy; what is copied still."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e.test_calls import built
from kernel_harness import guarded
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.call import binder
from tilewright.runtime.host.native_call import COPY
from tilewright.runtime.load.function import CompiledFunction

RNG = np.random.default_rng(41)
K, N = 40, 56


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def dense() -> CompiledFunction:
    g = ops.Graph()
    g.output(ops.dense(g.input("x", ["M", K]), g.input("w", [K, N]), g.input("b", [N]), "relu"))
    return built(g, {"M": (0, 64)})


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch, dense: CompiledFunction) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of what is copied, all by Python: native code has no function for it."""
    found: list[tuple[int, ...]] = []
    whole = binder.converted

    def copied(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        found.append(array.shape)
        return whole(array, dtype)

    monkeypatch.setattr(dense._caller.binder, "_converted", copied)
    function = ctypes.c_uint64.from_address(dense._caller.code.address(COPY))  # type: ignore[attr-defined]
    kept, function.value = function.value, 0
    yield found
    function.value = kept


def spread(array: np.ndarray, gap: int, at_edge: bool = False) -> np.ndarray:
    """A copy whose rows lie `gap` elements apart among NaN; at_edge: nothing can be read behind the last row."""
    rows, columns = array.shape
    span = (rows - 1) * (columns + gap) + columns
    room = guarded((span,), array.dtype) if at_edge else np.empty(span, array.dtype)
    room[:] = np.nan
    made = as_strided(room, array.shape, [4 * (columns + gap), 4])
    made[...] = array
    return made


@pytest.mark.parametrize("m", [1, 2, 5, 8, 17, 64])
@pytest.mark.parametrize("gap", [1, 3, 8, 200])
def test_rows_apart_have_the_bits_of_a_copy(dense: CompiledFunction, m: int, gap: int) -> None:
    x, w, b = f32(m, K), f32(K, N), f32(N)
    want = dense(x, w, b)
    for at_edge in (False, True):
        np.testing.assert_array_equal(dense(spread(x, gap, at_edge), spread(w, gap, at_edge), b), want)
        np.testing.assert_array_equal(dense._caller(spread(x, gap, at_edge), spread(w, gap, at_edge), b), want)
    out = np.empty_like(want)
    assert dense(x, spread(w, gap), b, out=out, threads=2) is out
    np.testing.assert_array_equal(out, want)


VIEWS: dict[str, tuple[bool, Callable[[np.ndarray], np.ndarray]]] = {
    "columns of a wider one": (False, lambda a: np.pad(a, ((0, 0), (2, 3)))[:, 2:-3]),
    "every other row": (False, lambda a: np.repeat(a, 2, axis=0)[::2]),
    "of a stack": (False, lambda a: np.stack([a, a + 1], 1)[:, 0]),
    "windows of one row": (False, lambda a: as_strided(np.append(a[0], a[1:, -1]), a.shape, [4, 4])),
    "rows backwards": (True, lambda a: a[::-1].copy()[::-1]),
    "all backwards": (True, lambda a: a[::-1, ::-1].copy()[::-1, ::-1]),
    "transposed": (True, lambda a: np.asfortranarray(a)),
    "one row again and again": (True, lambda a: np.broadcast_to(a[:1], a.shape)),
    "every other column": (True, lambda a: np.repeat(a, 2, axis=1)[:, ::2]),
    "half an element off": (True, lambda a: as_strided(np.zeros((len(a), N + 1), np.float32), a.shape, [4 * N + 2, 4])),
    "not aligned": (True, lambda a: np.frombuffer(b"\0" + np.pad(a, ((0, 0), (0, 1))).tobytes(), np.uint8)[1:].view("f4").reshape(
        len(a), -1)[:, :-1]),
    "big-endian": (True, lambda a: np.pad(a, ((0, 0), (0, 1))).astype(">f4")[:, :-1]),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_what_is_read_as_it_lies_and_what_is_copied(dense: CompiledFunction, copies: list[tuple[int, ...]], kind: str) -> None:
    is_copied, view = VIEWS[kind]
    x, b, w = f32(7, K), f32(N), view(f32(K, N))
    want = dense(x, np.array(w, np.float32, order="C"), b)
    assert not copies
    for call in (dense, dense._caller):
        np.testing.assert_array_equal(call(x, w, b), want)
        assert copies == ([(K, N)] if is_copied else [])
        copies.clear()


def test_results_may_lie_between_the_rows(dense: CompiledFunction) -> None:
    """As where a copy was made: an input is read before its memory is written, but for one without gaps."""
    x, b = f32(1, K), f32(N)
    room = f32(K, 3 * N)
    w, out = room[:, :N], room[3:4, N : 2 * N]
    want = dense(x, w.copy(), b)
    assert dense(x, w, b, out=out) is out
    np.testing.assert_array_equal(out, want)
    w, out = room[:, :N], room[2:3, :N]
    want = dense(x, w.copy(), b)
    assert dense(x, w, b, out=out) is out
    np.testing.assert_array_equal(out, want)


def test_extents_of_one_and_none(dense: CompiledFunction) -> None:
    w, b = spread(f32(K, N), 5), f32(N)
    row = as_strided(f32(K), (1, K), [-12, 4])
    np.testing.assert_array_equal(dense(row, w, b), dense(row.copy(), w.copy(), b))
    assert dense(f32(8, 2 * K)[:0, :K], w, b).shape == (0, N)


def test_a_weight_of_two_operators_and_one_of_three_axes() -> None:
    g = ops.Graph()
    x, w = g.input("x", ["M", 24]), g.input("w", [24, 24])
    g.output(ops.matmul(ops.relu(ops.matmul(x, w)), w))
    g.output(ops.matmul(g.input("y", [3, "M", 24]), g.input("stack", [3, 24, 16])))
    fn = built(g, {"M": (1, 40)})
    assert fn.program.strided == (0, 1, 2, 3)
    given = (f32(9, 30)[:, :24], f32(24, 2, 24)[:, 1], f32(9, 3, 25).transpose(1, 0, 2)[:, :, 1:],
             f32(2, 3, 28, 29)[1, :, 2:26, 3:19])
    for got, wanted in zip(fn(*given), fn(*(a.copy() for a in given)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_what_reshapes_its_rows_away_or_returns_them_is_copied() -> None:
    """A flat walk over all elements has no stride; a column's rows are its only axis."""
    g = ops.Graph()
    x, y, z = g.input("x", ["M", 24]), g.input("y", ["M", 24]), g.input("z", ["M", 1])
    g.output(ops.softmax(ops.reshape(x, [2, "12*M"])))
    g.output(ops.add(ops.exp(y), z))
    g.output(y)
    fn = built(g, {"M": tw.Dim(2, 8, multiple_of=2)})
    assert 0 not in fn.program.strided and 2 not in fn.program.strided
    x_, y_, z_ = f32(4, 48)[:, :24], f32(4, 48)[:, 24:], f32(4, 2)[:, :1]
    for got, wanted in zip(fn(x_, y_, z_), fn(x_.copy(), y_.copy(), z_.copy()), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_windows_are_read_in_place() -> None:
    """All windows of a signal, as NumPy views them: 4 bytes from one row to the next."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["M", K]), g.input("w", [K, N])))
    fn = built(g, {"M": (1, 128)})
    signal, w = f32(139), f32(K, N)
    x = sliding_window_view(signal, K)
    np.testing.assert_array_equal(fn(x, w), fn(x.copy(), w))


@pytest.mark.parametrize(("inputs", "operator"), [
    ([["B", "M", 24], ["B", 24, "M"]], ops.matmul),
    ([["M", 4, 24], ["M", 4, 24]], ops.multiply),
    ([["B", 5, "M", 16], [7, 5, 3, 3]], lambda x, w: ops.conv2d(x, w, padding=1)),
    ([["M", 24], ["M", 24]], lambda x, y: ops.concat([x, y], 1)),
    ([["M", 24], ["M", 24]], lambda x, y: ops.concat([ops.transpose(x, [1, 0]), ops.transpose(y, [1, 0])], 1)),
    ([["B", "M", 32], ["B", "M", 32]], lambda x, y: ops.softmax(ops.add(x, y))),
    ([["B", 3, "M", 16], ["B", 3, "M", 16]], lambda q, k: ops.attention(q, k, k)),
], ids=["products", "elements", "convolution", "concat", "turned", "rows", "attention"])
def test_other_operators(inputs: list[list[int | str]], operator: Callable[..., ops.Tensor]) -> None:
    g = ops.Graph()
    g.output(operator(*(g.input(f"a{i}", shape) for i, shape in enumerate(inputs))))
    fn = built(g, {name: (1, 33) for name in ("B", "M") if any(name in shape for shape in inputs)})
    for point in ({"B": 3, "M": 7}, {"B": 1, "M": 1}, {"B": 2, "M": 33}, {"B": 33, "M": 16}):
        shapes = [[point.get(e, e) for e in shape] for shape in inputs]  # type: ignore[call-overload]
        wide = [f32(*(e + 3 for e in shape)) for shape in shapes]
        arrays = [a[tuple(slice(1, e + 1) for e in shape)] for a, shape in zip(wide, shapes, strict=True)]
        np.testing.assert_array_equal(fn(*arrays), fn(*(a.copy() for a in arrays)))


def test_a_saved_function_and_torch(dense: CompiledFunction, tmp_path: Path) -> None:
    dense.save(tmp_path / "dense.tw")
    fn = tw.load(tmp_path / "dense.tw")
    x, w, b = f32(9, K), spread(f32(K, N), 6), f32(N)
    want = dense(x, w.copy(), b)
    np.testing.assert_array_equal(fn(x, w, b), want)
    torch = pytest.importorskip("torch")
    got = fn(torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(b))
    np.testing.assert_array_equal(got.numpy(), want)
