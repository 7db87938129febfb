"""Fused attention: what is fused and why not, and the family host_attention against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from attention_graphs import SHAPES, check, compiled, fused, masks, reference, run
from kernel_harness import guarded, load

import tilewright.compiler.ops as ops
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.analysis.contraction import sums_products
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.fuse import REGION, Fuse
from tilewright.passes.dispatch_creation.fuse_attention import fuse_attentions
from tilewright.passes.mlir import functions, ir, operations
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.host.host_attention import HostAttentionConfig, space, why_invalid
from tilewright.passes.spaces.host.host_attention_heuristics import default
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.shape import Expr

WHOLE = "host_attention{keys=144 online=false}"
SHARED = "host_attention{keys=144 online=false mc=8}"
ONLINE = "host_attention{keys=48 mc=16}"
NARROW = "host_attention{mr=6 nv=2 lanes=8 keys=32 mc=12 exact-tails=true}"
DIRECT = "host_attention{mr=4 nv=3 keys=48 mc=4 direct=true}"
AVX512 = HostLimits(64, 32, 48 * 1024, 1024 * 1024)
AVX2 = HostLimits(32, 16)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "config"), [(k, c) for k in ("full", "causal", "mask", "row_mask") for c in (WHOLE, ONLINE)]
                         + [("causal", NARROW), ("causal", SHARED), ("mask", SHARED), ("causal", DIRECT), ("row_mask", DIRECT)])
def test_shapes_and_masks(kind: str, config: str) -> None:
    for shape in SHAPES:
        check(kind, config, *shape)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", [WHOLE, ONLINE])
@pytest.mark.parametrize(("depth", "columns"), [(64, 64), (80, 5), (5, 80), (2, 3), (33, 17)])
def test_head_sizes(depth: int, columns: int, config: str) -> None:
    for shape in ((1, 11, 53), (2, 4, 17)):
        check("full", config, *shape, 1, depth, columns)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", [WHOLE, ONLINE, DIRECT])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_small_floats(dtype: str, config: str) -> None:
    for shape in ((1, 11, 53), (2, 1, 17)):
        check("causal", config, *shape, 2, 40, 24, dtype)


@pytest.mark.parametrize("config", [WHOLE, ONLINE])
def test_views_of_merged_projections(config: str) -> None:
    w = fused("merged")
    rng = np.random.default_rng(3)
    for batch, length in ((1, 5), (2, 37)):
        x = rng.standard_normal((batch, length, 3, 2, 16)).astype(np.float32)
        out = guarded((batch, length, 2, 16), np.dtype(np.float32))
        dims = {e.symbol: n for e, n in zip(w.outputs[0].dims, out.shape, strict=True) if e.symbol}
        load(w.ir, config)([x[:, :, i] for i in range(3)], dims, [out], 2)
        q, k, v = (x[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        np.testing.assert_allclose(out, reference(q, k, v, False, None).transpose(0, 2, 1, 3), atol=2e-6)


@pytest.mark.parametrize("config", [ONLINE, NARROW, SHARED])
def test_bits_do_not_depend_on_parts(config: str) -> None:
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((2, 2, 45, 16)).astype(np.float32) for _ in range(3)]
    whole = run(fused("causal"), config, arrays)
    np.testing.assert_array_equal(run(fused("causal"), config, arrays, parts=5), whole)


@pytest.mark.parametrize("config", [WHOLE, ONLINE])
def test_nan_and_infinity_stay_in_their_rows(config: str) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 2, 60, 16)).astype(np.float32) for _ in range(3))
    q[0, 0, 3] = np.nan
    q[0, 1, 7] = np.inf
    got = run(fused("full"), config, [q, k, v]).reshape(1, 2, 60, 16)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference(q, k, v, False, None)))
    assert np.isnan(got[0, 0, 3]).all() and not np.isnan(got[0, 0, 4:]).any()


@pytest.mark.parametrize("config", [WHOLE, ONLINE])
@pytest.mark.parametrize("kind", ["seen", "added"])
def test_masks_of_run_time(kind: str, config: str) -> None:
    """Also where a row sees no key: NaN by -inf, the mean of all values by the least float."""
    rng = np.random.default_rng(8)
    for shape in ((5, 7), (40, 130)):
        q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (shape[0], shape[1], shape[1]))
        for name, seen in masks(*shape).items():
            for low in (-np.inf,) if kind == "seen" else (-np.inf, np.finfo(np.float32).min):
                added = np.where(seen, np.float32(0), np.float32(low))
                got = run(fused(kind), config, [q, k, seen if kind == "seen" else added, v])
                scores = (np.einsum("bhmk,bhnk->bhmn", q, k) * np.float32(0.25) + added).astype(np.float64)
                with np.errstate(invalid="ignore"):
                    weights = np.exp(scores - scores.max(-1, keepdims=True))
                    want = (weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)).reshape(got.shape)
                np.testing.assert_allclose(got, want, atol=2e-6, err_msg=f"{name} {low} {shape}")


@pytest.mark.parametrize("config", [WHOLE, ONLINE])
@pytest.mark.parametrize("kind", ["seen", "added"])
def test_keys_that_nobody_sees_are_skipped(kind: str, config: str) -> None:
    """Not even a NaN among their values counts; one in the mask does, since it hides nothing."""
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (24, 140, 140))
    seen = np.zeros((24, 140), bool)
    seen[:, 50:70] = True
    v[:, :, :32], v[:, :, 96:] = np.nan, np.nan
    added = np.where(seen, np.float32(0), np.float32(-np.inf))
    assert np.isfinite(run(fused(kind), config, [q, k, seen if kind == "seen" else added, v])).all()
    if kind == "added":
        added[:, 5] = np.nan
        assert np.isnan(run(fused(kind), config, [q, k, added, v])).all()


def test_causal_code_skips_keys_and_compares_less() -> None:
    """A query sees nothing of the values behind it: not even a NaN among them, where no query of its block sees them."""
    w = fused("causal")
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 96, 16)).astype(np.float32) for _ in range(3))
    v[:, :, 48:] = np.nan
    for config in (WHOLE, SHARED, ONLINE):
        got = run(w, config, [q, k, v])
        assert not np.isnan(got[:, :48]).any()
        assert np.isnan(got[:, 48:]).all()


def test_large_scores_and_late_keys() -> None:
    """A block whose keys are all masked comes before the ones that count; the maximum rises from block to block."""
    w = fused("row_mask")
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (9, 130, 130))
    mask = np.full((9, 130), -np.inf, np.float32)
    for row in range(9):
        mask[row, 60 + 7 * row :] = np.linspace(0, 300, 70 - 7 * row)
    got = run(w, ONLINE, [q, k, mask, v])
    want = reference(q, k, v, False, mask).reshape(got.shape)
    np.testing.assert_allclose(got, want, atol=5e-6)


def refused(build: ops.Graph) -> set[str]:
    ingested = ingest(build, dict.fromkeys(build.dims, (0, 4096)))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        passes = graph_passes()
        PassPipeline([*recover_passes(), *passes[: [p.name for p in passes].index("fuse")], Fuse()]).run(module)
        (fn,) = functions(module)
        before = str(fn)
        rules = {r.rule for r in fuse_attentions(fn)}
        assert str(next(functions(module))) == before
        return rules


def test_a_mask_that_the_next_layer_has_too_is_made_once() -> None:
    """Where the partition put it into the region of the first layer's scores, it is taken out again."""
    g = ops.Graph()
    q, k, v = (g.input(n, ["B", 2, "S", 16]) for n in "qkv")
    mask = ops.where(g.input("seen", ["B", 1, 1, "S"], "i1"), g.input("far", [2, "S", "S"]), -1e9)
    for _ in range(2):
        q = ops.batch_matmul(ops.softmax(ops.add(ops.batch_matmul(q, k, transpose_b=True), mask)), v)
    g.output(q)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(ingest(g, dict.fromkeys(g.dims, (0, 4096))).text)
        passes = graph_passes()
        at = next(i for i, p in enumerate(passes) if p.name == "fuse-attention")
        PassPipeline([*recover_passes(), *passes[:at]]).run(module)
        (fn,) = functions(module)
        marked = [op for op in operations(fn.regions[0].blocks[0]) if REGION in op.attributes]
        made = next(op for op in marked if "arith.select" in str(op))
        made.attributes[REGION] = next(op for op in marked if sums_products(op)).attributes[REGION]
        assert fuse_attentions(fn) == []
        regions = [op.attributes[REGION] for op in operations(fn.regions[0].blocks[0]) if REGION in op.attributes]
    assert len(set(regions)) == 3


