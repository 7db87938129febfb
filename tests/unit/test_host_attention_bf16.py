"""The family host_attention on bf16: in words of two (AVX-512 BF16) and by tiles (AMX), against NumPy in float64."""

from __future__ import annotations

import platform

import ml_dtypes
import numpy as np
import pytest
from attention_graphs import SHAPES, TOLERANCE, check, fused, masks, reference, run
from kernel_harness import load

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_attention import HostAttentionConfig, space, why_invalid
from tilewright.passes.spaces.host.host_attention_heuristics import default
from tilewright.runtime.errors import BuildError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select

BF16 = np.dtype(ml_dtypes.bfloat16)
PLAIN = HostLimits(64, 32, 48 * 1024, 1024 * 1024)
PAIRED = HostLimits(64, 32, 48 * 1024, 1024 * 1024, bf16_pairs=True)
TILED = HostLimits(64, 32, 48 * 1024, 2048 * 1024, bf16_pairs=True, bf16_tiles=True)
needs_tiles = pytest.mark.skipif(not {"amx-tile", "amx-bf16"} <= cpu_features() or not may_use_tiles(),
                                 reason="the CPU has no tiles of bf16, or the system keeps them back")
needs_wide = pytest.mark.skipif("avx512bw" not in cpu_features(), reason="the CPU has no AVX-512")
needs_pairs = pytest.mark.skipif("avx512bf16" not in cpu_features(), reason="the CPU has no AVX-512 BF16")
TILES, LOW_TILES, TILES_ONLINE, HIGH_ONLINE = (
    pytest.param(f"host_attention{{{options} pairs=true tiles=true}}", marks=needs_tiles)
    for options in ("mr=32 nv=2 keys=160 online=false mc=32", "mr=16 nv=3 keys=144 online=false mc=0", "mr=16 nv=4 keys=64 mc=32",
                    "mr=32 nv=1 keys=48 mc=32"))
PAIRS, PAIRS_ONLINE, DIRECT, NARROW = (
    pytest.param(f"host_attention{{{options} pairs=true}}", marks=needs_pairs)
    for options in ("keys=144 online=false", "keys=48 mc=16", "mr=4 nv=3 keys=48 mc=4 direct=true",
                    "mr=6 nv=2 lanes=8 keys=32 mc=12 exact-tails=true"))
BY_TILES = [TILES, LOW_TILES, TILES_ONLINE, HIGH_ONLINE]
EVERY = [*BY_TILES, PAIRS, PAIRS_ONLINE, DIRECT, NARROW]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", EVERY)
@pytest.mark.parametrize("kind", ["full", "causal", "mask", "row_mask"])
def test_shapes_and_masks(kind: str, config: str) -> None:
    for shape in (*SHAPES, (1, 35, 67), (1, 33, 140)):
        check(kind, config, *shape, dtype="bf16")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("config", EVERY)
@pytest.mark.parametrize(("depth", "columns"), [(64, 64), (80, 5), (5, 80), (2, 3), (33, 17), (40, 40), (96, 128), (256, 256)])
def test_head_sizes(depth: int, columns: int, config: str) -> None:
    for shape in ((1, 11, 53), (2, 4, 17), (1, 37, 33)):
        check("full", config, *shape, 1, depth, columns, "bf16")


@pytest.mark.parametrize("config", [TILES_ONLINE, HIGH_ONLINE, LOW_TILES, NARROW])
def test_bits_do_not_depend_on_parts(config: str) -> None:
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((2, 2, 77, 16)).astype(BF16) for _ in range(3)]
    for kind in ("causal", "full"):
        w = fused(kind, dtype="bf16")
        whole = run(w, config, arrays)
        assert run(w, config, arrays, parts=5).tobytes() == whole.tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", EVERY)
