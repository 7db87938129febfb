"""Recurrences whose states are summed where they are: one kernel, and no memory for the states."""

from __future__ import annotations

import numpy as np
import pytest
from e2e.random_sums import RandomSums

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.reference import evaluate
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.shape import Expr

GPU = "emulator:sm_90a"
CHANNELS, STATES = 24, 6


def compiled(graph: ops.Graph, dims: dict[str, tuple[int, int]], target: str = "host") -> CompiledFunction:
    return tw.compile(graph, dims, target, options={"builder": LocalBuilder(full_target(target))})


def mamba(last: bool = False, product: bool = False) -> ops.Graph:
    """Mamba's scan with its skip and gate; step sizes are computed from what is read. last: gives the last state too. product:
    the sum is written as one of a product."""
    g = ops.Graph()
    x, d, z = (g.input(n, ["T", CHANNELS]) for n in "xdz")
    b, c, rate = g.input("b", ["T", STATES]), g.input("c", ["T", STATES]), g.input("a", [CHANNELS, STATES])

    def step(t: Expr, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
        delta, u = (ops.reshape(v, [CHANNELS, 1]) for v in (ops.tanh(ops.select(d, 0, t)), ops.select(x, 0, t)))
        h = ops.exp(delta * rate) * h + delta * u * ops.reshape(ops.select(b, 0, t), [1, STATES])
        read = ops.select(c, 0, t)
        if product:
            return h, ops.reshape(ops.matmul(h, ops.reshape(read, [STATES, 1])), [CHANNELS])
        return h, ops.sum(h * ops.reshape(read, [1, STATES]), 1)

    state, y = ops.scan(g, x.dims[0], step, g.full([CHANNELS, STATES], 0, "f32"))
    g.output((y + x * 0.5) * ops.silu(z), *([state] if last else []))
    return g


def arrays(steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(steps)
    shapes = [(steps, CHANNELS)] * 3 + [(steps, STATES)] * 2 + [(CHANNELS, STATES)]
    return [(rng.standard_normal(s) * 0.5).astype(np.float32) for s in shapes]


def check(fn: CompiledFunction, graph: ops.Graph, steps: tuple[int, ...]) -> None:
    for count in steps:
        found, wanted = fn(*arrays(count)), evaluate(graph.module_text(), arrays(count))
        for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["host", GPU])
@pytest.mark.parametrize("product", [False, True])
def test_the_states_of_a_selective_scan_are_in_no_memory(target: str, product: bool) -> None:
    graph = mamba(product=product)
    fn = compiled(graph, {"T": (0, 512)}, target)
    assert len(fn.program.calls) == 1
    assert fn.memory(T=512).arena < 512 * CHANNELS * 4
    check(fn, graph, (0, 1, 7, 33))


@pytest.mark.parametrize("target", ["host", GPU])
def test_the_last_state_is_given_as_well(target: str) -> None:
    graph = mamba(last=True)
    check(compiled(graph, {"T": (1, 40)}, target), graph, (1, 2, 33))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("seed", "target"), [(0, "host"), (1, "host:x86-64-v3"), (5, "host"), (2, GPU), (3, GPU)])
def test_random_sums(seed: int, target: str) -> None:
    made = RandomSums(seed)
    text, fn = made.graph.module_text(), compiled(made.graph, made.dims, target)
    bound = 6e-2 if made.dtype == "bf16" else 2e-4
    for steps, n in ((0, 3), (1, 1), (9, 11), (3, 37)):
        if steps < made.lowest:
            continue
        given = made.arrays(steps, n)
        wanted = evaluate(text, [steps, *given])
        for threads in (1, 3) if target != GPU else (None,):
            found = fn(steps, *given, **({} if threads is None else {"threads": threads}))
            for got, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
                np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound)