def test_heads_that_are_repeated() -> None:
    """Keys repeated for several heads, as models write it, are read once, also by one query."""
    for size in (3, 1):
        g = ops.Graph()
        q, k, v = (g.input(n, ["B", heads, s, 8]) for n, heads, s in (("q", 4, size), ("k", 2, "T"), ("v", 2, "T")))
        wide = [q.dims[0], 2, 2, *k.dims[2:]]
        k, v = (ops.reshape(ops.broadcast_to(ops.unsqueeze(x, 2), wide), [q.dims[0], 4, *k.dims[2:]]) for x in (k, v))
        g.output(ops.attention(q, k, v))
        (w,) = compiled(g)
        assert w.kind is Kind.ATTENTION and w.size("m") == Expr.of(2 * size)


def test_bias_over_queries_and_keys_in_one_axis() -> None:
    """It joins scores and softmax; what others read of the region that makes it stays outside."""
    g = ops.Graph()
    q, k, v = (g.input(n, ["B", 4, 6, 8]) for n in "qkv")
    bias = ops.add(g.input("bias", [4, 36]), 1.0)
    scores = ops.reshape(ops.batch_matmul(q, k, transpose_b=True), [q.dims[0], 4, 36])
    weights = ops.softmax(ops.reshape(ops.add(ops.multiply(scores, 0.5), bias), [q.dims[0], 4, 6, 6]))
    g.output(ops.batch_matmul(weights, v))
    g.output(ops.exp(bias))
    assert sorted(w.kind.value for w in compiled(g)) == ["attention", "pointwise"]


