"""Reductions along rows in parts: what becomes one region, what the kernels compute, and whose bits depend on threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.mlir import functions, ir, new_context
from tilewright.passes.partition.graph import Graph
from tilewright.passes.partition.growth import in_order
from tilewright.passes.partition.region_order import RegionOrder
from tilewright.passes.partition.rules import rules_named
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.transforms.split_reductions import SplitReductions

pytestmark = pytest.mark.usefixtures("built_here")

Array = np.ndarray
ROWS = (0, 1, 63, 130)


def layernorm_backward() -> ops.Graph:
    """Gradients of the input, the weight and the bias."""
    g = ops.Graph()
    x, dy, weight = g.input("x", ["T", 80]), g.input("dy", ["T", 80]), g.input("weight", [80])
    mean, scale = g.input("mean", ["T", 1]), g.input("scale", ["T", 1])
    normed, weighted = (x - mean) * scale, dy * weight
    first, second = (ops.mean(v, [1], keepdims=True) for v in (weighted, weighted * normed))
    for result in ((weighted - first - normed * second) * scale, ops.sum(dy * normed, [0]), ops.sum(dy, [0])):
        g.output(result)
    return g


def layernorm_backward_of(x: Array, dy: Array, weight: Array, mean: Array, scale: Array) -> list[Array]:
    normed, weighted = (x - mean) * scale, dy * weight
    first, second = (v.mean(1, keepdims=True) for v in (weighted, weighted * normed))
    return [(weighted - first - normed * second) * scale, (dy * normed).sum(0), dy.sum(0)]


def several() -> ops.Graph:
    """Along rows, over everything, with a map beside it, integers, extremes, and two axes of rows."""
    g = ops.Graph()
    x, n, z = g.input("x", ["T", 40]), g.input("n", ["T", 40], "i32"), g.input("z", ["T", 3, 40])
    shown = ops.exp(x)
    norm = ops.sqrt(ops.sum(x * x, [0, 1]))
    for result in (shown, ops.sum(shown, [0]), x / norm, ops.max(x, [0]), ops.sum(n, [0]), ops.sum(z, [0, 1]), ops.sum(z, [0])):
        g.output(result)
    return g


def several_of(x: Array, n: Array, z: Array) -> list[Array]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return [np.exp(x), np.exp(x).sum(0), x / np.sqrt((x * x).sum()), x.max(0, initial=-np.inf), n.sum(0), z.sum((0, 1)),
                z.sum(0)]


def arrays(fn: tw.CompiledFunction, rows: int) -> list[Array]:
    random = np.random.default_rng(rows)
    shapes = [(a, [rows if d == "T" else int(d) for d in a.dims or ()]) for a in fn.inputs]
    return [random.integers(-9, 9, s).astype(np.int32) if a.dtype.value == "i32" else random.standard_normal(s).astype(np.float32)
            for a, s in shapes]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
@pytest.mark.parametrize(("build", "want"), [(layernorm_backward, layernorm_backward_of), (several, several_of)])
def test_kernels_compute_it_with_the_same_bits_on_any_number_of_threads(
        build: Callable[[], ops.Graph], want: Callable[..., list[Array]], target: str) -> None:
    fn = tw.compile(build(), {"T": (0, 4096)}, target)
    for rows in ROWS:
        given = arrays(fn, rows)
        found = fn(*given)
        for one, two, expected in zip(found, fn(*given, threads=2), want(*(a.astype(np.float64) for a in given)), strict=True):
            assert one.tobytes() == two.tobytes()
            np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-5)
    blocks = {k.config.partition("block=")[2].rstrip("}") for t in fn.program.tables for k in t.kernels}
    assert blocks & {"256", "512"}, "nothing is done in parts of so many rows"
    assert not fn.program.refused


@pytest.mark.parametrize("target", ["host", "host:x86-64-v3"])
def test_rows_read_from_end_to_end_give_the_bits_of_units_of_columns(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread reads whole rows beyond the first cache, two have columns each; the last vector is not full."""
    monkeypatch.setattr("tilewright.passes.spaces.host.host_rows_heuristics.LINE", 0)  # as on a CPU that moves lines so fast
    g = ops.Graph()
    x, dy, n = g.input("x", ["T", 205]), g.input("dy", ["T", 205]), g.input("n", ["T", 301], "i32")
    for result in (ops.sum(x * dy, [0]), ops.sum(dy, [0]), ops.max(n, [0])):
        g.output(result)
    fn = tw.compile(g, {"T": (0, 4096)}, target, options={"threads": 2})
    assert not fn.program.refused
    held = [k for t in fn.program.tables for k in t.kernels if "axis=lane" in k.config and "held" in k.config]
    assert held and all(k.workspace != "0" for k in held)
    for rows in (*ROWS, 192):
        x, dy, n = given = arrays(fn, rows)
        alone = fn(*given, threads=1)
        if rows:
            wanted = (x.astype(np.float64) * dy).sum(0), dy.astype(np.float64).sum(0), n.max(0)
            for one, want in zip(alone, wanted, strict=True):
                np.testing.assert_allclose(one, want, rtol=2e-5, atol=2e-5)
        assert [a.tobytes() for a in alone] == [a.tobytes() for a in fn(*given)]


