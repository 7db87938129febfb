"""Convolutions of whole numbers whose indices become bytes: exact at every window, block, width and tail, by words and tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matmul_workloads import AVX2
from pooled_images import Case, check, workload

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.spaces.host import host_pools
from tilewright.passes.spaces.host.host_pools import DOTTED, TILED, HostPoolsConfig, has_one_zero, space, why_invalid
from tilewright.passes.spaces.host.host_pools_heuristics import default
from tilewright.passes.spaces.host.pool_image import PoolImage
from tilewright.passes.spaces.host.pool_plane import PlaneShape
from tilewright.runtime.host import host_cpu, host_target, required_features
from tilewright.runtime.host.host_cpu import cpu_features, host_limits, machine
from tilewright.runtime.host.tile_permission import may_use_tiles

pytestmark = pytest.mark.usefixtures("built_here")

VNNI = replace(AVX2, vector_bytes=64, vector_registers=32, byte_products=4, byte_permutes=True)
AMX = replace(VNNI, tiles=True)
HERE = host_limits(cpu_features(), machine())
KINDS = [pytest.param(DOTTED, marks=pytest.mark.skipif(HERE.byte_products < 4 or HERE.vector_bytes < 64, reason="no VNNI here")),
         pytest.param(TILED, marks=pytest.mark.skipif(not HERE.tiles, reason="no AMX here"))]
# images, height, width, channels, filters, window, strides, padding, books, entries
CASES = ((2, 9, 7, 24, 40, (3, 3), (1, 1), 1, 1, 64), (1, 16, 16, 16, 33, (3, 3), (2, 2), 1, 2, 17),
         (1, 6, 20, 8, 70, (2, 3), (2, 1), 0, 1, 256), (3, 4, 4, 64, 32, (2, 2), (1, 1), 0, 1, 5),
         (1, 9, 9, 64, 65, (3, 5), (1, 2), 2, 1, 33), (1, 7, 5, 72, 31, (2, 2), (3, 3), 1, 2, 128))
OF_ONE = ((3, 4, 4, 32, 32, (1, 1), (1, 1), 0, 1, 5), (1, 8, 8, 128, 64, (1, 1), (2, 2), 0, 1, 100),
          (1, 5, 11, 8, 97, (5, 1), (1, 1), 2, 1, 60))


def legal(found: object, kind: int, limits: object) -> list[HostPoolsConfig]:
    """Of every block the least and the most rows, steps and columns that are legal."""
    all_ = [c for c in space(found, limits) if c.decoded == kind and c.columns in (32, 64)]  # type: ignore[arg-type]
    of_rows = [[c for c in all_ if c.rows == rows] for rows in sorted({c.rows for c in all_})]
    return [pick(mine, key=lambda c: (c.mc, c.groups, c.columns)) for mine in of_rows for pick in (min, max)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_every_block_is_exact(case: tuple, kind: int) -> None:
    made = Case(*case)
    found = workload(made, 8)
    configs = legal(found, kind, AMX)
    assert configs and {c.rows for c in configs} <= set(host_pools.DECODED_ROWS[kind])
    for number, config in enumerate(configs):
        bits, zero = ((8, 0), (1, 1), (5, 30), (8, 255))[number % 4]
        check(made, found, config, "host", bits, zero)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_and_zero_is_exact(bits: int, kind: int) -> None:
    made = Case(*CASES[0])
    found = workload(made, bits)
    config = legal(found, kind, AMX)[-1]
    for zero in sorted({0, 1, (1 << bits) // 2, (1 << bits) - 1}):
        check(made, found, config, "host", bits, zero)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_model_of_all_widths(kind: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == DOTTED:
        monkeypatch.setattr(host_cpu, "may_use_tiles", lambda: False)
    for case in (CASES[0], CASES[2], *OF_ONE):
        made = Case(*case)
        fn = tw.compile(made.graph(), {"B": (1, 4), "A": tw.Dim(1, 8)}, options={"threads": threads})
        for bits in range(1, 9):
            assert np.array_equal(fn(made.x, bits), made.wanted(bits)), bits
        kernels = {f"decoded={kind}" in str(fn.explain(B=1, A=bits)) for bits in range(1, 9)}
        assert kernels == {True} or case == OF_ONE[-1]  # of 8 channels, which fill an eighth of a tile


def test_scales_and_what_follows_are_applied() -> None:
    rng, g = np.random.default_rng(4), ops.Graph()
    pool, index = rng.integers(-128, 128, (64, 8)).astype(np.int8), rng.integers(0, 64, (40, 3, 3, 3), dtype=np.uint8)
    scale, bias = rng.random(40, dtype=np.float32) + 0.5, rng.normal(0, 900, 40).astype(np.float32)
    values, _ = ops.round_to_bits(g.input("x", ["B", 6, 6, 24]), g.dim("A"))
    w = ops.transpose(ops.decode_pool(g.constant(index), g.constant(pool), g.constant(scale)), (1, 2, 3, 0))
    g.output(ops.relu(ops.conv2d(values, w, layout="nhwc", padding=1) + g.constant(bias)))
    plain = Case(2, 6, 6, 24, 40, (3, 3), (1, 1), 1, 1, 64)
    plain.weight = pool.astype(np.int64)[index].reshape(40, 3, 3, 24)
    fn = tw.compile(g, {"B": (1, 4), "A": tw.Dim(1, 8)})
    for bits in (8, 5, 2):
        want = np.maximum(plain.wanted(bits) * scale.astype(np.float64) + bias, 0)
        assert np.allclose(fn(plain.x, bits), want, rtol=1e-5, atol=1e-2)


def test_zeros_that_differ_are_not_taken_for_one() -> None:
    rng, g = np.random.default_rng(5), ops.Graph()
    pool, index = rng.integers(-128, 128, (64, 8)).astype(np.int8), rng.integers(0, 64, (32, 3, 3, 1), dtype=np.uint8)
    x = rng.standard_normal((1, 5, 5, 8)).astype(np.float32)
    values, _ = ops.round_to_bits(g.input("x", x.shape), 8, per="row")
    w = ops.transpose(ops.decode_pool(g.constant(index), g.constant(pool)), (1, 2, 3, 0))
    g.output(ops.conv2d(values, w, layout="nhwc", padding=1))
    g.output(values)
    fn = tw.compile(g, {})
    got, whole = fn(x)
    made = Case(1, 5, 5, 8, 32, (3, 3), (1, 1), 1, 1, 64)
    made.weight = pool.astype(np.int64)[index].reshape(32, 3, 3, 8)
    assert np.array_equal(got, made.products(whole.astype(np.int64)))
    assert "decoded=" not in str(fn.explain())


def test_what_is_no_kernel_says_why() -> None:
    found = workload(Case(*CASES[0]), 4)
    words, tiles = HostPoolsConfig(8, 1, 64, 3, 8, decoded=DOTTED), HostPoolsConfig(32, 1, 64, 9, 8, decoded=TILED)
    assert why_invalid(words, found, VNNI) is None and why_invalid(tiles, found, AMX) is None and has_one_zero(found)
    apart = [replace(o, codes=o.codes + ";zeros") if o.codes.startswith("a") else o for o in found.inputs]
    one = replace(found, inputs=tuple(apart))
    for bad, at, limits, rule in (
            (words, one, VNNI, "decoded: "), (words, found, AVX2, "decoded: "), (tiles, found, VNNI, "tiles: "),
            (replace(words, bits=4), found, VNNI, "decoded: "), (replace(words, window=True), found, VNNI, "decoded: "),
            (replace(words, groups=2), found, VNNI, "steps: "), (replace(words, rows=16), found, VNNI, "steps: "),
            (replace(words, mc=2), found, VNNI, "strips: "), (replace(words, columns=48), found, VNNI, "strips: "),
            (replace(words, decoded=8), found, VNNI, "steps: "), (replace(tiles, rows=64), found, AMX, None),
            (replace(tiles, rows=64), workload(Case(*CASES[2]), 4), AMX, "strips: ")):
        assert (why_invalid(bad, at, limits) or "None").startswith(str(rule)), (bad, rule)
    wide = workload(Case(1, 16, 16, 8, 32, (3, 3), (1, 1), 1, 1, 64), 4)
    assert str(why_invalid(replace(tiles, rows=64, mc=16), wide, AMX)).startswith("blocks: ")
    huge = workload(Case(1, 128, 128, 64, 32, (3, 3), (1, 1), 1, 1, 64), 4)
    assert str(why_invalid(replace(words, mc=128), huge, VNNI)).startswith("image-in-cache: ")


def test_tiles_then_words_then_tables_by_what_the_target_has() -> None:
    found = workload(Case(1, 8, 8, 128, 128, (3, 3), (1, 1), 1, 1, 64), 4)
    for limits, kind in ((AMX, TILED), (VNNI, DOTTED), (replace(AVX2, byte_products=2), 0)):
        configs, _ = default(found, limits)
        assert [c.decoded for c in configs if isinstance(c, HostPoolsConfig)] == [kind]
    few, _ = default(found, replace(AMX, threads=2))
    assert isinstance(few[0], HostPoolsConfig) and few[0].columns == 64  # a half of the filters each


def test_pixels_follow_each_other_at_every_place() -> None:
    image = PoolImage(PlaneShape(9, 7, (3, 3), (1, 1)), 3, 24, 8)
    assert (image.phases, image.tall, image.row, image.copy, image.pixels) == (1, 5, 168, 840, 21)
    assert image.read == [(0, 9)] and image.bytes >= 3 * 840 + 3 * 24 and image.bytes % 64 == 0 and image.row_bytes == 256
    strided = PoolImage(PlaneShape(8, 8, (3, 3), (2, 2)), 8, 8, 16)
    assert (strided.phases, strided.tall) == (2, 9) and strided.read == [(0, 9), (1, 8)]
    assert PoolImage(PlaneShape(8, 8, (1, 1), (2, 2)), 8, 8, 16).read == []


def test_tiles_that_the_system_refuses_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"avx512f", "avx512vnni", "avx512vl", "amx-tile", "amx-int8"}
    assert host_limits(have, "x86_64", native=False).tiles and not host_limits(have - {"amx-int8"}, "x86_64", native=False).tiles
    for module in (host_cpu, host_target, required_features):
        monkeypatch.setattr(module, "may_use_tiles", lambda: False)
    assert not host_limits(have, "x86_64").tiles
    assert "amx-tile" in required_features.missing_features("+amx-tile,+sse2")
    assert not any(f.startswith("amx") for f in host_target.host_target(tw.Target.parse("host")).required())
    assert isinstance(may_use_tiles(), bool)
