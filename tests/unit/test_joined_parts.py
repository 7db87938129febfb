"""Parts that the kernel which makes them adds up itself, and the call that joins them skipped: where, with which bits."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.host import host_program
from tilewright.compiler.host.joined_parts import PartJoins
from tilewright.passes.spaces.host import host_rows_heuristics
from tilewright.passes.spaces.host.host_rows import HostRowsConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node

pytestmark = pytest.mark.usefixtures("built_here")

ROWS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 129, 700)  # parts have 16 or 64 rows, or those of layernorm 32


def gradients(columns: int = 800) -> ops.Graph:
    """Of a layernorm, and of its weight and bias."""
    g = ops.Graph()
    x, dy = g.input("x", ["T", columns]), g.input("dy", ["T", columns])
    weight, scale = g.input("w", [columns]), g.input("s", ["T", 1])
    unit, weighted = x * scale, dy * weight
    g.output((weighted - unit * ops.mean(weighted * unit, [1], keepdims=True)) * scale)
    g.output(ops.sum(dy * unit, [0]))
    g.output(ops.sum(dy, [0]))
    return g


def raised(columns: int = 3072) -> ops.Graph:
    """What is made of each element, its sums down the columns, and the greatest."""
    g = ops.Graph()
    x, bias = g.input("x", ["T", columns]), g.input("bias", [columns])
    y = ops.exp(x + bias)
    g.output(y)
    g.output(ops.sum(y, [0]))
    g.output(ops.max(y, [0]))
    return g


def sums(columns: int = 768) -> ops.Graph:
    """Of integers too, and one that something else is made of."""
    g = ops.Graph()
    x, n = g.input("x", ["T", columns]), g.input("n", ["T", columns], "i32")
    g.output(ops.sum(x, [0]))
    g.output(ops.sum(n, [0]))
    g.output(ops.sum(x * x, [0]) * 0.5)
    return g


def given(fn: tw.CompiledFunction, rows: int) -> list[np.ndarray]:
    random = np.random.default_rng(rows)
    sizes = [(a.dtype.value, [rows if d == "T" else int(d) for d in a.dims or ()]) for a in fn.inputs]
    return [random.integers(-9, 9, s).astype(np.int32) if t == "i32" else random.standard_normal(s).astype(np.float32)
            for t, s in sizes]


def by_columns(old: object, unroll: int, workload: Workload, limits: HostLimits) -> tuple[tuple[HostRowsConfig, ...], Node]:
    """All sums in parts by columns, which have whole vectors and a rest."""
    if host_rows_heuristics.sums_of_elements(workload):
        return (HostRowsConfig("lane", 8, unroll, block=workload.part_rows),), Leaf(0)
    return old(workload, limits)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("build", [gradients, raised, sums, partial(sums, 333), partial(raised, 1001)])
def test_joined_parts_have_the_bits_of_parts_that_a_call_joins(
        build: partial[ops.Graph], columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if columns:
        monkeypatch.setattr(host_rows_heuristics, "default", partial(by_columns, host_rows_heuristics.default, 4))
    fn = tw.compile(build(), {"T": (0, 2048)})
    assert any(k.joins for t in fn.program.tables for k in t.kernels)
    asked: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(host_program, "PartJoins", lambda *args: asked.append(args) or PartJoins((), (), ()))
        apart = tw.compile(build(), {"T": (0, 2048)}, options={"seed": 1})
    assert asked, "the other one came from a cache"
    for rows in ROWS:
        tensors = given(fn, rows)
        for one, two, alone in zip(fn(*tensors), fn(*tensors, threads=2), apart(*tensors), strict=True):
            assert one.tobytes() == two.tobytes() == alone.tobytes()


def test_a_sum_of_zeros_below_zero_is_zero() -> None:
    """Parts begin with -0, which changes nothing, sums with 0."""
    g = ops.Graph()
    g.output(ops.sum(g.input("x", ["T", 768]), [0]))
    fn = tw.compile(g, {"T": (1, 512)})
    for rows in (1, 64, 65, 512):
        assert not np.signbit(fn(np.full((rows, 768), -0.0, np.float32))).any()
