"""Weights out of pools of vectors: they stay indices up to the kernel, and the family host_pools multiplies by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import at_edge, guarded, load
from matmul_workloads import AVX2

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.constants.bind_constants import bind_constants
from tilewright.compiler.constants.stored_constants import packed
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outlined import workloads_of
from tilewright.passes.dispatch_creation.pack_constants import PackConstants
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.family_registry import config_text, family_of
from tilewright.passes.spaces.host import host_pools
from tilewright.passes.spaces.host.host_pools import HostPoolsConfig, PoolFormat, space, why_invalid
from tilewright.passes.spaces.host.host_pools_cost import extents, kernel_cost
from tilewright.passes.spaces.host.host_pools_rows import Choice, Sizes
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.limits import HostLimits

pytestmark = pytest.mark.usefixtures("built_here")

RNG = np.random.default_rng(5)
VBMI = replace(AVX2, vector_bytes=64, vector_registers=32, byte_products=4, byte_permutes=True)
needs_permutes = pytest.mark.skipif("avx512vbmi" not in cpu_features(), reason="the CPU has no AVX-512 VBMI")


def model(n: int, k: int, entries: int, books: int = 1, element: str = "f4",
          scale: np.ndarray | float = 1.0) -> tuple[ops.Graph, np.ndarray, list[np.ndarray]]:
    """x [M, k] @ W^T + bias; the weight [n, k] in float64; indices, pools and the scale where it is an array."""
    g = ops.Graph()
    x = g.input("x", ["M", k])
    index = [RNG.integers(0, entries, (n, k // 8), dtype=np.uint8) for _ in range(books)]
    pools = [(RNG.standard_normal((entries, 8)) * 40).astype(element) for _ in range(books)]
    given = [g.constant(a) for a in (*index, *pools, *([scale] if isinstance(scale, np.ndarray) else []))]
    w = ops.decode_pool(given[:books], given[books : 2 * books], given[-1] if isinstance(scale, np.ndarray) else scale)
    g.output(ops.dense(x, w, g.constant(np.arange(n, dtype=np.float32)), transposed=True))
    weight = sum(p.astype(np.float64)[i].reshape(n, k) for p, i in zip(pools, index, strict=True))
    return g, weight * (scale[:, None] if isinstance(scale, np.ndarray) else scale), [*index, *pools]


def workload(g: ops.Graph) -> Workload:
    bound, _ = bind_constants(ingest(g.module_text(), {"M": (0, 99)}), g.constants)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(bound.text)
        PassPipeline([*recover_passes(), *graph_passes(), PackConstants(32, 16)]).run(module)
        return replace(next(iter(workloads_of(module).values())), name="pools")


def check(fn: tw.CompiledFunction, weight: np.ndarray, rows: tuple[int, ...]) -> None:
    """Against float64, and each row alone gives the same bits."""
    x = RNG.standard_normal((max(rows), weight.shape[1])).astype(np.float32)
    bias, alone = np.arange(len(weight)), np.concatenate([fn(x[i : i + 1]) for i in range(len(x))])
    for m in rows:
        got, part = fn(x[:m]), x[:m].astype(np.float64)
        room = np.abs(part) @ np.abs(weight).T + bias + 1e-30
        assert (np.abs(got - part @ weight.T - bias) / room).max(initial=0) < 2e-6
        assert got.tobytes() == alone[:m].tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [
    (100, 72, 16), (37, 40, 256, 2, "f2"), (7, 8, 5, 1, "i1", np.linspace(0.5, 2, 7, dtype=np.float32)),
    (64, 136, 64, 1, "i1", 0.25),
])
@pytest.mark.parametrize("target", [pytest.param("host", marks=needs_permutes), "host:x86-64-v3"])
def test_products_of_any_number_of_rows(case: tuple[int, int, int], target: str) -> None:
    g, weight, _ = model(*case)
    fn = tw.compile(g, {"M": (0, 99)}, target=target)
    assert "host_pools" in str(fn.explain(M=3))
    assert ("permute" in str(fn.explain(M=1))) == (target == "host" and len(weight) > 8)
    check(fn, weight, (0, 1, 3, 4, 7, 8, 17))


@pytest.mark.parametrize("outputs", [24, 37])
def test_other_families_serve_what_is_not_built(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a busy machine built no kernel in time: panels of indices may be half vectors of AVX-512."""
    monkeypatch.setattr(host_pools, "takes", lambda *_: "not in this test")
    g, weight, _ = model(outputs, 72, 16)
    fn = tw.compile(g, {"M": (1, 40)})
    assert "host_matmul" in str(fn.explain(M=3))
    x = RNG.standard_normal((19, 72)).astype(np.float32)
    for m in (1, 5, 19):
        room = np.abs(x[:m]) @ np.abs(weight).T + outputs
        assert (np.abs(fn(x[:m]) - x[:m].astype(np.float64) @ weight.T - np.arange(outputs)) / room).max() < 2e-6


