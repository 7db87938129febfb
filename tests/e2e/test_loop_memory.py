"""What loops carry: parts put in place, copies where somebody reads what was there, products of all steps in front."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.reference import evaluate
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.steps import CopyStep, IfStep, InsertStep, LaunchStep, LoopStep, Step
from tilewright.runtime.shape import Expr

Body = Callable[..., tuple[ops.Tensor, ...]]


def compiled(graph: ops.Graph, dims: dict[str, tuple[int, int]], target: str = "host") -> CompiledFunction:
    return tw.compile(graph, dims, target, options={"builder": LocalBuilder(full_target(target))})


def loop_of(fn: CompiledFunction) -> LoopStep:
    return next(step for step in fn.program.tree if isinstance(step, LoopStep))


def inside(fn: CompiledFunction, kind: type[Step]) -> int:
    return sum(isinstance(step, kind) for step in loop_of(fn).body)


def _read_after(i: Expr, cache: ops.Tensor, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
    cache = ops.select_scatter(cache, h, 0, i)
    return cache, ops.sum(cache, 0) * 0.25


def _read_before(i: Expr, cache: ops.Tensor, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
    return ops.select_scatter(cache, h, 0, i), ops.sum(cache, 0) * 0.5 + ops.sum(ops.select_scatter(cache, h, 0, i), 0) * 0.25


def _two_parts(i: Expr, cache: ops.Tensor, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
    once = ops.select_scatter(cache, h, 0, i)
    twice = ops.select_scatter(once, h * 2.0, 0, 0)
    return twice, ops.sum(once, 0) * 0.25 + ops.max(twice, 0)


def _moved(i: Expr, cache: ops.Tensor, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
    """What goes on is another tensor, made of the one that a part was put into."""
    cache = ops.select_scatter(cache, h, 0, i)
    return ops.flip(cache, 0), ops.max(cache, 0) * 0.5


def _columns(i: Expr, cache: ops.Tensor, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
    cache = ops.slice_scatter(cache, ops.broadcast_to(ops.sum(h), [cache.dims[0], 1]), 1, 2, 3)
    return cache, h + ops.select(cache, 0, i) * 0.125


@pytest.mark.parametrize(("body", "puts", "copies"), [
    (_read_after, 1, 0), (_read_before, None, None), (_two_parts, 2, None), (_moved, 1, 0), (_columns, 1, 0)])
def test_a_part_is_put_where_a_carried_tensor_lies(body: Body, puts: int | None, copies: int | None) -> None:
    """Whatever is copied first, what was there is what its readers see."""
    g = ops.Graph()
    start, steps = g.input("cache", ["N", 5]), g.dim("T")
    g.output(*ops.fori_loop(0, steps, body, start, g.input("h", [5])))
    fn = compiled(g, {"N": (6, 9), "T": (0, 6)})
    assert puts is None or inside(fn, InsertStep) == puts
    assert copies is None or inside(fn, CopyStep) == copies
    rng = np.random.default_rng(3)
    for n, count in ((6, 0), (7, 1), (9, 6), (6, 5)):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((n, 5), (5,))]
        kept = [a.copy() for a in arrays]
        wanted = evaluate(g.module_text(), [arrays[0], count, arrays[1]])
        for threads in (1, 3):
            for got, want in zip(fn(arrays[0], count, arrays[1], threads=threads), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        for array, before in zip(arrays, kept, strict=True):
            np.testing.assert_array_equal(array, before)


def test_parts_of_few_runs_are_put_in_place_on_gpus() -> None:
    """Of a cache [2, N, 4] the rows of a step are two runs; of its transpose they would be as many as elements."""
    g = ops.Graph()
    cache, turned, h = g.input("cache", [2, "N", 4]), g.input("turned", [4, 3, "N"]), g.input("h", [2, 4])

    def body(i: Expr, cache: ops.Tensor, turned: ops.Tensor, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
        cache = ops.select_scatter(cache, h, 1, i)
        turned = ops.select_scatter(turned, ops.broadcast_to(ops.reshape(ops.max(h, 0), [4, 1]), [4, 3]), 2, i)
        h = ops.sum(ops.narrow(cache, 1, 0, i + 1), 1) * 0.25 + ops.reshape(ops.sum(turned, [1, 2]), [1, 4]) * 0.125
        return cache, turned, h

    g.output(*ops.fori_loop(0, g.dim("T"), body, cache, turned, h))
    fn = compiled(g, {"N": (3, 9), "T": (0, 3)}, "emulator:sm_90a")
    assert inside(fn, InsertStep) == 1
    rng = np.random.default_rng(3)
    for n, count in ((3, 0), (4, 1), (9, 3)):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, n, 4), (4, 3, n), (2, 4))]
        given = dict(zip(("cache", "turned", "h"), arrays, strict=True), T=count)
        kept = [a.copy() for a in arrays]
        wanted = evaluate(g.module_text(), [given[i.name] for i in fn.inputs])
        for got, want in zip(fn(**given), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        for array, before in zip(arrays, kept, strict=True):
            np.testing.assert_array_equal(array, before)


def test_a_cache_inside_of_two_loops() -> None:
    """The inner loop begins with a copy of what the outer one carries."""
    g = ops.Graph()
    cache, h = g.input("cache", [4, 3]), g.input("h", [3])

    def outer(_: Expr, kept: ops.Tensor, v: ops.Tensor) -> tuple[ops.Tensor, ...]:
        def inner(i: Expr, c: ops.Tensor, u: ops.Tensor) -> tuple[ops.Tensor, ...]:
            c = ops.select_scatter(c, u, 0, i)
            return c, ops.max(c, 0) * 0.5 + u * 0.25

        return ops.fori_loop(0, 4, inner, kept, v)

    g.output(*ops.fori_loop(0, g.dim("T"), outer, cache, h))
    fn = compiled(g, {"T": (0, 5)})
    arrays = [np.random.default_rng(1).standard_normal(s).astype(np.float32) for s in ((4, 3), (3,))]
    for count in (0, 1, 3):
        for got, want in zip(fn(*arrays, count), evaluate(g.module_text(), [*arrays, count]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_products_of_what_is_read_are_done_for_all_steps_at_once() -> None:
    """One product in front of the loop, one in it; a function of weights is computed once; backwards and by twos too."""
    g = ops.Graph()
    x, w = g.input("x", ["T", 2, 6]), g.input("w", [6, 6])

    def body(i: Expr, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
        at = ops.select(x, 0, x.dims[0] - 1 - i)
        h = ops.tanh(ops.matmul(at, w) + ops.matmul(h, ops.exp(w) * 0.1))
        return h, h

    g.output(*ops.scan(g, x.dims[0], body, g.full([2, 6], 0, "f32"), backwards=True))
    fn = compiled(g, {"T": (0, 9)})
    assert inside(fn, LaunchStep) <= 2
    rng = np.random.default_rng(0)
    for count in (0, 1, 9):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((count, 2, 6), (6, 6))]
        for got, want in zip(fn(*arrays), evaluate(g.module_text(), arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("steps", "backwards"), [("T", False), ("T", True), (6, False)])
def test_rows_of_all_steps_begin_with_anything_and_states_of_zeros_have_no_product_at_first(
        steps: str | int, backwards: bool) -> None:
    """Nothing is filled or copied for the rows; the product of the state that begins as zeros, and what is added to it, are in a
    branch, that of the other state is not."""
    g = ops.Graph()
    x, w, start = g.input("x", [steps, 16, 24]), g.input("w", [24, 48]), g.input("start", [16, 24])

    def body(i: Expr, h: ops.Tensor, c: ops.Tensor) -> tuple[ops.Tensor, ...]:
        at = ops.select(x, 0, x.dims[0] - 1 - i if backwards else i)
        a, b = ops.split(ops.matmul(h, w) + ops.concat([at, at], 1), [24, 24], 1)
        c = ops.tanh(b) + 0.125 * ops.narrow(ops.matmul(c, w), 1, 0, 24)
        h = ops.tanh(a) * c
        return h, c, h

    g.output(*ops.scan(g, x.dims[0], body, g.full([16, 24], 0, "f32"), start, backwards=backwards))
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((24, 48)).astype(np.float32) * np.float32(0.2)
    fn = tw.compile(g, {"T": (0, 9)} if steps == "T" else {}, options={"builder": LocalBuilder(full_target("host"))},
                    constants={"w": weights})
    assert inside(fn, IfStep) == 1
    assert not any(isinstance(step, CopyStep) and "T" in str(step) for step in fn.program.tree)
    for count in (0, 1, 2, 9) if steps == "T" else (6,):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((count, 16, 24), (16, 24))]
        wanted = evaluate(g.module_text(), [arrays[0], weights, arrays[1]])
        for threads in (1, 3):
            for got, want in zip(fn(*arrays, threads=threads), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