def test_nan_and_infinity_stay_in_their_rows(config: str) -> None:
    """Those of queries; a key that is none makes every row none, a value every row of its column."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 2, 60, 16)).astype(BF16) for _ in range(3))
    q[0, 0, 3] = np.nan
    q[0, 1, 7] = np.inf
    v[0, 1, 59, 5] = np.nan
    got = run(fused("full", dtype="bf16"), config, [q, k, v]).reshape(1, 2, 60, 16)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference(q, k, v, False, None)))
    k[0, 0, 59, 15] = np.nan
    assert np.isnan(run(fused("full", dtype="bf16"), config, [q, k, v]).reshape(1, 2, 60, 16)[0, 0]).all()


@pytest.mark.parametrize("config", BY_TILES)
def test_values_that_nobody_sees_do_not_count(config: str) -> None:
    """Of causal attention, from 16 keys behind the last one that a block of queries sees on."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 96, 16)).astype(BF16) for _ in range(3))
    v[:, :, 48:] = np.nan
    got = run(fused("causal", dtype="bf16"), config, [q, k, v]).reshape(1, 2, 96, 16).astype(np.float32)
    height = 32 if "mr=32" in config else 16
    assert not np.isnan(got[:, :, : 48 // height * height]).any() and np.isnan(got[:, :, 48:]).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", EVERY)
@pytest.mark.parametrize("kind", ["seen", "added"])
def test_masks_of_run_time(kind: str, config: str) -> None:
    """Also where a row sees no key."""
    rng = np.random.default_rng(8)
    for shape in ((5, 7), (40, 130)):
        q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(BF16) for n in (shape[0], shape[1], shape[1]))
        for name, seen in masks(*shape).items():
            added = np.where(seen, np.float32(0), np.float32(-np.inf))
            got = run(fused(kind, dtype="bf16"), config, [q, k, seen if kind == "seen" else added.astype(BF16), v])
            want = reference(q, k, v, False, added).reshape(got.shape)
            np.testing.assert_allclose(got.astype(np.float64), want, atol=TOLERANCE["bf16"], err_msg=f"{name} {shape}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", EVERY)
def test_large_scores_and_late_keys(config: str) -> None:
    """The maximum rises from block to block of keys."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(BF16) for n in (9, 130, 130))
    mask = np.full((9, 130), -np.inf, np.float32)
    for row in range(9):
        mask[row, 60 + 7 * row :] = np.linspace(0, 300, 70 - 7 * row)
    got = run(fused("row_mask", dtype="bf16"), config, [q, k, mask, v])
    want = reference(q, k, v, False, mask).reshape(got.shape)
    np.testing.assert_allclose(got.astype(np.float64), want, atol=TOLERANCE["bf16"])


@pytest.mark.usefixtures("built_here")
@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys(causal: bool) -> None:
    """As compiled, with as many queries as keys and with one; keys end where lengths say, heads lie inside of the sequence."""
    g = ops.Graph()
    lengths = g.input("lengths", ["B"], "i64")
    q, k, v = (ops.transpose(g.input(n, ["B", s, h, 40], "bf16"), (0, 2, 1, 3)) for n, s, h in
               (("q", "S", 6), ("k", "T", 2), ("v", "T", 2)))
    seen = ops.compare(ops.iota(g, ["T"]), ops.reshape(lengths, [lengths.dims[0], 1, 1, 1]), "lt")
    g.output(ops.attention(q, k, v, causal=causal, mask=seen))
    fn = tw.compile(g, {"B": (1, 4), "S": (1, 200), "T": (1, 200)})
    assert "host_attention" in {kernel.family for table in fn.program.tables for kernel in table.kernels}
    rng = np.random.default_rng(2)
    for queries, keys in ((1, 90), (5, 5), (70, 70), (37, 150)):
        arrays = [rng.standard_normal((2, n, h, 40)).astype(BF16) for n, h in ((queries, 6), (keys, 2), (keys, 2))]
        ends = np.array([keys, (keys + 1) // 2])
        a, b, c = (np.repeat(x.astype(np.float64).transpose(0, 2, 1, 3), 6 // x.shape[2], 1) for x in arrays)
        scores = a @ b.swapaxes(2, 3) / np.sqrt(40)
        key, query = np.arange(keys), np.arange(queries)[:, None]
        scores = np.where(key < ends[:, None, None, None], scores, -np.inf)
        scores = np.where((key <= query + keys - queries) | (not causal), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ c
        for threads in (1, 2):
            got = fn(ends, *arrays, threads=threads).astype(np.float64)
            np.testing.assert_allclose(got, want, atol=TOLERANCE["bf16"])


@pytest.mark.sampled(2)
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86-64-v3")
@pytest.mark.parametrize("target", ["host:x86-64-v3", pytest.param("host:x86-64-v4", marks=needs_wide)])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_targets_that_multiply_f32_alone(dtype: str, target: str) -> None:
    """What the defaults of such a target are; few queries read keys and values in place."""
    w, wide = fused("causal", 2, 40, 24, dtype), target.endswith("4")
    configs, _ = default(w, HostLimits(64, 32) if wide else HostLimits(32, 16))
    assert {c.direct for c in configs} == {False, True} and not any(c.pairs for c in configs)
    for config in configs:
        for shape in ((1, 11, 53), (2, 1, 17), (1, 37, 37)):
            check("causal", config_text(config), *shape, 2, 40, 24, dtype, target)


@pytest.mark.parametrize("target", ["host:x86-64-v3", "host:x86-64-v4"])
@pytest.mark.parametrize("options", ["", "mr=16 nv=2 keys=64 mc=16 tiles=true "])
def test_targets_without_the_instructions_are_told_so(options: str, target: str) -> None:
    with pytest.raises(BuildError, match=r"avx512bf16|amx"):
        load(fused("full", dtype="bf16").ir, f"host_attention{{{options or 'lanes=8 '}pairs=true}}", target)


@pytest.mark.parametrize("limits", [PLAIN, PAIRED, TILED])
def test_defaults_are_legal(limits: HostLimits) -> None:
    w = fused("full", dtype="bf16")
    configs, tree = default(w, limits)
    assert [why_invalid(c, w, limits) for c in configs] == [None] * len(configs)
    assert all(c.pairs is limits.bf16_pairs for c in configs)
    for rows, keys in ((40, 40), (900, 900)):
        assert configs[select(tree, {"d0": 1, "d1": rows, "d2": keys}).kernel].tiles is limits.bf16_tiles
    assert not any(c.tiles for c in configs if c.direct) and not any(c.in_order(w, limits).tiles for c in configs)
    assert all(why_invalid(c.in_order(w, limits), w, limits) is None for c in configs)
    assert {c.tiles for c in space(w, limits)} == ({False, True} if limits.bf16_tiles else {False})
    assert not any(c.pairs for c in space(fused("full"), limits))


@pytest.mark.parametrize(("config", "limits", "rule"), [
    (HostAttentionConfig(pairs=True), PLAIN, "words"),
    (HostAttentionConfig(mr=16, pairs=True, tiles=True), PAIRED, "tiles:"),
    (HostAttentionConfig(mr=16, tiles=True), TILED, "tiles:"),
    (HostAttentionConfig(pairs=True, tiles=True), TILED, "tiles-fit"),
    (HostAttentionConfig(mr=32, pairs=True, tiles=True), TILED, "tiles-fit"),
    (HostAttentionConfig(mr=16, exact_tails=True, pairs=True, tiles=True), TILED, "tiles-of-copies"),
])
def test_rules(config: HostAttentionConfig, limits: HostLimits, rule: str) -> None:
    assert (why_invalid(config, fused("full", dtype="bf16"), limits) or "").startswith(rule)