CONFIGS = (HostPoolsConfig(1, 2, 32, 1), HostPoolsConfig(4, 1, 64, 4), HostPoolsConfig(8, 64, 256, 16),
           HostPoolsConfig(1, 32, 96, 0))
PERMUTED = (HostPoolsConfig(1, 2, 64, 1, permute=True), HostPoolsConfig(1, 7, 128, 0, permute=True))


@pytest.mark.parametrize("configs,limits,target", [(CONFIGS, AVX2, "host:x86-64-v3"),
                                                   pytest.param(PERMUTED, VBMI, "host", marks=needs_permutes)])
def test_kernels_keep_to_their_operands_for_every_configuration(configs: tuple[HostPoolsConfig, ...], limits: HostLimits,
                                                                target: str) -> None:
    g, weight, (index, pool) = model(77, 88, 20)
    found = workload(g)
    assert PoolFormat.of(found) == PoolFormat(20, 8, 1, "f32")
    for config in configs:
        assert why_invalid(config, found, limits) is None
        kernel = load(found.ir, config_text(config), target)
        for m in (1, 5, 19):
            x = RNG.standard_normal((m, 88)).astype(np.float32)
            given = []
            for o in found.inputs:
                if o.codes:
                    given.append(at_edge(packed(index, (o.panel, 1, 0, 1))))
                elif len(o.dims) == 1:
                    given.append(at_edge(np.arange(77, dtype=np.float32)))
                else:
                    given.append(at_edge(pool if o.constant else x))
            out = [guarded((m, 77), np.dtype(np.float32)) for _ in range(2)]
            for parts, result in zip((1, 3), out, strict=True):
                kernel(given, {found.dims[0]: m}, [result], parts)
            want = x.astype(np.float64) @ weight.T + np.arange(77)
            assert np.allclose(out[0], want, rtol=1e-4, atol=1e-3) and out[0].tobytes() == out[1].tobytes()


def test_configurations_that_are_no_kernel_say_why() -> None:
    found = workload(model(64, 64, 64)[0])
    assert why_invalid(HostPoolsConfig(3), found, AVX2).startswith("blocks: ")
    assert why_invalid(HostPoolsConfig(columns=40), found, AVX2).startswith("whole-panels: ")
    assert why_invalid(HostPoolsConfig(8, 1024), found, AVX2).startswith("table-in-cache: ")
    config = PERMUTED[0]
    for bad, limits in ((config, AVX2), (replace(config, columns=96), VBMI), (replace(config, shuffle=True), VBMI)):
        assert why_invalid(bad, found, limits).startswith("permute: ")
    assert any(c.permute for c in space(found, VBMI)) and not any(c.permute for c in space(found, AVX2))
    every = list(space(found, AVX2))
    assert {c.rows for c in every} == {1, 4, 8} and set(kernel_cost(every[0], found, AVX2).tiles) <= set(extents(found))
    odd = workload(model(64, 64, 1)[0])
    assert family_of("host_pools").why_not(odd, AVX2) is not None


