"""Weights in few bits: they stay so from the model to the kernel, and the family host_codes multiplies what they decode to."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from codes_workloads import Coded
from kernel_harness import at_edge, guarded, load
from matmul_workloads import AVX2, AVX512

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.ops.codes import planes
from tilewright.passes.analysis.codes import Codes
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.spaces.family_registry import config_text, family_of
from tilewright.passes.spaces.host.host_codes import HostCodesConfig, space, why_invalid
from tilewright.passes.spaces.host.host_codes_cost import extents, kernel_cost
from tilewright.passes.spaces.host.host_codes_heuristics import default
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.host.host_cpu import cpu_features
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import select

pytestmark = pytest.mark.usefixtures("built_here")

TARGETS = {"host": replace(AVX512, permutes=True), "host:x86-64-v3": replace(AVX2, permutes=True)}
needs_wide = pytest.mark.skipif("avx512f" not in cpu_features(), reason="the CPU has no AVX-512")
BOTH = [pytest.param("host", marks=needs_wide), "host:x86-64-v3"]
FORMATS = (Coded(100, 128), Coded(33, 70, 4, 16, "u8"), Coded(48, 96, 2, 48, "f32"), Coded(7, 40, 2, 0), Coded(96, 130, 8, 0),
           Coded(50, 72, 8, 24, 0.0), Coded(64, 160, 1, 32), Coded(17, 5, 4, 32, 3.0), Coded(49, 264, 4, 128, "u8"),
           Coded(100, 130, 3), Coded(33, 65, 5, 32, "u8"), Coded(48, 144, 6, 48, "f32"), Coded(7, 41, 7, 0),
           Coded(50, 39, 3, 0, "u8"), Coded(17, 72, 5, 0, 2.5), Coded(64, 96, 7, 32, 3.0))


def check(coded: Coded, config: HostCodesConfig, target: str, rows: tuple[int, ...]) -> None:
    """All rows in one call and in three, every operand before an unreadable page."""
    workload, given = coded.workload(TARGETS[target])
    assert why_invalid(config, workload, TARGETS[target]) is None
    kernel = load(workload.ir, config_text(config), target)
    for m in rows:
        x = np.random.default_rng(m).standard_normal((m, coded.k)).astype(np.float32)
        want = x.astype(np.float64) @ coded.weight.T
        operands = [at_edge(x if a is None else a.view(np.uint8) if a.dtype == np.uint8 else a) for a in given]
        got = [guarded(want.shape, x.dtype) for _ in range(2)]
        for parts, out in zip((1, 3), got, strict=True):
            kernel(operands, {workload.dims[0]: m}, [out], parts)
        scale = np.abs(x).astype(np.float64) @ np.abs(coded.weight).T + 1e-30
        assert (np.abs(got[0] - want) / scale).max(initial=0) < 2e-6, (coded, config, m)
        assert got[0].tobytes() == got[1].tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("coded", [FORMATS[1], FORMATS[9]], ids=str)
def test_untuned_configurations(coded: Coded, target: str) -> None:
    configs, root = default(coded.workload(TARGETS[target])[0], TARGETS[target])
    found = {c: tuple(m for m in (0, 1, 2, 3, 4, 7, 11, 21) if configs[select(root, {"d0": m}).kernel] == c) for c in configs}
    assert [c.decode for c in configs[-2:]] == [False, True] and configs[0].mr == 1
    for config, rows in found.items():
        check(coded, config, target, rows)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize("coded", FORMATS, ids=str)
def test_formats(coded: Coded, target: str) -> None:
    limits = TARGETS[target]
    lanes = limits.vector_bytes // 4
    check(coded, HostCodesConfig(1, 16 // lanes, lanes), target, (1, 2))
    if 1 << coded.bits <= lanes:
        check(coded, HostCodesConfig(1, 1, lanes, table=True), target, (2,))
    vectors = coded.workload(limits)[0].inputs[0].panel // lanes
    check(coded, HostCodesConfig(3, vectors, lanes, True, False, 3), target, (5,))


@pytest.mark.parametrize("target", BOTH)
def test_pieces_of_k_and_groups_of_panels(target: str) -> None:
    coded, limits = Coded(200, 1100), TARGETS[target]
    lanes = limits.vector_bytes // 4
    vectors = coded.workload(limits)[0].inputs[0].panel // lanes
    check(coded, HostCodesConfig(4, vectors, lanes, True, False, 8, 512, 4), target, (19,))


def test_nan_and_infinity_arrive_where_the_weight_says() -> None:
    coded = Coded(48, 64)
    x = np.zeros((2, 64), np.float32)
    x[0, 3], x[1, 5] = np.inf, np.nan
    got = tw.compile(coded.graph(), {"M": (1, 4)})(x)
    with np.errstate(invalid="ignore"):
        want = x[:, [3, 5]] @ coded.weight[:, [3, 5]].T.astype(np.float32)
    assert np.array_equal(got, want.astype(np.float32), equal_nan=True)


def test_the_artifact_holds_the_codes(tmp_path: Path) -> None:
    coded = Coded(1536, 1024, 4, 64)
    fn = tw.compile(coded.graph(1), {})
    fn.save(tmp_path / "small.tw")
    explained = str(fn.explain())
    assert "host_codes" in explained
    plain = 4 * coded.n * coded.k
    codes_and_scales = plain // 8 + plain // 64
    assert os.path.getsize(tmp_path / "small.tw") < codes_and_scales + (164 << 10)  # the rest is code
    x = np.random.default_rng(0).standard_normal((1, coded.k)).astype(np.float32)
    again = tw.load(tmp_path / "small.tw")(x)
    assert np.array_equal(again, fn(x)) and np.allclose(again, x @ coded.weight.T, rtol=1e-4, atol=1e-4)


def test_one_decoding_for_two_products_and_a_scale_behind() -> None:
    coded = Coded(64, 64)
    g = ops.Graph()
    codes, scale = (g.constant(a) for a in coded.arrays)
    w = ops.decode(codes, scale, bits=4, group=32)
    x = g.input("x", ["M", 64])
    first = ops.dense(x, w, transposed=True, activation="relu")
    g.output(ops.dense(first, w, transposed=True) * g.constant(np.arange(64, dtype=np.float32)))
    fn = tw.compile(g, {"M": (1, 9)})
    x0 = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    want = np.maximum(x0 @ coded.weight.T, 0) @ coded.weight.T * np.arange(64)
    assert str(fn.explain(M=3)).count("host_codes") >= 2
    assert np.allclose(fn(x0), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_what_is_no_product_of_codes_still_runs() -> None:
    coded = Coded(12, 16, 4, 16)
    g = ops.Graph()
    codes, scale = (g.constant(a) for a in coded.arrays)
    w = ops.decode(codes, scale, bits=4, group=16)
    x = g.input("x", ["M", 12])
    g.output(ops.matmul(x, w), w + 1.0)
    x0 = np.random.default_rng(1).standard_normal((3, 12)).astype(np.float32)
    found = tw.compile(g, {"M": (1, 9)})(x0)
    assert np.allclose(found[0], x0 @ coded.weight, atol=1e-4) and np.allclose(found[1], coded.weight + 1, atol=1e-6)


def test_rules_and_costs() -> None:
    workload, _ = Coded(100, 128, 4, 32, "u8").workload(AVX512)
    assert why_invalid(HostCodesConfig(nv=2), workload, AVX512).startswith("panels-in-blocks: ")
    assert why_invalid(HostCodesConfig(12), workload, AVX512).startswith("register-budget: ")
    assert why_invalid(HostCodesConfig(kc=512), workload, AVX512).startswith("whole-k: ")
    assert why_invalid(HostCodesConfig(4, decode=True, mc=8, kc=12), workload, AVX512).startswith("whole-words: ")
    assert why_invalid(HostCodesConfig(table=True), workload, AVX512).startswith("table-in-register: ")
    found = list(space(workload, AVX512))
    assert {c.decode for c in found} == {False, True} and len(found) == len(set(found))
    assert set(kernel_cost(found[0], workload, AVX512).tiles) <= set(extents(workload))
    several, _ = Coded(100, 128, 3).workload(AVX512)
    assert [i.codes for i in several.inputs if i.panel] == ["u3g32", "", ""]
    assert family_of("gpu_codes").why_not(several, GpuLimits.of("sm_90a")).startswith("codes: ")
    assert why_invalid(HostCodesConfig(dot=2), several, replace(AVX512, byte_products=2)).startswith("bytes: ")
    assert kernel_cost(found[0], several, AVX512).features["instructions_a_vector"] == 5
    odd, _ = Coded(48, 66, 2, 11).workload(AVX512)
    assert family_of("host_codes").why_not(odd, AVX512).startswith("whole-words: ")


def test_bytes_and_groups_beyond_the_last_code_are_not_read() -> None:
    rng = np.random.default_rng(2)
    codes, scale = rng.integers(0, 256, (64, 70), dtype=np.uint8), rng.random((64, 68), dtype=np.float32)
    x = rng.standard_normal((3, 65)).astype(np.float32)
    g = ops.Graph()
    w = ops.decode(g.constant(codes), g.constant(scale), bits=8, group=1, depth=65)
    g.output(ops.dense(g.input("x", [3, 65]), w, transposed=True))
    want = x @ ((codes[:, :65].astype(np.float64) - 128) * scale[:, :65]).T
    assert np.allclose(tw.compile(g)(x), want, rtol=1e-4, atol=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_every_code_of_several_tensors_exactly(bits: int) -> None:
    """Few rows decode in registers, many to a panel; rows of one 1 each give the weights themselves."""
    rng, g = np.random.default_rng(bits), ops.Graph()
    codes = np.concatenate([rng.permutation(256) % (1 << bits) for _ in range(8)]).reshape(32, 64).astype(np.uint8)
    widths = planes(bits)
    lows = [sum(widths[:i]) for i in range(len(widths))]
    stored = [sum((codes[:, i::8 // b] >> low) % (1 << b) << (i * b) for i in range(8 // b)).astype(np.uint8)
              for b, low in zip(widths, lows, strict=True)]
    w = ops.decode([g.constant(c) for c in stored], g.constant(np.ones((32, 2), np.float32)), bits=bits, group=32)
    g.output(ops.dense(g.input("x", ["M", 64]), w, transposed=True))
    fn, rows, want = tw.compile(g, {"M": (1, 64)}), np.eye(64, dtype=np.float32), codes.T.astype(np.float32) - (1 << (bits - 1))
    assert np.array_equal(fn(rows), want)
    for few in (1, 2, 4):
        assert all(np.array_equal(fn(rows[i : i + few]), want[i : i + few]) for i in range(0, 64, few))


@pytest.mark.parametrize("group,activations,text", [(32, "f32", ["u3g32"]), (16, "f32", ["u2g16", ""]),
                                                    (32, "int8", ["u2g32", "u1g32"])])
def test_codes_are_joined_where_groups_are_whole_words_and_rows_no_bytes(group: int, activations: str, text: list[str]) -> None:
    coded = Coded(64, 64, 3, group)
    fn = tw.compile(coded.graph(), {"M": (1, 40)}, options={"activations": activations})
    assert str(fn.explain(M=40)).count("  host_codes  ") == sum(map(bool, text))
    x = np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32)
    want = x @ coded.weight.T
    assert np.linalg.norm(fn(x) - want) < (1e-5 if activations == "f32" else 0.01) * np.linalg.norm(want)


@pytest.mark.parametrize("bits,depth,message", [(3, None, "codes of 3 bits"), (4, 300, "depth 300")])
def test_bad_codes_are_named(bits: int, depth: int | None, message: str) -> None:
    g = ops.Graph()
    codes, scale = (g.constant(a) for a in Coded(8, 32).arrays)
    with pytest.raises((OptionError, ShapeError), match=message):
        ops.decode(codes, scale, bits=bits, depth=depth)


@pytest.mark.parametrize("widen,cast,text", [
    ("extsi", "sitofp", "s8"), ("extui", "uitofp", "u8"), ("extui", "sitofp", "u8"), ("extsi", "uitofp", None),
])
def test_a_sign_that_is_read_as_a_number_is_no_code(widen: str, cast: str, text: str | None) -> None:
    ident, row = "affine_map<(d0, d1) -> (d0, d1)>", "affine_map<(d0, d1) -> (d0)>"
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(f"""
        func.func @main(%c: tensor<4x8xi8>, %s: tensor<4xf32>, %e: tensor<4x8xf32>) -> tensor<4x8xf32> {{
          %w = linalg.generic {{indexing_maps = [{ident}, {row}, {ident}], iterator_types = ["parallel", "parallel"]}}
              ins(%c, %s : tensor<4x8xi8>, tensor<4xf32>) outs(%e : tensor<4x8xf32>) {{
          ^bb0(%a: i8, %b: f32, %o: f32):
            %wide = arith.{widen} %a : i8 to i32
            %f = arith.{cast} %wide : i32 to f32
            %y = arith.mulf %f, %b : f32
            linalg.yield %y : f32
          }} -> tensor<4x8xf32>
          return %w : tensor<4x8xf32>
        }}""")
        found = Codes.of(operations(next(functions(module)).regions[0].blocks[0])[0])
        assert (None if found is None else found.text) == text
