"""Reductions down the rows and over whole tensors, beside work on the rows, on the emulated GPU: races, bits, launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops

pytestmark = pytest.mark.usefixtures("built_here")

Body = Callable[[ops.Graph, str], None]


def layernorm_backward(g: ops.Graph, dtype: str) -> None:
    """Gradients of the input, the weight and the bias."""
    columns = 96
    x, dy = (g.input(n, ["T", columns], dtype=dtype) for n in ("x", "dy"))
    mean, rstd = (g.input(n, ["T", 1], dtype=dtype) for n in ("mean", "rstd"))
    weight = g.input("w", [columns], dtype=dtype)
    normal = (x - mean) * rstd
    scaled = dy * weight
    first = ops.sum(scaled, [1], keepdims=True) * (1 / columns)
    second = ops.sum(scaled * normal, [1], keepdims=True) * (1 / columns)
    g.output(rstd * (scaled - first - normal * second), name="dx")
    g.output(ops.sum(dy * normal, [0]), name="dw")
    g.output(ops.sum(dy, [0]), name="db")


def bias_backward(g: ops.Graph, dtype: str) -> None:
    """An elementwise gradient and its sum down the rows; rows that are no whole vectors."""
    x, dy = (g.input(n, ["T", 37], dtype=dtype) for n in ("x", "dy"))
    d = dy * (1 - ops.tanh(x) * ops.tanh(x))
    g.output(d, name="d")
    g.output(ops.sum(d, [0]), name="db")


def clipping(g: ops.Graph, dtype: str) -> None:
    """A norm of a whole tensor feeds elementwise work on it."""
    x = g.input("x", ["T", 64], dtype=dtype)
    norm = ops.sqrt(ops.sum(ops.sum(x * x, [1], keepdims=True), [0], keepdims=True))
    g.output(x / ops.maximum(norm, 1.0), name="y")


def wide_rows(g: ops.Graph, dtype: str) -> None:
    """Rows that registers do not hold, and a maximum."""
    x = g.input("x", ["T", "N"], dtype=dtype)
    g.output(ops.max(x, [0]), name="most")
    g.output(ops.sum(x, [0]), name="all")


CASES: dict[str, tuple[Body, dict[str, tuple[int, int]], list[dict[str, int]]]] = {
    "layernorm_backward": (layernorm_backward, {"T": (1, 512)}, [{"T": 1}, {"T": 131}]),
    "bias_backward": (bias_backward, {"T": (1, 1024)}, [{"T": 5}, {"T": 517}]),
    "clipping": (clipping, {"T": (1, 1024)}, [{"T": 1}, {"T": 300}]),
    "wide_rows": (wide_rows, {"T": (1, 256), "N": (16, 6000)}, [{"T": 40, "N": 5001}, {"T": 33, "N": 96}, {"T": 201, "N": 97}]),
}


def arrays_of(fn: tw.CompiledFunction, shape: dict[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(shape.values()))
    return [(rng.standard_normal([d.evaluate(shape) for d in a.spec().dims])).astype(a.dtype.numpy) for a in fn.inputs]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_parts_are_right(name: str, dtype: str) -> None:
    body, ranges, shapes = CASES[name]
    g = ops.Graph()
    body(g, dtype)
    fn, host = (tw.compile(g, ranges, target=target) for target in ("emulator:sm_90a", "host"))
    assert any(k.family == "gpu_rows" and ".part" not in k.symbol for t in fn.program.tables for k in t.kernels)
    bound = 2e-5 if dtype == "f32" else 2e-2
    for shape in shapes:
        given = arrays_of(fn, shape)
        got, again, want = (f.call_flat(*given) for f in (fn, fn, host))
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            wide, other = (x.astype(np.float64) for x in (a, b))
            assert np.linalg.norm(wide - other) <= bound * max(1e-30, np.linalg.norm(other)), (name, shape)
        assert np.array_equal(np.concatenate([np.ravel(r) for r in got] if isinstance(got, tuple) else [np.ravel(got)]),
                              np.concatenate([np.ravel(r) for r in again] if isinstance(again, tuple) else [np.ravel(again)]))


def test_a_layernorm_backward_is_two_launches_without_a_temporary_of_its_input() -> None:
    g = ops.Graph()
    layernorm_backward(g, "f32")
    fn = tw.compile(g, {"T": (1, 512)}, target="cuda:sm_90a")
    assert len(fn.program.calls) == 2 and all(len(k.launches()) == 1 for t in fn.program.tables for k in t.kernels)
    assert fn.memory(T=512).arena < 512 * 96 * 4 / 2
