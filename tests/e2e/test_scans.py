"""Loops that become kernels over all their steps: random ones against the reference, and which ones stay loops."""

from __future__ import annotations

import numpy as np
import pytest
from e2e.random_scans import RandomScan

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.compiler.reference import evaluate
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.steps import LoopStep
from tilewright.runtime.shape import Expr


def compiled(graph: ops.Graph, dims: dict[str, tuple[int, int]], target: str = "host") -> CompiledFunction:
    return tw.compile(graph, dims, target, options={"builder": LocalBuilder(full_target(target))})


def loops(fn: CompiledFunction) -> int:
    return sum(isinstance(step, LoopStep) for step in fn.program.tree)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("seed", "target"), [
    (28, "host:x86-64-v3"), (122, "host"), (144, "host"), (23, "host")])
def test_random_scans(seed: int, target: str) -> None:
    """23, 28: of no step; 122: bf16; 144: several results of other extents in one kernel."""
    scan = RandomScan(seed)
    text, fn = scan.graph.module_text(), compiled(scan.graph, scan.dims, target)
    assert loops(fn) == 0
    bound = 6e-2 if scan.dtype == "bf16" else 2e-4
    for steps, n in ((0, 3), (1, 1), (2, 7), (17, 33)):
        if steps < scan.lowest:
            continue
        arrays = scan.arrays(steps, n)
        wanted = evaluate(text, [steps, *arrays])
        for threads in (1, 5):
            for got, want in zip(fn(steps, *arrays, threads=threads), wanted, strict=True):
                np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound)


def test_a_state_that_needs_another_one_of_other_extents() -> None:
    """A largest number so far, and sums that are scaled to it: products before and behind them are of all steps at once."""
    g = ops.Graph()
    steps = g.dim("T")
    x, w, v, start = g.input("x", ["T", 6]), g.input("w", [6, 8]), g.input("v", [8, 3]), g.input("s", [8])

    def body(i: Expr, h: ops.Tensor, most: ops.Tensor) -> tuple[ops.Tensor, ...]:
        u = ops.reshape(ops.matmul(ops.reshape(ops.select(x, 0, i), [1, 6]), w), [8])
        more = ops.maximum(most, ops.max(u))
        h = h * ops.exp(most - more) * 0.5 + u
        return h, more, ops.reshape(ops.matmul(ops.reshape(h, [1, 8]), v), [3])

    g.output(*ops.scan(g, steps, body, start, g.full([], -3.0, "f32")))
    fn = compiled(g, {"T": (0, 40)})
    assert loops(fn) == 0
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 9):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((count, 6), (6, 8), (8, 3), (8,))]
        for got, want in zip(fn(count, *arrays), evaluate(g.module_text(), [count, *arrays]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_loop_of_products_stays_one() -> None:
    g = ops.Graph()
    steps, x, w = g.dim("T"), g.input("x", [2, 4]), g.input("w", [4, 4])
    g.output(*ops.fori_loop(0, steps, lambda _, h: ops.matmul(h, w), x))
    fn = compiled(g, {"T": (0, 9)})
    assert loops(fn) == 1
    arrays = [np.full((2, 4), 0.5, np.float32), np.full((4, 4), 0.25, np.float32)]
    np.testing.assert_allclose(fn(3, *arrays), evaluate(g.module_text(), [3, *arrays])[0], rtol=1e-5)


def test_what_would_take_too_much_memory_stays_a_loop() -> None:
    g = ops.Graph()
    x = g.input("x", [64, 1024])
    g.output(*ops.scan(g, g.dim("T"), lambda _, h: (h * 0.5, ops.max(h)), x)[1:])
    assert loops(compiled(g, {"T": (0, 64)})) == 0
    assert loops(compiled(g, {"T": (0, 4096)})) == 1


@pytest.mark.parametrize("steps", [3, 200])
def test_a_permuted_result_of_a_running_sum_is_a_kernel_of_its_own(steps: int) -> None:
    g = ops.Graph()
    x, z = g.input("x", ["T", 16]), g.input("z", [16, "T"])
    g.output(ops.transpose(ops.cumsum(x, 0), [1, 0]) * z)
    fn = compiled(g, {"T": (1, 200)})
    assert len(fn.program.calls) == 2
    a, b = np.ones((steps, 16), np.float32), np.full((16, steps), 2, np.float32)
    np.testing.assert_allclose(fn(a, b), np.cumsum(a, 0).T * b, rtol=1e-5)