def test_refusals_leave_the_function() -> None:
    g = ops.Graph()
    q, k, v = (g.input(n, [3, "S", 8]) for n in "qkv")
    weights = ops.softmax(ops.batch_matmul(q, k, transpose_b=True))
    g.output(ops.batch_matmul(weights, v))
    g.output(weights)
    assert refused(g) == {"only-inside"}


@pytest.mark.parametrize(("dtype", "columns", "rule"), [("f64", 8, "f32-sums"), ("f32", "E", "static-columns")])
def test_what_the_family_does_not_take_stays_apart(dtype: str, columns: int | str, rule: str) -> None:
    g = ops.Graph()
    q, k = (g.input(n, [3, "S", 8], dtype) for n in "qk")
    v = g.input("v", [3, "S", columns], dtype)
    g.output(ops.batch_matmul(ops.softmax(ops.batch_matmul(q, k, transpose_b=True)), v))
    assert refused(g) == {rule}
    assert {w.kind for w in compiled(g)} == {Kind.CONTRACTION, Kind.ROWS}


def test_other_normalisations_are_no_softmax() -> None:
    g = ops.Graph()
    q, k, v = (g.input(n, [3, "S", 8]) for n in "qkv")
    scores = ops.batch_matmul(q, k, transpose_b=True)
    weights = ops.exp(ops.subtract(scores, ops.max(scores, axis=2, keepdims=True)))
    total = ops.sum(ops.multiply(weights, weights), axis=2, keepdims=True)
    g.output(ops.batch_matmul(ops.divide(weights, total), v))
    assert refused(g) == {"softmax"}


def test_loops_and_work() -> None:
    w = fused("full")
    assert [loop.role for loop in w.loops] == ["b", "m", "n", "k", "e"]
    assert w.size("k") == Expr.of(16) and w.size("e") == Expr.of(16)


@pytest.mark.parametrize("limits", [AVX512, AVX2])
def test_defaults_are_legal_and_in_the_space(limits: HostLimits) -> None:
    w = fused("full")
    configs, _ = default(w, limits)
    assert [why_invalid(c, w, limits) for c in configs] == [None] * len(configs)
    assert {c.online for c in configs} == {False, True}
    assert sum(1 for _ in space(w, limits)) > 100


def test_a_padded_convolution_behind_a_softmax_is_no_attention() -> None:
    g = ops.Graph()
    a, b, w = g.input("a", ["B", 10, 8]), g.input("b", ["B", 8, "T"]), g.input("w", [8, 1, 2, 1])
    images = ops.softmax(ops.reshape(ops.matmul(a, b), ["B", 2, 5, "T"]), 1)
    g.output(ops.conv2d(images, w, padding=1, groups=2))
    assert Kind.ATTENTION not in {w.kind for w in compiled(g)}


@pytest.mark.parametrize("limits", [AVX512, AVX2])
def test_few_queries_read_keys_in_place(limits: HostLimits) -> None:
    g = ops.Graph()
    q, k, v = (g.input(n, ["B", heads, size, 64]) for n, heads, size in (("q", 6, 1), ("k", 2, "T"), ("v", 2, "T")))
    g.output(ops.attention(q, k, v))
    (w,) = compiled(g)
    (config,), _ = default(w, limits)
    assert config.direct and config.mr == config.mc == 3 and why_invalid(config, w, limits) is None
    configs, tree = default(fused("full"), limits)
    few = [configs[select(tree, {"d0": 1, "d1": rows, "d2": 900}).kernel].direct for rows in (1, 4, 5)]
    assert few == [True, True, False] and not config.in_order(w, limits).direct


@pytest.mark.parametrize(("config", "rule"), [
    (HostAttentionConfig(lanes=3), "lanes-power-of-two"), (HostAttentionConfig(lanes=32), "lanes-fit"),
    (HostAttentionConfig(mr=12), "register-budget"), (HostAttentionConfig(keys=100), "keys-whole-panels"),
    (HostAttentionConfig(keys=480000), "scores-fit"), (HostAttentionConfig(mc=12), "chunk-whole-blocks"),
    (HostAttentionConfig(direct=True), "direct-few-queries"), (HostAttentionConfig(mc=0), "chunk-bounded"),
    (HostAttentionConfig(mr=0), "block-positive"),
])
def test_rules(config: HostAttentionConfig, rule: str) -> None:
    assert (why_invalid(config, fused("full"), AVX512) or "").startswith(rule)