def test_more_states_than_a_thread_has_room_for_are_kept() -> None:
    """They are right as well, by a kernel of their own for the sums."""
    g = ops.Graph()
    x, w = g.input("x", ["T", 3, 100]), g.input("w", ["T", 100])

    def step(t: Expr, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
        h = h * 0.5 + ops.select(x, 0, t)
        return h, ops.sum(h * ops.reshape(ops.select(w, 0, t), [1, 100]), 1)

    g.output(ops.scan(g, x.dims[0], step, g.full([3, 100], 0, "f32"))[-1])
    fn = compiled(g, {"T": (1, 16)})
    assert len(fn.program.calls) == 2
    given = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((5, 3, 100), (5, 100))]
    np.testing.assert_allclose(fn(*given), evaluate(g.module_text(), given)[0], rtol=1e-4, atol=1e-4)


def decaying(start: bool) -> ops.Graph:
    """A scan with steps and rates as Mamba makes them: log(1 + e^d), and -e^a. start: the states begin with what is given."""
    g = ops.Graph()
    d, x, a = g.input("d", ["T", CHANNELS]), g.input("x", ["T", CHANNELS]), g.input("a", [CHANNELS, STATES])
    first = g.input("h", [CHANNELS, STATES]) if start else g.full([CHANNELS, STATES], 0, "f32")
    rate = -ops.exp(a)

    def step(t: Expr, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
        delta, u = (ops.reshape(v, [CHANNELS, 1]) for v in (ops.log(ops.exp(ops.select(d, 0, t)) + 1), ops.select(x, 0, t)))
        h = ops.exp(delta * rate) * h + delta * u
        return h, ops.sum(h, 1)

    state, y = ops.scan(g, d.dims[0], step, first)
    g.output(y, state)
    return g


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["host", GPU])
@pytest.mark.parametrize("start", [False, True])
def test_decays_are_powers_of_two_of_products(target: str, start: bool) -> None:
    """As exact as the model's own form in f32: beside the result in f64, within what rounding each product and sum costs."""
    graph = decaying(start)
    fn = compiled(graph, {"T": (0, 64)}, target)
    rng = np.random.default_rng(3)
    for steps in (0, 1, 9):
        given = [rng.standard_normal(s).astype(np.float32) * 2 for s in ((steps, CHANNELS), (steps, CHANNELS), (CHANNELS, STATES),
                                                                       *([(CHANNELS, STATES)] if start else []))]
        for got, want in zip(fn(*given), evaluate(graph.module_text(), given), strict=True):
            np.testing.assert_allclose(got, want, rtol=3e-6, atol=3e-6)


def test_decays_at_the_ends_of_the_range() -> None:
    """Steps and rates of 0, of the largest and the smallest numbers, infinite ones and NaN: as e^(d a) says."""
    g = ops.Graph()
    d, a = g.input("d", ["T", CHANNELS]), g.input("a", [CHANNELS, STATES])
    step_, rate = ops.maximum(d, g.full([1], 0, "f32")), ops.minimum(a, g.full([1], 0, "f32"))

    def step(t: Expr, h: ops.Tensor) -> tuple[ops.Tensor, ...]:
        h = ops.exp(ops.reshape(ops.select(step_, 0, t), [CHANNELS, 1]) * rate) * h
        return h, ops.sum(h, 1)

    state, _ = ops.scan(g, d.dims[0], step, g.full([CHANNELS, STATES], 1, "f32"))
    g.output(state)
    fn = compiled(g, {"T": (1, 4)})
    assert len(fn.program.calls) <= 3
    ends = np.array([0, 1e-45, 1e-38, 1e-3, 1, 80, 3.4e38, np.inf, np.nan], np.float32)
    for d_ in ends:
        given = [np.full((1, CHANNELS), d_, np.float32), -np.resize(ends, (CHANNELS, STATES))]
        with np.errstate(all="ignore"):
            want = np.exp(given[0].astype(np.float64).reshape(CHANNELS, 1) * given[1])
        got = fn(*given)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=6e-6, atol=2.0**-126)
