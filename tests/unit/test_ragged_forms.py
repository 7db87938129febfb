"""Ragged arguments that are no rows: blocks of a sequence, several ragged dims of one argument, lengths by number; calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops

pytestmark = pytest.mark.usefixtures("built_here")

HEADS, WIDTH = 2, 8
QUERIES, KEYS = (3, 0, 40, 17, 1), (5, 9, 1, 40, 33)
M, N, K = (5, 0, 33, 1, 7), (9, 4, 17, 1, 0), (3, 8, 24, 1, 6)


def arrays(seed: int, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s, dtype=np.float32) for s in shapes]


@pytest.fixture(scope="module")
def cross() -> tw.CompiledFunction:
    """Attention of queries and keys of different lengths, heads outside of positions."""
    g = ops.Graph()
    q, k, v = (g.input(n, ["B", HEADS, s, WIDTH]) for n, s in (("q", "S"), ("k", "T"), ("v", "T")))
    g.output(ops.attention(q, k, v))
    return tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 40, over="B"), "T": tw.Ragged(1, 40, over="B")})


@pytest.fixture(scope="module")
def products() -> tw.CompiledFunction:
    g = ops.Graph()
    g.output(ops.matmul(g.input("a", ["B", "M", "K"]), g.input("b", ["B", "K", "N"])))
    return tw.compile(g, {"B": (0, 8), **{n: tw.Ragged(0, 40, over="B") for n in "MNK"}})


def test_blocks_in_lists(cross: tw.CompiledFunction) -> None:
    qs = arrays(0, [(HEADS, s, WIDTH) for s in QUERIES])
    ks, vs = (arrays(seed, [(HEADS, t, WIDTH) for t in KEYS]) for seed in (1, 2))
    found = cross(qs, ks, vs)
    for q, k, v, y in zip(qs, ks, vs, found, strict=True):
        p = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(WIDTH))
        np.testing.assert_allclose(y, p / p.sum(-1, keepdims=True) @ v, 1e-5, 1e-6)
    packed = [np.concatenate([x.reshape(-1) for x in xs]).reshape(-1, HEADS * WIDTH) for xs in (qs, ks, vs)]
    flat = cross(*packed, S_lengths=QUERIES, T_lengths=KEYS)
    assert np.array_equal(flat.reshape(-1), np.concatenate([y.reshape(-1) for y in found]))


def test_blocks_of_torch(cross: tw.CompiledFunction) -> None:
    torch = pytest.importorskip("torch")
    qs = [torch.ones(HEADS, s, WIDTH) for s in (2, 3)]
    found = cross(qs, qs, qs)
    assert all(isinstance(y, torch.Tensor) and torch.allclose(y, q) for y, q in zip(found, qs, strict=True))


def test_products(products: tw.CompiledFunction) -> None:
    a, b = arrays(0, list(zip(M, K, strict=True))), arrays(1, list(zip(K, N, strict=True)))
    found = products(a, b)
    for x, y, z in zip(a, b, found, strict=True):
        np.testing.assert_allclose(z, x @ y, 1e-5, 1e-5)
    flat = products(*(np.concatenate([x.reshape(-1) for x in xs]) for xs in (a, b)), M_lengths=M, N_lengths=N, K_lengths=K)
    assert np.array_equal(flat, np.concatenate([z.reshape(-1) for z in found]))
    assert products.memory(M=M, N=N, K=K).outputs == 4 * len(flat)


@pytest.mark.parametrize(("a", "b", "said"), [
    ([(2, 3), (4, 5)], [(3, 2), (6, 1)], "argument b: sequence 1 has 6 rows, and 5 in argument a"),
    ([(2, 3), (4, 5)], [(3, 2)], "argument b has 1 sequences, argument a has 2"),
    ([(2, 3), (4, 5, 1)], [(3, 2), (5, 1)], r"argument a: sequence 1 is float32\[4, 5, 1\]; wanted \[M, K\]"),
    ([(2, 41)], [(41, 1)], "K = 41 of sequence 0"),
])
def test_wrong_blocks(products: tw.CompiledFunction, a: list[tuple[int, ...]], b: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(tw.errors.ShapeError, match=said):
        products(arrays(0, a), arrays(1, b))


def test_wrong_sums(products: tw.CompiledFunction) -> None:
    """Elements that are not those of the lengths are found in Python, and by native code before it runs anything."""
    a, b = np.ones(5, np.float32), np.ones(8, np.float32)
    with pytest.raises(tw.errors.ShapeError, match="argument a has 5 rows, and the lengths of K \\* M add up to 4"):
        products(a, b, M_lengths=[2], N_lengths=[4], K_lengths=[2])
    ends = [np.array([0, n]) for n in (2, 4, 2)]
    with pytest.raises(tw.errors.ShapeError, match="M_offsets: the last sequence ends at 2"):
        products.call_flat(a[:4], b, *ends, 2, 4, 2, 7)  # 2 x 4 results are not 7
    with pytest.raises(tw.errors.DTypeError, match=r"wanted a list of arrays \[M, K\]"):
        products(tw.Jagged(a, lengths=[5]), tw.Jagged(b, lengths=[8]))


def test_square_blocks() -> None:
    """One ragged dim on both axes of an argument."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", "S"])
    g.output(ops.add(x, ops.transpose(x, (0, 2, 1))), ops.sum(x, 2))
    fn = tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 9, over="B")})
    xs = arrays(0, [(s, s) for s in (3, 0, 9, 1)])
    both, sums = fn(xs)
    for x, y, z in zip(xs, both, sums, strict=True):
        np.testing.assert_allclose(y, x + x.T, 1e-6)
        np.testing.assert_allclose(z, x.sum(1), 1e-5, 1e-6)
    with pytest.raises(tw.errors.ShapeError, match="sequence 1 is of"):
        fn([np.ones((2, 2), np.float32), np.ones((2, 3), np.float32)])


