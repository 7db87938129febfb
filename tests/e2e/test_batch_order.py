"""deterministic="batch": a row has the same bits whatever rows it is computed with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.target import Target

RNG = np.random.default_rng(11)


Shapes = tuple[tuple[int, ...], ...]  # of a row, and of each weight


def dense(g: ops.Graph) -> Shapes:
    """768 products in a sum, on columns that no vector divides."""
    x, w = g.input("x", ["B", 768]), g.input("w", [768, 83])
    g.output(ops.gelu(ops.matmul(x, w)))
    return (768,), (768, 83)


def norms(g: ops.Graph) -> Shapes:
    x = g.input("x", ["B", 301])
    g.output(ops.softmax(ops.layernorm(x, g.input("s", [301]), g.input("t", [301]))))
    return (301,), (301,), (301,)


def convolution(g: ops.Graph) -> Shapes:
    x, w = g.input("x", ["B", 48, 9, 9]), g.input("w", [32, 48, 3, 3])
    g.output(ops.conv2d(x, w, padding=1))
    return (48, 9, 9), (32, 48, 3, 3)


def strided(g: ops.Graph) -> Shapes:
    x, w = g.input("x", ["B", 48, 9, 9]), g.input("w", [32, 48, 3, 3])
    g.output(ops.conv2d(x, w, stride=2, padding=1))
    return (48, 9, 9), (32, 48, 3, 3)


def attention(g: ops.Graph) -> Shapes:
    """Queries are rows; keys and values are weights."""
    q, k, v = g.input("q", ["B", 2, 32]), g.input("k", [1, 2, 50, 32]), g.input("v", [1, 2, 50, 32])
    heads = ops.reshape(ops.transpose(q, [1, 0, 2]), [1, 2, "B", 32])
    g.output(ops.transpose(ops.reshape(ops.attention(heads, k, v), [2, "B", 32]), [1, 0, 2]))
    return (2, 32), (1, 2, 50, 32), (1, 2, 50, 32)


def bits(fn: tw.CompiledFunction, x: np.ndarray, threads: int) -> list[bytes]:
    """The results of each row of x, called with 1, 2, 5, 13 and all rows at once."""
    found = []
    for size in (1, 2, 5, 13, len(x)):
        rows = [fn(x[i : i + size], threads=threads) for i in range(0, len(x), size)]
        found.append(np.concatenate(rows).tobytes())
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("build,target", [*((b, "host") for b in (dense, norms, convolution, strided, attention)),
                                          (dense, "host:x86-64-v3"), (attention, "host:x86-64-v3")])
def test_rows_keep_their_bits(build: Callable[[ops.Graph], Shapes], target: str) -> None:
    g = ops.Graph()
    row, *weights = build(g)
    x = RNG.standard_normal((40, *row)).astype(np.float32)
    given = {f"arg{i + 1}": RNG.standard_normal(shape).astype(np.float32) for i, shape in enumerate(weights)}
    options = tw.CompileOptions(deterministic="batch", builder=LocalBuilder(Target.parse(target)))
    fn = tw.compile(g.module_text(), {"B": (1, 64)}, target, options, constants=given)
    assert len(set(bits(fn, x, 1) + bits(fn, x, 2))) == 1
    assert all(len(t.kernels) == 1 for t in fn.program.tables)


def test_one_shape_alone_does_not_promise_it() -> None:
    """The untuned kernels of few and many rows differ in the order of sums: the option changes something."""
    g = ops.Graph()
    dense(g)
    w = RNG.standard_normal((768, 83)).astype(np.float32)
    x = RNG.standard_normal((40, 768)).astype(np.float32)
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    fn = tw.compile(g.module_text(), {"B": (1, 64)}, options=options, constants={"arg1": w})
    assert len(set(bits(fn, x, 1))) > 1


def test_a_search_keeps_it(tmp_path: Path) -> None:
    g = ops.Graph()
    dense(g)
    w = RNG.standard_normal((768, 83)).astype(np.float32)
    x = RNG.standard_normal((40, 768)).astype(np.float32)
    options = tw.CompileOptions(deterministic="batch", trials=20, log=tmp_path / "log.jsonl")
    fn = tw.compile(g.module_text(), {"B": (1, 64)}, options=options, constants={"arg1": w})
    assert len(set(bits(fn, x, 1) + bits(fn, x, 2))) == 1
    products = [t for t in fn.program.tables if any(k.family == "host_matmul" for k in t.kernels)]
    assert products and all(len(t.kernels) == 1 and "ordered=true" in t.kernels[0].config for t in products)


def test_a_gpu_keeps_it() -> None:
    g = ops.Graph()
    x = g.input("x", ["B", 64], "f16")
    g.output(ops.matmul(x, g.input("w", [64, 32], "f16")))
    target = "emulator:sm_80"
    options = tw.CompileOptions(deterministic="batch", builder=LocalBuilder(Target.parse(target)))
    fn = tw.compile(g.module_text(), {"B": (1, 64)}, target, options)
    a, w = (RNG.standard_normal(s).astype(np.float16) for s in ((40, 64), (64, 32)))
    whole = fn(a, w)
    for size in (1, 7, 33):
        assert fn(a[:size], w).tobytes() == whole[:size].tobytes()
