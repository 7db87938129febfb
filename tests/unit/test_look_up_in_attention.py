"""Attention of few queries over keys and values that data name, as of caches in pages or of beams: nothing is gathered first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.shape import Expr

pytestmark = pytest.mark.usefixtures("built_here")

BATCH, LONGEST = 2, 600
HEADS, WIDTH = 2, 8


def attend(queries: int = 1, shift: int = 0, also: bool = False) -> ops.Graph:
    """Queries [BATCH, queries, ...] over rows of `cache` that `at` names. shift: of the places. also: others read the rows."""
    g, model = ops.Graph(), HEADS * WIDTH
    q, cache = g.input("q", [BATCH, queries, model]), g.input("cache", ["N", 2 * model])
    at = g.input("at", [BATCH, "L"], "i64")
    rows = ops.gather(cache, at + shift if shift else at, 0)
    k, v = (heads(c, at.dims[1]) for c in ops.split(rows, [model, model], 2))
    g.output(ops.attention(heads(q, queries), k, v), *([ops.exp(rows)] if also else []))
    return g


def heads(x: ops.Tensor, length: Any) -> ops.Tensor:
    return ops.transpose(ops.reshape(x, [BATCH, length, HEADS, WIDTH]), [0, 2, 1, 3])


def expected(q: Any, cache: Any, at: Any) -> Any:
    rows = cache.astype(np.float64)[at]
    q, k, v = (x.reshape(BATCH, -1, HEADS, WIDTH).transpose(0, 2, 1, 3) for x in (q, *np.split(rows, 2, 2)))
    weights = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(WIDTH))
    return weights / weights.sum(-1, keepdims=True) @ v


def compiled(graph: ops.Graph) -> tw.CompiledFunction:
    return tw.compile(graph, {"N": tw.Dim(1, 64), "L": tw.Dim(1, LONGEST)}, options=tw.CompileOptions(threads=2))


def families(fn: tw.CompiledFunction) -> list[str]:
    return [call.family for call in fn.explain(N=12, L=7).calls]


@pytest.mark.parametrize(("queries", "shift"), [(1, 0), (3, 2)])
def test_rows_are_read_where_they_lie(queries: int, shift: int) -> None:
    fn, rng = compiled(attend(queries, shift)), np.random.default_rng(queries)
    assert families(fn) == ["host_attention"]
    for n, length in ((shift + 1, 1), (12, 7), (64, 33), (64, LONGEST)):
        q = rng.standard_normal((BATCH, queries, HEADS * WIDTH)).astype(np.float32)
        cache = rng.standard_normal((n, 2 * HEADS * WIDTH)).astype(np.float32)
        at = rng.integers(0, n - shift, (BATCH, length))
        found = fn(q, cache, at)
        np.testing.assert_allclose(found, expected(q, cache, at + shift), rtol=2e-5, atol=2e-6)
        assert np.array_equal(found, fn(q, cache, at, threads=1))


def test_places_outside_of_the_table_read_inside_of_it() -> None:
    fn, rng = compiled(attend()), np.random.default_rng(0)
    q, cache = rng.standard_normal((BATCH, 1, 16)).astype(np.float32), rng.standard_normal((5, 32)).astype(np.float32)
    at = np.array([[0, 4, 5, 1 << 40], [-1, -(1 << 40), 3, 2]])
    np.testing.assert_allclose(fn(q, cache, at), expected(q, cache, np.where((at < 0) | (at > 4), 4, at)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("queries", "also"), [(5, False), (1, True)])
def test_more_queries_and_other_readers_have_the_rows_gathered(queries: int, also: bool) -> None:
    fn, rng = compiled(attend(queries, also=also)), np.random.default_rng(1)
    assert len(families(fn)) > 1
    q, cache = rng.standard_normal((BATCH, queries, 16)).astype(np.float32), rng.standard_normal((9, 32)).astype(np.float32)
    at = rng.integers(0, 9, (BATCH, 20))
    found = fn(q, cache, at)
    np.testing.assert_allclose(found[0] if also else found, expected(q, cache, at), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("batch", [1, 3])
def test_one_query_of_one_sequence_is_one_kernel(batch: int) -> None:
    """Its values lie row after row, as sums in parts want them; the mixing stays whole."""
    g = ops.Graph()
    q, rows = g.input("q", [batch, HEADS * WIDTH]), g.input("rows", [batch, "L", 2 * HEADS * WIDTH])
    halves = ops.split(rows, [HEADS * WIDTH] * 2, 2)
    k, v = (ops.transpose(ops.reshape(c, [batch, rows.dims[1], HEADS, WIDTH]), [0, 2, 1, 3]) for c in halves)
    g.output(ops.attention(ops.reshape(q, [batch, HEADS, 1, WIDTH]), k, v))
    fn = tw.compile(g, {"L": tw.Dim(1, LONGEST)})
    assert [call.family for call in fn.explain(L=40).calls] == ["host_attention"]


def test_a_loop_writes_rows_that_its_attention_looks_up() -> None:
    """As beams do that share a cache: each step puts a row into it, in place, and attends to those that a table names."""
    g = ops.Graph()
    x, at = g.input("x", ["T", BATCH, HEADS * WIDTH]), g.input("at", [BATCH, "T"], "i64")
    steps = x.dims[0]

    def body(t: Expr, cache: ops.Tensor) -> tuple[ops.Tensor, ...]:
        here = ops.select(x, 0, t)
        cache = ops.select_scatter(cache, ops.reshape(here, [2 * HEADS * WIDTH]), 0, t)
        rows = ops.gather(cache, ops.narrow(at, 1, 0, t + 1), 0)
        k, v = (heads(c, t + 1) for c in ops.split(rows, [HEADS * WIDTH] * 2, 2))
        return cache, ops.attention(heads(ops.reshape(here, [BATCH, 1, HEADS * WIDTH]), 1), k, v)

    g.output(ops.scan(g, steps, body, g.full([steps, 2 * HEADS * WIDTH], 0, "f32"))[-1])
    fn, rng = tw.compile(g, {"T": tw.Dim(1, 32)}), np.random.default_rng(2)
    assert [call.family for call in fn.explain(T=9).calls].count("host_attention") == 1
    assert "gather" not in {call.workload for call in fn.explain(T=9).calls}
    for length in (1, 9, 32):
        given = rng.standard_normal((length, BATCH, HEADS * WIDTH)).astype(np.float32)
        places = np.stack([rng.integers(0, j + 1, BATCH) for j in range(length)], 1)
        cache = given.reshape(length, -1)
        wanted = [expected(q[:, None], cache, places[:, : t + 1]) for t, q in enumerate(given)]
        np.testing.assert_allclose(fn(given, places), np.stack(wanted), rtol=2e-5, atol=2e-6)
