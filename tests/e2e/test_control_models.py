"""Models whose course is decided by data: iterations until convergence, early exit, experts; against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import full_target
from tilewright.runtime.errors import DTypeError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.steps import IfStep, LoopStep


def compiled(graph: ops.Graph, **dims: tuple[int, int]) -> CompiledFunction:
    return tw.compile(graph, dims, options={"builder": LocalBuilder(full_target("host"))})


def test_power_iteration_ends_where_it_has_converged() -> None:
    g = ops.Graph()
    a, start = g.input("a", ["N", "N"]), g.input("v", ["N"])

    def far(v: ops.Tensor, w: ops.Tensor, rounds: ops.Tensor) -> ops.Tensor:
        return ops.compare(ops.max(ops.absolute(v - w)), 1e-4, "gt")

    def step(v: ops.Tensor, _: ops.Tensor, rounds: ops.Tensor) -> tuple[ops.Tensor, ...]:
        w = ops.reshape(ops.matmul(a, ops.reshape(v, [v.dims[0], 1])), [v.dims[0]])
        return w / ops.sqrt(ops.sum(w * w)), v, rounds + 1.0

    found, _, rounds = ops.while_loop(far, step, start, start + 1.0, g.full([], 0, "f32"))
    g.output(found, rounds)
    fn = compiled(g, N=(1, 40))
    for n in (1, 2, 17, 40):
        u = np.linspace(1, 2, n, dtype=np.float32)
        matrix = np.outer(u, u) + np.eye(n, dtype=np.float32) * 0.1
        vector, count = fn(matrix, np.ones(n, np.float32))
        np.testing.assert_allclose(vector, u / np.linalg.norm(u), rtol=1e-3)
        assert 1 <= count < 20


def test_layers_until_one_is_sure() -> None:
    g = ops.Graph()
    x, w = g.input("x", ["B", 8]), g.input("w", [8, 8])

    def unsure(i: ops.Tensor, h: ops.Tensor) -> ops.Tensor:
        early = ops.compare(i, 6.0, "lt")
        return ops.where(early, ops.compare(ops.max(h), 0.9, "lt"), early)

    depth, h = ops.while_loop(unsure, lambda i, h: (i + 1.0, ops.tanh(ops.matmul(h, w) + x)), g.full([], 0, "f32"), x * 0.0)
    g.output(depth, h)
    fn, rng, depths = compiled(g, B=(1, 9)), np.random.default_rng(0), set()
    for b, scale in ((1, 0.01), (4, 0.3), (9, 3.0)):
        x0 = (rng.standard_normal((b, 8)) * scale).astype(np.float32)
        w0 = (rng.standard_normal((8, 8)) * 0.5).astype(np.float32)
        want, count = np.zeros_like(x0), 0
        while count < 6 and want.max() < 0.9:
            want, count = np.tanh(want @ w0 + x0), count + 1
        found, state = fn(x0, w0)
        assert found == count
        np.testing.assert_allclose(state, want, rtol=1e-4, atol=1e-5)
        depths.add(count)
    assert len(depths) > 1


def test_one_expert_of_three_is_run() -> None:
    g = ops.Graph()
    x, gate, weights = g.input("x", ["B", 8]), g.input("gate", [8, 3]), g.input("w", [3, 8, 8])
    chosen = ops.argmax(ops.sum(ops.matmul(x, gate), 0), 0)

    def expert(n: int, v: ops.Tensor) -> ops.Tensor:
        return ops.relu(ops.matmul(v, ops.select(weights, 0, n)))

    def one_of(n: int, v: ops.Tensor) -> ops.Tensor:
        if n == 2:
            return expert(n, v)
        return ops.cond(ops.compare(chosen, n, "eq"), lambda u: expert(n, u), lambda u: one_of(n + 1, u), v)[0]

    g.output(one_of(0, x))
    fn, rng = compiled(g, B=(1, 9)), np.random.default_rng(3)
    assert any(isinstance(step, IfStep) for step in fn.program.tree)
    w0 = rng.standard_normal((3, 8, 8)).astype(np.float32)
    for b, n in ((1, 0), (2, 1), (3, 2), (9, 1), (7, 0)):
        x0, gate0 = rng.random((b, 8), np.float32), np.tile(np.eye(3, dtype=np.float32)[n], (8, 1))
        np.testing.assert_allclose(fn(x0, gate0, w0), np.maximum(x0 @ w0[n], 0), rtol=1e-4, atol=1e-4)


def test_a_carried_type_that_changes_is_refused() -> None:
    g = ops.Graph()
    x = g.input("x", ["B", 4])
    with pytest.raises(DTypeError, match=r"fori_loop: tensor 0 .*f32.*i64"):
        ops.fori_loop(0, 3, lambda _, v: ops.cast(v, "i64"), x)


def test_loops_in_a_saved_model(tmp_path: object) -> None:
    g = ops.Graph()
    x, n = g.input("x", ["B"]), g.dim("T")
    g.output(*ops.fori_loop(0, n, lambda _, v: ops.flip(v, 0) + 1.0, x))
    fn = compiled(g, B=(1, 9), T=(0, 5))
    assert any(isinstance(step, LoopStep) for step in fn.program.tree)
    fn.save(f"{tmp_path}/loop.tw")
    loaded = tw.load(f"{tmp_path}/loop.tw")
    for t in (0, 1, 4):
        given = (np.arange(5, dtype=np.float32), t)
        np.testing.assert_array_equal(loaded(*given), fn(*given))
