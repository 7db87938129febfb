"""Extents and places that are sums of a loop's counter and dims: slices read and written, conditions in branches and loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.reference import evaluate
from tilewright.runtime.counters import at_most
from tilewright.runtime.errors import IngestError, ShapeError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.shape import Expr

Make = Callable[[ops.Graph, ops.Tensor, Expr], ops.Tensor]


def graph_of(make: Make) -> ops.Graph:
    g = ops.Graph()
    x = g.input("x", [1, "T", 4])
    g.output(make(g, x, x.dims[1]))
    return g


def compiled(model: ops.Graph | str, lo: int = 1, hi: int = 9, target: str = "host") -> CompiledFunction:
    return tw.compile(model, {"T": (lo, hi)}, target, options={"builder": LocalBuilder(full_target(target))})


def agrees(model: ops.Graph, fn: CompiledFunction, *sizes: int) -> None:
    for t in sizes:
        x = np.random.default_rng(t).standard_normal((1, t, 4)).astype(np.float32)
        np.testing.assert_allclose(fn(x), evaluate(model.module_text(), [x])[0], rtol=1e-4, atol=1e-4)


def grown_cache(g: ops.Graph, x: ops.Tensor, steps: Expr) -> ops.Tensor:
    """kv[:, :t + 1] = softmax(x x') x of the rows so far."""
    def body(t: Expr, kv: ops.Tensor) -> ops.Tensor:
        rows = ops.narrow(x, 1, 0, t + 1)
        scores = ops.softmax(ops.matmul(rows, ops.transpose(rows, [0, 2, 1])), -1)
        return ops.slice_scatter(kv, ops.matmul(scores, rows), 1, 0, t + 1)

    return ops.fori_loop(0, steps, body, g.full([1, steps, 4], 0, "f32"))[0]


def triangle(g: ops.Graph, x: ops.Tensor, steps: Expr) -> ops.Tensor:
    """kv[:, j:t + 1] += x[:, j:t + 1], in a loop inside a loop."""
    def body(t: Expr, kv: ops.Tensor) -> ops.Tensor:
        def inner(j: Expr, kv: ops.Tensor) -> ops.Tensor:
            return ops.slice_scatter(kv, ops.slice_axis(kv, 1, j, t + 1) + ops.slice_axis(x, 1, j, t + 1), 1, j, t + 1)

        return ops.fori_loop(0, t + 1, inner, kv)[0]

    return ops.fori_loop(0, steps, body, g.full([1, steps, 4], 1, "f32"))[0]


def early(g: ops.Graph, x: ops.Tensor, steps: Expr) -> ops.Tensor:
    """kv[:, :2t + 1] of twice as many rows, until one is large."""
    def body(t: Expr, kv: ops.Tensor) -> ops.Tensor:
        return ops.slice_scatter(kv, ops.narrow(kv, 1, 0, t * 2 + 1) + 1.0, 1, 0, t * 2 + 1)

    return ops.fori_loop(0, steps, body, g.full([1, steps * 2, 4], 0, "f32"),
                         test=lambda kv: ops.compare(ops.max(kv), 5.0, "lt"))[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", [grown_cache, triangle, early])
@pytest.mark.parametrize("target", ["host", "emulator:sm_90a"])
def test_slices_up_to_a_counter_and_a_constant(make: Make, target: str) -> None:
    model = graph_of(make)
    assert "min" not in model.module_text()  # what a counter is at most is known where the loop is built
    fn = compiled(model, target=target)
    assert not fn.program.checks
    agrees(model, fn, *((1, 2, 5, 9) if target == "host" else (3,)))


WRITTEN = """func.func @main(%x: tensor<?x4xf32> {tw.dims = ["T", 4]}) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %more = arith.constant MORE : index
  %t = tensor.dim %x, %c0 : tensor<?x4xf32>
  %r = scf.for %i = %c0 to %t step %c1 iter_args(%a = %x) -> (tensor<?x4xf32>) {
    %n = arith.addi %i, %more : index
    %cut = arith.minsi %n, %t : index
    %same = arith.cmpi eq, %n, %cut : index
    cf.assert %same, "a part as long as its place"
    %p = tensor.extract_slice %a[0, 0] [%n, 4] [1, 1] : tensor<?x4xf32> to tensor<?x4xf32>
    %e = tensor.empty(%n) : tensor<?x4xf32>
    %q = linalg.add ins(%p, %p : tensor<?x4xf32>, tensor<?x4xf32>) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
    %w = tensor.insert_slice %q into %a[0, 0] [%n, 4] [1, 1] : tensor<?x4xf32> into tensor<?x4xf32>
    scf.yield %w : tensor<?x4xf32>
  }
  return %r : tensor<?x4xf32>
}"""


def test_an_assert_about_a_counter_is_proven_where_it_holds() -> None:
    text = WRITTEN.replace("MORE", "1")
    fn = compiled(text)
    assert not fn.program.checks
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(fn(x), evaluate(text, [x])[0])


def test_a_slice_beyond_the_end_is_refused_by_its_counter() -> None:
    with pytest.raises(IngestError, match=r"a part as long as its place.* while i0 counts from 0 to T - 1 for any shape"):
        compiled(WRITTEN.replace("MORE", "2"))


def test_what_cannot_be_told_of_a_counter_says_so() -> None:
    """Products of counters have no linear bound: the message does not claim that they leave their tensor."""
    def make(g: ops.Graph, x: ops.Tensor, steps: Expr) -> ops.Tensor:
        def body(t: Expr, s: ops.Tensor) -> ops.Tensor:
            return s + ops.sum(ops.narrow(x, 1, 0, (t * t) % (steps * 2)), 1)

        return ops.fori_loop(0, steps, body, g.full([1, 4], 0, "f32"))[0]

    with pytest.raises(IngestError, match="as far as can be told"):
        compiled(graph_of(make), 3, 9)


def test_a_branch_that_is_not_taken_needs_nothing() -> None:
    def make(g: ops.Graph, x: ops.Tensor, steps: Expr) -> ops.Tensor:
        def long(x: ops.Tensor) -> ops.Tensor:
            rest = ops.narrow(x, 1, 4, steps - 4)
            return ops.sum(ops.exp(ops.cumsum(rest, 1)), 1) + ops.select(x, 1, 4)

        return ops.cond(steps - 4, long, lambda x: ops.sum(x, 1), x)[0]

    model = graph_of(make)
    fn = compiled(model, 0)
    assert not fn.program.checks
    assert fn.memory(T=0).arena >= 0
    agrees(model, fn, 0, 3, 4, 5, 9)


def test_a_loop_without_a_step_needs_nothing_and_others_are_checked() -> None:
    def make(g: ops.Graph, x: ops.Tensor, steps: Expr) -> ops.Tensor:
        return ops.fori_loop(0, steps - 3, lambda i, s: s + ops.select(x, 1, 5), g.full([1, 4], 0, "f32"))[0]

    model = graph_of(make)
    fn = compiled(model, 0)
    agrees(model, fn, 0, 3, 6, 9)
    with pytest.raises(ShapeError, match="axis 1 of extent T"):  # a step, and no x[:, 5]
        fn(np.zeros((1, 5, 4), np.float32))


def test_the_largest_value_of_minima_and_maxima() -> None:
    class Counter:
        name, start, largest = "i", Expr.of(0), Expr.parse("T - 1")

    bounds = {"T": (1.0, 9.0), "i": (0.0, 9.0)}
    for text, wanted in (("max(i + 1 - T, T - i - 1)", "T - 1"), ("i + 1 - min(i + 1, T)", "0"), ("min(i, 3) - i", "0"),
                         ("2*i + 1", "2*T - 1")):
        found, expected = at_most(Expr.parse(text), [Counter()], bounds), Expr.parse(wanted)
        for t in range(1, 10):
            assert found.evaluate({"T": t}) == max(Expr.parse(text).evaluate({"T": t, "i": i}) for i in range(t))
            assert found.evaluate({"T": t}) == expected.evaluate({"T": t}), text
