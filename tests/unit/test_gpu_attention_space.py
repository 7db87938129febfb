"""Rules, space and defaults of `gpu_attention`, and which attentions a GPU target fuses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hand_workloads import with_loops

import tilewright.compiler.ops as ops
from tilewright.compiler.compilation.options import CompileOptions, Precision
from tilewright.compiler.compilation.outlined_model import passes_of
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outline import workloads_of
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.family_registry import config_text, families_of, parse_config
from tilewright.passes.spaces.gpu import gpu_attention, gpu_attention_heuristics, wgmma_attention, wgmma_attention_heuristics
from tilewright.passes.spaces.gpu.gpu_attention import GpuAttentionConfig, padded
from tilewright.passes.spaces.gpu.wgmma_attention import WgmmaAttentionConfig
from tilewright.passes.spaces.segments import Segments
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Node, Split, leaves
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

A100, ADA, H100 = GpuLimits.of("sm_80"), GpuLimits.of("sm_89"), GpuLimits.of("sm_90a")


def heads(depth: int | str = 64, columns: int | str = 64, element: str = "f16") -> Workload:
    def size(d: int | str) -> Expr:
        return Expr.of(d) if isinstance(d, int) else Expr.dim(d)

    shapes = (("B", "M", depth), ("B", "N", depth), ("B", "N", columns), ("B", "M", columns))
    q, k, v, o = (Operand(DType(element), tuple(map(size, s)), 2) for s in shapes)
    loops = tuple(Loop(r, size(d)) for r, d in zip("bmnke", ("B", "M", "N", depth, columns), strict=True))
    none = Expr.of(0)
    found = Workload("attention", "attention", Kind.ATTENTION, "", ("B", "M", "N"), (q, k, v), (o,), loops, none, none)
    return with_loops(found, "b m k,b n k,b n e,b m e")


@pytest.mark.parametrize("config,rule", [
    (GpuAttentionConfig(), None), (GpuAttentionConfig(bm=48), "power-of-two"), (GpuAttentionConfig(wm=8), "warp-tile"),
    (GpuAttentionConfig(bn=8), "warp-tile"), (GpuAttentionConfig(wm=128), "warp-in-block"),
    (GpuAttentionConfig(stages=1), "stages"),
    (GpuAttentionConfig(vec=16), "vector-fits"), (GpuAttentionConfig(bn=256, stages=4), "shared-budget"),
    (GpuAttentionConfig(min_blocks_per_sm=8), "shared-budget"), (GpuAttentionConfig(wm=64, bn=128), "register-budget"),
    (GpuAttentionConfig(bm=256, bn=128), "register-budget"), (GpuAttentionConfig(index=16), "index-bits")])
def test_rules(config: GpuAttentionConfig, rule: str | None) -> None:
    reason = gpu_attention.why_invalid(config, heads(), A100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


def test_rules_name_what_a_workload_lacks() -> None:
    assert str(gpu_attention.why_invalid(GpuAttentionConfig(), heads(element="f32"), A100)).startswith("element-type")
    assert gpu_attention.why_invalid(GpuAttentionConfig(vec=4, tf32=True), heads(element="f32"), A100) is None
    for shape in ((512, 64), (64, 512), ("D", 64)):
        assert str(gpu_attention.why_invalid(GpuAttentionConfig(), heads(*shape), A100)).startswith("head-size")


@pytest.mark.parametrize("limits", [A100, ADA, H100])
@pytest.mark.parametrize("element", ["f16", "f32"])
def test_defaults_are_legal_for_all_heads(element: str, limits: GpuLimits) -> None:
    for depth, columns in itertools.product((1, 32, 64, 80, 128, 256), (1, 64, 80, 128, 160, 256)):
        w = heads(depth, columns, element)
        configs, root = gpu_attention_heuristics.default(w, limits)
        assert [gpu_attention.why_invalid(c, w, limits) for c in configs] == [None] * len(configs)
        assert (configs[-1].vec, configs[-1].index, configs[-1].split_kv) == (1, 64, 1)
        assert {leaf.kernel for leaf in leaves(root)} <= set(range(len(configs)))


def chosen(node: Node, configs: Sequence[Any], **dims: int) -> Any:
    while isinstance(node, Split):
        node = node.below if Expr.parse(node.expr).evaluate(dims) <= node.bound else node.above
    return configs[node.kernel]


def test_few_queries_of_many_keys_are_split() -> None:
    configs, root = gpu_attention_heuristics.default(heads(), A100)
    assert chosen(root, configs, B=12, M=1, N=4096).split_kv > 1
    assert chosen(root, configs, B=12, M=1, N=64).split_kv == 1
    assert chosen(root, configs, B=4096, M=1, N=4096).split_kv == 1
    assert chosen(root, configs, B=12, M=128, N=128).bm == 64
    assert chosen(root, configs, B=96, M=2048, N=2048).bm == 128


@pytest.mark.parametrize("config,rule", [
    (WgmmaAttentionConfig(), None), (WgmmaAttentionConfig(consumers=4), "consumers"), (WgmmaAttentionConfig(bn=96), "keys"),
    (WgmmaAttentionConfig(stages=1), "stages"), (WgmmaAttentionConfig(vec=3), "vector-fits"),
    (WgmmaAttentionConfig(split_kv=3), "power-of-two"), (WgmmaAttentionConfig(bn=256, stages=4), "shared-budget"),
    (WgmmaAttentionConfig(consumers=3), None), (WgmmaAttentionConfig(consumers=3, bn=192), "register-budget"),
    (WgmmaAttentionConfig(blocks=132, split_kv=2), "grid"), (WgmmaAttentionConfig(blocks=132, pingpong=True), None),
    (WgmmaAttentionConfig(consumers=1, pingpong=True), "pingpong"), (WgmmaAttentionConfig(copied=True), None),
    (WgmmaAttentionConfig(copied=True, split_kv=2), "copied-results"), (WgmmaAttentionConfig(index=64), "index-bits")])
def test_rules_of_warpgroups(config: WgmmaAttentionConfig, rule: str | None) -> None:
    reason = wgmma_attention.why_invalid(config, heads(), H100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


def test_masks_from_memory_take_registers() -> None:
    work = replace(heads(), inputs=(*heads().inputs, heads().inputs[0]))
    assert str(wgmma_attention.why_invalid(WgmmaAttentionConfig(consumers=3), work, H100)).startswith("register-budget")
    assert wgmma_attention.why_invalid(WgmmaAttentionConfig(), work, H100) is None


def test_results_that_copies_store() -> None:
    config = WgmmaAttentionConfig(copied=True)
    for work in (heads(64, 80), with_loops(replace(heads(), outputs=heads(element="f32").outputs), "b m k,b n k,b n e,b m e")):
        assert str(wgmma_attention.why_invalid(config, work, H100)).startswith("copied-results")
    chosen_by = wgmma_attention_heuristics.default(heads(), H100)
    assert chosen(chosen_by[1], chosen_by[0], B=96, M=2048, N=2048).copied


def test_what_warpgroups_take() -> None:
    def first(work: Workload, limits: GpuLimits = H100) -> str:
        return families_of(work, limits)[0]

    assert {first(heads(*shape)) for shape in ((64, 64), (80, 96), (256, 128), (8, 8))} == {"wgmma_attention"}
    assert {first(heads(*shape)) for shape in ((5, 64), (64, 12))} == {"gpu_attention"}
    assert first(heads(), A100) == "gpu_attention"
    work = heads()
    computed = replace(work, factors=(replace(work.factors[0], source=None), *work.factors[1:]))
    assert first(computed) == "gpu_attention"


@pytest.mark.parametrize("depth,columns", [(64, 64), (8, 128), (80, 96), (128, 128), (256, 256)])
def test_defaults_of_warpgroups(depth: int, columns: int) -> None:
    """Whatever has few queries, or is not aligned, is left to `gpu_attention`."""
    w = heads(depth, columns)
    configs, root = wgmma_attention_heuristics.default(w, H100)
    own = [c for c in configs if isinstance(c, WgmmaAttentionConfig)]
    assert [wgmma_attention.why_invalid(c, w, H100) for c in own] == [None] * len(own)
    others = gpu_attention_heuristics.default(w, H100)[0]
    assert {*configs} <= {*own, chosen(root, configs, B=96, M=1, N=1), *others}
    assert configs[-1] == others[-1]
    assert chosen(root, configs, B=96, M=2048, N=2048).consumers == (3 if (depth, columns) == (64, 64) else 2)
    assert chosen(root, configs, B=96, M=128, N=128).bn == 64
    assert [chosen(root, configs, B=b, M=128, N=n).blocks for b in (132, 133) for n in (256, 4096)] == (
        [0, 0, 132, 132] if columns < 256 else [0] * 4)  # two tiles of queries and two steps have no room
    assert (chosen(root, configs, B=133, M=128, N=64) in others) is ((depth, columns) == (64, 64))
    assert chosen(root, configs, B=12, M=128, N=128).consumers == 1
    assert chosen(root, configs, B=12, M=16, N=4096) in others


def test_sequences_of_a_batch_share_two_kernels() -> None:
    """One sequence does not say how many tiles a launch has, and each kernel is a launch. Heads of 64 have one kernel up to the
    longest sequences that were measured."""
    for shape, few, last in (((64, 64), GpuAttentionConfig, 512), ((128, 128), WgmmaAttentionConfig, 320)):
        w = replace(heads(*shape), segments=str(Segments((0, 1, 2, 3), (), ("M", "N"))))
        configs, root = wgmma_attention_heuristics.default(w, H100)
        names = {config: [n for n in range(1, 700) if chosen(root, configs, B=8, M=n, N=n) == config] for config in configs}
        used = [config for config, lengths in names.items() if lengths]
        assert [type(c) for c in used] == [few, WgmmaAttentionConfig]
        assert names[used[0]] == [*range(1, last + 1)]
        assert [c.bm for c in used] == [64 if few is GpuAttentionConfig else 128, 128]
    w = replace(heads(), segments="members 3")
    assert wgmma_attention_heuristics.default(w, H100)[1] == wgmma_attention_heuristics.default(heads(), H100)[1]


def test_space_and_text() -> None:
    found = list(itertools.islice(gpu_attention.space(heads(), A100), 500))
    assert len(found) > 100
    assert all(parse_config(config_text(c)) == c for c in found[::50])
    assert [padded(n) for n in (1, 16, 17, 64, 80)] == [16, 16, 32, 64, 128]
    assert families_of(heads(), A100) == ("gpu_attention", "gpu_pointwise")


def kinds(dtype: str, precision: Precision, depth: int = 64) -> set[Kind]:
    g = ops.Graph()
    q, k, v = (g.input(n, ["B", 2, "S", depth], dtype) for n in "qkv")
    g.output(ops.attention(q, k, v, causal=True))
    ingested = ingest(g, {"B": (1, 8), "S": (1, 512)})
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(ingested.text)
        PassPipeline(passes_of(CompileOptions(precision=precision), A100)).run(module)
        return {w.kind for w in workloads_of(module).values()} - {Kind.POINTWISE}


@pytest.mark.parametrize("dtype,precision,fused", [
    ("f16", Precision.F32, True), ("bf16", Precision.F32, True), ("f32", Precision.F16, True), ("f32", Precision.BF16, True),
    ("f32", Precision.TF32, True), ("f32", Precision.F32, False)])
def test_what_a_gpu_fuses(dtype: str, precision: Precision, fused: bool) -> None:
    assert kinds(dtype, precision) == ({Kind.ATTENTION} if fused else {Kind.CONTRACTION, Kind.ROWS})
    assert kinds(dtype, precision, 320) == {Kind.CONTRACTION, Kind.ROWS}