def test_convolutions_of_either_layout() -> None:
    torch = pytest.importorskip("torch")
    g, wanted = ops.Graph(), []
    x = RNG.standard_normal((2, 16, 9, 7)).astype(np.float32)
    pool = RNG.standard_normal((32, 8)).astype(np.float32)
    shared = g.constant(pool)
    for layout, shape, window in (("nchw", (24, 3, 3, 2), {"padding": 1}), ("nhwc", (40, 1, 1, 2), {"stride": 2}),
                                  ("nhwc", (8, 3, 2, 2), {"dilation": 2})):
        index = RNG.integers(0, 32, shape, dtype=np.uint8)
        last = layout == "nhwc"
        image = g.input(f"x{len(wanted)}", ["B", 9, 7, 16] if last else ["B", 16, 9, 7])
        w = ops.transpose(ops.decode_pool(g.constant(index), shared), (1, 2, 3, 0) if last else (0, 3, 1, 2))
        g.output(ops.conv2d(image, w, layout=layout, **window))
        weight = torch.from_numpy(pool[index].reshape(*shape[:3], 16).transpose(0, 3, 1, 2).astype(np.float64))
        want = torch.nn.functional.conv2d(torch.from_numpy(x.astype(np.float64)), weight, **window).numpy()
        wanted.append(want.transpose(0, 2, 3, 1) if last else want)
    fn = tw.compile(g, {"B": (1, 4)})
    assert str(fn.explain(B=2)).count("host_pools") >= 3
    for got, want in zip(fn(x, *[x.transpose(0, 2, 3, 1).copy()] * 2), wanted, strict=True):
        assert np.allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_pool_that_is_an_argument_is_decoded(tmp_path: Path) -> None:
    g = ops.Graph()
    index, pool = g.input("index", [9, 2], "ui8"), g.input("pool", [11, 8])
    g.output(ops.matmul(g.input("x", [3, 16]), ops.decode_pool(index, pool), transpose_b=True))
    fn = tw.compile(g)
    named, values = RNG.integers(0, 11, (9, 2), dtype=np.uint8), RNG.standard_normal((11, 8)).astype(np.float32)
    x = RNG.standard_normal((3, 16)).astype(np.float32)
    given = {"index": named, "pool": values, "x": x}
    assert np.allclose(fn(**given), x @ values[named].reshape(9, 16).T, rtol=1e-4, atol=1e-4)


def test_bad_pools_are_named() -> None:
    g = ops.Graph()
    index, pool = g.constant(np.full((4, 2), 9, np.uint8)), g.constant(np.zeros((8, 8), np.float32))
    for given, error, message in (
        ((index, pool), OptionError, "index 9 of a pool of 8"),
        (([index], [pool, pool]), OptionError, "1 tensors of indices and 2"),
        ((index, g.input("p", [300, 8])), ShapeError, "1 to 256 entries"), ((pool, pool), DTypeError, "indices of f32"),
        ((index, g.input("q", [16, 8], "i32")), DTypeError, "a pool of i32"),
    ):
        with pytest.raises(error, match=message):
            ops.decode_pool(*given)
    late = ops.Graph()
    w = ops.decode_pool(late.input("index", [64, 2], "ui8"), late.input("pool", [8, 8]))
    late.output(ops.matmul(late.input("x", [3, 16]), w, transpose_b=True))
    with pytest.raises(OptionError, match="vector 9 of a pool of 8"):
        tw.compile(late, constants={"index": np.full((64, 2), 9, np.uint8), "pool": np.zeros((8, 8), np.float32)})


def test_threads_part_columns_of_one_row_and_rows_of_several() -> None:
    """Of two threads each makes the tables of its rows for all columns, where there are as many blocks of rows."""
    taken = {config.columns: 10.0 + config.columns for config in (HostPoolsConfig(columns=512), HostPoolsConfig(columns=1024))}
    kernels = [HostPoolsConfig(columns=columns) for columns in taken]
    choice = Choice(kernels, lambda config: taken[config.columns], Sizes(8, 1024, 2))
    assert [kernels[choice.best(rows, 0)].columns for rows in (1, 2, 3, 4)] == [512, 1024, 512, 1024]
    alone = Choice(kernels, lambda config: taken[config.columns], Sizes(8, 1024, 1))
    assert {kernels[alone.best(rows, 0)].columns for rows in (1, 2, 3, 4)} == {1024}