def test_nan_and_infinities_reach_the_sums_of_their_columns_alone() -> None:
    g = ops.Graph()
    x = g.input("x", ["T", 40])
    g.output(ops.sum(x, [0]))
    g.output(ops.max(x, [0]))
    fn = tw.compile(g, {"T": (0, 4096)})
    x = np.ones((900, 40), np.float32)
    x[700, 3], x[2, 5], x[899, 39] = np.nan, np.inf, -np.inf
    total, most = fn(x)
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(most, x.max(0))


def partition(graph: ops.Graph, most: int = 4096) -> tuple[list[int], list[str]]:
    """Operations of each region, and the rules that refused."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ingest(graph.module_text(), {"T": (0, most)}).text)
        passes = [*recover_passes(), *graph_passes(parts=SplitReductions())]
        before = passes[: next(n for n, p in enumerate(passes) if p.name == "fuse")]
        PassPipeline(before).run(module)
        found = in_order(Graph(next(functions(module))), rules_named())
        return [len(r.ops) for r in found.regions()], [r.rule for r in found.refusals]


def test_gradients_of_a_layernorm_are_one_pass_over_the_rows() -> None:
    regions, _ = partition(layernorm_backward())
    assert len(regions) == 3 and sorted(regions)[:2] == [1, 1], "the pass, and two sums of parts"
    assert len(tw.compile(layernorm_backward(), {"T": (0, 4096)}).program.calls) == 3


def test_a_region_that_needs_the_sum_stays_apart() -> None:
    """x / norm reads x as the sum of squares does; in one region it would wait for itself."""
    g = ops.Graph()
    x = g.input("x", ["T", 40])
    g.output(x / ops.sqrt(ops.sum(x * x, [0, 1])))
    regions, rules = partition(g)
    assert len(regions) == 3 and "no-cycle" in rules


def test_parts_of_other_sizes_stay_apart() -> None:
    """Rows of 40 and of 40 x 3 elements are cut after other numbers of steps."""
    g = ops.Graph()
    z = g.input("z", ["T", 3, 40])
    for axes in ([0, 1], [0]):
        g.output(ops.sum(z, axes))
    _, rules = partition(g)
    assert "same-parts" in rules


def test_few_rows_are_not_cut() -> None:
    g = ops.Graph()
    x = g.input("x", ["T", 40])
    g.output(ops.sum(x, [0]))
    assert len(partition(g, most=8)[0]) == 1


def test_paths_between_regions() -> None:
    order: RegionOrder[str] = RegionOrder()
    for op, producers in (("a", ""), ("b", "a"), ("c", "b"), ("d", "")):
        order.add(op, producers)
    assert order.leads("a", "b") and order.leads("a", "c") and not order.leads("c", "a") and not order.leads("a", "d")
    assert not order.leads_around("a", "b") and order.leads_around("a", "c")
    order.merge("d", "a")
    assert order.leads("d", "c")


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_parts_of_one_step_are_added_once(batch: int) -> None:
    """An element of the first axis has as many elements as a part has at least, so that it is a part by itself."""
    g = ops.Graph()
    x, n = g.input("x", ["B", "T", 64]), g.input("n", ["B", 3, 90, 70], "i32")
    for result in (ops.sum(x), ops.mean(x), ops.max(x), ops.sum(n)):
        g.output(result)
    fn = tw.compile(g, {"B": (1, 16), "T": (1, 1024)})
    random = np.random.default_rng(batch)
    x = random.standard_normal((batch, 30, 64)).astype(np.float32)
    n = random.integers(-9, 9, (batch, 3, 90, 70)).astype(np.int32)
    total, mean, most, whole = fn(x, n)
    np.testing.assert_allclose(total, x.astype(np.float64).sum(), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(), rtol=1e-5, atol=1e-6)
    assert (most, whole) == (x.max(), n.sum())


@pytest.mark.parametrize("columns", [40, 200])
def test_units_of_columns_add_in_the_order_of_units_of_parts(columns: int) -> None:
    """While what is read stays in the second cache a work unit has columns of all parts, beyond it a part."""
    g = ops.Graph()
    x, y = g.input("x", ["T", columns]), g.input("y", ["T", columns])
    g.output(ops.sum(x, [0]))
    g.output(ops.max(x + y, [0]))
    fn = tw.compile(g, {"T": (0, 16384)})
    [table] = [t for t in fn.program.tables if "part" in t.name]
    assert ["axis=lane" in k.config for k in table.kernels].count(True) == 1 and len(table.kernels) == 2
    size = int(table.kernels[0].config.partition("block=")[2].rstrip("}"))
    for rows in (0, 1, size + 1, 2 * size, 16384):
        x, y = (np.random.default_rng(n).standard_normal((rows, columns)).astype(np.float32) for n in range(2))
        total = np.zeros(columns, np.float32)
        for first in range(0, rows, size):
            part = np.full(columns, -0.0, np.float32)
            for row in range(first, min(first + size, rows)):
                part += x[row]
            total += part
        for threads in (1, 2):
            found, most = fn(x, y, threads=threads)
            np.testing.assert_array_equal(found, total)
            np.testing.assert_array_equal(most, (x + y).max(0, initial=-np.inf))


@pytest.mark.parametrize("columns", [3072, 3100])
@pytest.mark.parametrize("donated", [(), ("dy",), ("dy", "x")])
def test_few_long_rows_of_elements_and_their_sums_are_shared_by_columns(columns: int, donated: tuple[str, ...]) -> None:
    """As many rows as are a part for each of two threads; bits are those of a thread alone, which has parts."""
    functions = []
    for threads in (1, 2):
        g = ops.Graph()
        x, dy = g.input("x", ["T", columns]), g.input("dy", ["T", columns])
        made = dy * (1 - ops.tanh(x) * ops.tanh(x))
        for result in (made, x + made, ops.sum(made, [0]), *([] if donated else [ops.max(dy, [0])])):
            g.output(result)
        functions.append(tw.compile(g, {"T": (0, 4096)}, options={"threads": threads}, donate=donated))
    [alone], [shared] = ([t for t in fn.program.tables if "tanh" in t.name] for fn in functions)
    assert ["axis=lane" in k.config for k in (*alone.kernels, *shared.kernels)].count(True) == 1
    size = int(alone.kernels[0].config.partition("block=")[2].rstrip("}"))
    for rows in (0, 1, 2, size, size + 1, 2 * size, 2 * size + 1):
        assert ("axis=lane" in functions[1].explain(T=rows).calls[0].config) == (rows <= 2 * size)
        x, dy = (np.random.default_rng(n).standard_normal((rows, columns)).astype(np.float32) for n in range(2))
        wanted = functions[0](x.copy(), dy.copy())
        for a, b in zip(functions[1](x.copy(), dy.copy()), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(wanted[0], dy * (1 - np.tanh(x) ** 2), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(wanted[1], x + wanted[0])
        np.testing.assert_allclose(wanted[2], wanted[0].sum(0), rtol=1e-4, atol=1e-4)