def test_donated_blocks() -> None:
    g = ops.Graph()
    g.output(ops.transpose(g.input("x", ["B", "S", "S"]), (0, 2, 1)))
    fn = tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 9, over="B")}, donate=("x",))
    x = np.arange(13, dtype=np.float32)
    wanted = np.concatenate([x[:9].reshape(3, 3).T.reshape(-1), x[9:].reshape(2, 2).T.reshape(-1)])
    assert np.array_equal(fn(x, S_lengths=[3, 2]), wanted)


def test_lengths_by_number() -> None:
    """The rows of a lower triangle."""
    g = ops.Graph()
    g.output(ops.softmax(g.input("x", ["i", "S"])))
    fn = tw.compile(g, {"i": (0, 64), "S": tw.Ragged(of="i + 1", over="i")})
    rows = arrays(0, [(i + 1,) for i in range(9)])
    packed = np.concatenate(rows)
    found = fn(packed)
    wanted = np.concatenate([np.exp(r) / np.exp(r).sum() for r in rows])
    np.testing.assert_allclose(found, wanted, 1e-5)
    assert np.array_equal(np.concatenate(fn(rows)), found)
    assert fn(packed[:0]).shape == (0,)
    assert fn.explain(i=9).dims == {"i": 9, "sum(S)": 45}
    with pytest.raises(tw.errors.ShapeError, match="of no number of sequences add up to 44 rows"):
        fn(packed[:44])
    with pytest.raises(tw.errors.ShapeError, match="the call: sequence 0 has 2 rows, and 1 in its expression i \\+ 1"):
        fn(packed[:3], S_lengths=[2, 1])


@pytest.mark.parametrize(("given", "said"), [
    ({}, "got neither"),
    ({"of": "j + 1"}, "wanted an expression of the entry's number, i"),
    ({"of": "i - 1"}, "from -1 to"),
])
def test_wrong_expressions(given: dict[str, str], said: str) -> None:
    g = ops.Graph()
    g.output(ops.relu(g.input("x", ["i", "S"])))
    with pytest.raises(tw.errors.TilewrightError, match=said):
        tw.compile(g, {"i": (0, 64), "S": tw.Ragged(over="i", **given)})


def test_kinds_without_checks_in_python() -> None:
    """Jagged arrays and lists by position go to native code at once, and what is wrong is still said."""
    g = ops.Graph()
    x = g.input("x", ["B", "S", 3])
    g.output(ops.add(x, g.input("y", ["B", "S", 3])))
    fn = tw.compile(g, {"B": (0, 8), "S": tw.Ragged(1, 9, over="B")})
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    same = tw.Jagged(values, lengths=[2, 3])
    out = np.empty_like(values)
    for args in ((same, same), (same, tw.Jagged(values, offsets=[0, 2, 5])), ([values[:2], values[2:]],) * 2):
        found: Any = fn(*args)
        assert type(found) is type(args[0])
        assert np.array_equal(np.concatenate(list(found)), values + values)
    assert isinstance(fn(same, same, out=out, threads=1), tw.Jagged)
    assert np.array_equal(out, values + values)
    with pytest.raises(tw.errors.ShapeError, match="argument y: sequence 0 has 3 rows, and 2 in argument x"):
        fn(same, tw.Jagged(values, lengths=[3, 2]))
    with pytest.raises(tw.errors.ShapeError, match="S = 0 of sequence 0 is outside"):
        fn(*[tw.Jagged(values, lengths=[0, 5])] * 2)
    with pytest.raises(tw.errors.ShapeError, match="wanted arrays that differ in axis 0 alone"):
        fn([values[:2], values[2:].astype(np.float64)], [values[:2], values[2:]])
    changed = tw.Jagged(values, lengths=[2, 3])
    changed.offsets[1] = 7
    with pytest.raises(tw.errors.ShapeError):
        fn(changed, changed)
