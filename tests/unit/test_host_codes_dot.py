"""Rows of bytes by weights in few bits: sums of integers are exact, never saturate, and are scaled group by group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from codes_workloads import Coded
from kernel_harness import at_edge, guarded, load
from matmul_workloads import AVX2, AVX512

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_codes import HostCodesConfig, space, why_invalid
from tilewright.passes.spaces.host.host_codes_cost import kernel_cost
from tilewright.passes.spaces.host.host_codes_heuristics import default
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.program.dispatch import select

pytestmark = pytest.mark.usefixtures("built_here")

LIMITS = {"host": replace(AVX512, permutes=True, byte_products=4),
          "host:x86-64-v3": replace(AVX2, permutes=True, byte_products=2)}
needs_wide = pytest.mark.skipif("avx512vnni" not in cpu_features(), reason="the CPU has no AVX-512 VNNI")
BOTH = [pytest.param("host", marks=needs_wide), "host:x86-64-v3"]
FORMATS = (Coded(100, 128, rows=32), Coded(33, 80, 4, 16, "u8", rows=16), Coded(48, 96, 2, 48, "f32", rows=48),
           Coded(7, 40, 2, 0, rows=0), Coded(50, 72, 8, 24, 0.0, rows=24), Coded(64, 160, 1, 32, rows=32),
           Coded(17, 70, 4, 32, 3.0, rows=0), Coded(40, 256, 4, 128, 2.5, rows=32), Coded(40, 256, 2, 32, rows=128),
           Coded(24, 130, 8, 0, rows=0), Coded(9, 5, 4, 0, rows=0))  # fmt: skip
Arrays = tuple[np.ndarray, np.ndarray]


def rows_of(coded: Coded, m: int) -> Arrays:
    """Bytes with the least and the largest ones among them, and scales."""
    rng = np.random.default_rng(m)
    x = rng.choice(np.array([-128, -127, -1, 0, 5, 126, 127], np.int8), (m, coded.k))
    scale = (rng.integers(1, 9, (m, coded.k // coded.rows) if coded.rows else (m,)) / 4).astype(np.float32)
    return x, scale


def spread(coded: Coded, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) * (np.repeat(scale, coded.rows, 1) if coded.rows else scale[:, None])


def check(coded: Coded, config: HostCodesConfig, target: str, rows: tuple[int, ...], bound: float = 1e-6) -> None:
    """All rows in one call and in three, every operand before an unreadable page."""
    workload, given = coded.workload(LIMITS[target])
    assert why_invalid(config, workload, LIMITS[target]) is None
    kernel = load(workload.ir, config_text(config), target)
    order = [i for i, a in enumerate(given) if a is None]
    for m in rows:
        x, scale = rows_of(coded, m)
        want = spread(coded, x, scale) @ coded.weight.T
        mine = dict(zip(order, (x, scale) if workload.inputs[order[0]].dtype.value == "i8" else (scale, x), strict=True))
        operands = [at_edge(np.ascontiguousarray(mine[i] if a is None else a)) for i, a in enumerate(given)]
        got = [guarded(want.shape, np.dtype(np.float32)) for _ in range(2)]
        for parts, out in zip((1, 3), got, strict=True):
            kernel(operands, {workload.dims[0]: m}, [out], parts)
        size = np.abs(spread(coded, x, scale)) @ np.abs(coded.weight).T + 1e-30
        assert (np.abs(got[0] - want) / size).max(initial=0) <= bound, (coded, config, m)
        assert got[0].tobytes() == got[1].tobytes()


def dotted(coded: Coded, target: str, mr: int = 1) -> HostCodesConfig:
    limits = LIMITS[target]
    lanes = limits.vector_bytes // 4
    return HostCodesConfig(mr, 16 // lanes, lanes, dot=limits.byte_products, mc=4 * mr, exact_tails=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("coded", FORMATS, ids=str)
def test_formats(coded: Coded, target: str) -> None:
    check(coded, dotted(coded, target), target, (0, 1, 2))


@pytest.mark.parametrize("target", BOTH)
def test_untuned_configurations(target: str) -> None:
    coded = FORMATS[1]
    configs, root = default(coded.workload(LIMITS[target])[0], LIMITS[target])
    assert all(c.dot == LIMITS[target].byte_products for c in configs)
    for config in configs:
        rows = tuple(m for m in (0, 1, 2, 3, 4, 7, 41) if configs[select(root, {"d0": m}).kernel] == config)
        check(coded, config, target, rows)


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("byte", [-128, 127])
def test_no_sum_saturates(bits: int, byte: int, target: str) -> None:
    """Largest codes by largest bytes, long enough that sums of 16 bits would overflow if more words were added there."""
    k = 1024
    coded = Coded(16, k, bits, 0, 0.0, rows=0)
    workload, given = coded.workload(LIMITS[target])
    packed = [a if a is None else np.full_like(a.view(np.uint8), 255) if a.dtype != np.float32 else np.ones_like(a)
              for a in given]
    kernel = load(workload.ir, config_text(dotted(coded, target)), target)
    x = {"i8": np.full((1, k), byte, np.int8), "f32": np.ones(1, np.float32)}
    kinds = [i.dtype.value for i in workload.inputs]
    out = np.empty((1, 16), np.float32)
    kernel([x[t] if a is None else a for t, a in zip(kinds, packed, strict=True)], {workload.dims[0]: 1}, [out])
    assert np.array_equal(out, np.full((1, 16), float(byte * ((1 << bits) - 1) * k), np.float32))


def test_quantised_rows_and_the_option_agree_bit_for_bit() -> None:
    coded = Coded(64, 96, 4, 32)
    codes, scale = coded.arrays
    rng, fns = np.random.default_rng(1), []
    for option in ("f32", "int8"):
        g = ops.Graph()
        x = g.input("x", ["M", 96])
        rows = ops.decode(*ops.quantise(x, 32), bits=8, group=32) if option == "f32" else x
        w = ops.decode(g.constant(codes), g.constant(scale), bits=4, group=32)
        g.output(ops.dense(rows, w, transposed=True, activation="relu"), ops.dense(rows, w, transposed=True))
        fns.append(tw.compile(g, {"M": (1, 9)}, options={"activations": option}))
    assert all(str(f.explain(M=3)).count("dot=") for f in fns)
    x0 = rng.standard_normal((5, 96)).astype(np.float32)
    x0[1], x0[2, 40], x0[3, 3], x0[4] = 0, np.nan, np.inf, x0[4] * 1e-33
    for a, b in zip(fns[0](x0), fns[1](x0), strict=True):
        assert np.array_equal(a, b, equal_nan=True)
    found = fns[1](x0)[1]
    want = x0[:1] @ coded.weight.T
    assert np.linalg.norm(found[0] - want[0]) < 0.01 * np.linalg.norm(want[0])
    assert not found[1].any() and np.isnan(found[2]).all() and np.isnan(found[3]).all() and not found[4].any()


def test_ranks_and_groups_that_do_not_divide() -> None:
    coded = Coded(40, 70, 4, 32)
    g = ops.Graph()
    codes, scale = (g.constant(a) for a in coded.arrays)
    x = ops.relu(g.input("x", ["B", "M", 70]))
    g.output(ops.dense(x, ops.decode(codes, scale, bits=4, group=32, depth=70), transposed=True))
    fn = tw.compile(g, {"B": (1, 3), "M": (1, 9)}, options={"activations": "int8"})
    x0 = np.random.default_rng(1).standard_normal((2, 3, 70)).astype(np.float32)
    want = np.maximum(x0, 0) @ coded.weight.T
    assert np.linalg.norm(fn(x0) - want) < 0.01 * np.linalg.norm(want)


def test_quantised_values_are_off_by_half_a_scale() -> None:
    g = ops.Graph()
    g.output(*ops.quantise(g.input("x", ["M", 24]), 8))
    x = np.random.default_rng(1).standard_normal((3, 24)).astype(np.float32)
    codes, scale = tw.compile(g, {"M": (1, 3)})(x)
    assert codes.dtype == np.int8 and scale.shape == (3, 3)
    assert (np.abs(codes * np.repeat(scale, 8, 1) - x) <= np.repeat(scale, 8, 1) * 0.5001).all()
    assert np.abs(codes).max(axis=1).tolist() == [127] * 3


def test_rules_and_costs() -> None:
    limits = LIMITS["host:x86-64-v3"]
    workload, _ = FORMATS[1].workload(limits)
    config = dotted(FORMATS[1], "host:x86-64-v3")
    assert [i.codes for i in workload.inputs if i.codes] == ["s8g16", "u4g16z"]
    assert why_invalid(replace(config, dot=4), workload, limits).startswith("bytes: ")
    assert why_invalid(replace(config, decode=True), workload, limits).startswith("as-stored: ")
    assert why_invalid(replace(config, mr=8), workload, limits).startswith("register-budget: ")
    plain, _ = Coded(33, 80, 4, 16, "u8").workload(limits)
    assert why_invalid(config, plain, limits).startswith("bytes: ")
    long, _ = Coded(8, 66000, 8, 0, rows=0).workload(limits)
    assert why_invalid(config, long, limits).startswith("sums-in-32-bits: ")
    crossed, _ = Coded(8, 96, 4, 32, rows=48).workload(limits)
    assert why_invalid(config, crossed, limits).startswith("nested-groups: ")
    found = [c for c in space(workload, limits) if c.dot]
    assert found and all(kernel_cost(c, workload, limits).rate > 0 for c in found)


@pytest.mark.parametrize("shape,dtype,group,message", [
    ([3, 10], "f32", 4, "a divisor of the 10"), ([3, 10], "f16", 5, "f16"), ([10], "f32", 5, "rank"),
    ([3, "K"], "f32", 0, "static"),
])
def test_bad_rows_are_named(shape: list[int | str], dtype: str, group: int, message: str) -> None:
    g = ops.Graph()
    with pytest.raises((OptionError, ShapeError, DTypeError), match=message):
        ops.quantise(g.input("x", shape, dtype), group)
    with pytest.raises(OptionError, match="activations"):
        tw.CompileOptions(activations="int4")
