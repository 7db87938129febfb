"""Rules, spaces and defaults of the tensor-core families, and what tables make of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hand_workloads import with_loops

from tilewright.passes.spaces.family_registry import config_text, families_of, heuristics_of, parse_config
from tilewright.passes.spaces.gpu import gemv, mma, mma_heuristics, wgmma, wgmma_heuristics
from tilewright.passes.spaces.gpu.gemv import GemvConfig
from tilewright.passes.spaces.gpu.mma import MmaConfig
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.passes.spaces.numerics import PLAIN
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.limits import GpuLimits, HostLimits
from tilewright.runtime.program.dispatch import Node, Split, leaves
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

A100, H100 = GpuLimits.of("sm_80"), GpuLimits.of("sm_90a")


def dense(m: int | str, n: int | str, k: int | str, element: str = "f16", transposed: bool = False) -> Workload:
    def size(d: int | str) -> Expr:
        return Expr.of(d) if isinstance(d, int) else Expr.dim(d)

    shapes = ((m, k), (n, k) if transposed else (k, n), (m, n))
    a, b, c = (Operand(DType(element), tuple(map(size, s)), 1) for s in shapes)
    loops = (Loop("m", size(m)), Loop("n", size(n)), Loop("k", size(k)))
    named = tuple(dict.fromkeys(d for s in shapes for d in s if isinstance(d, str)))
    none = Expr.of(0)
    found = Workload("dense", "dense", Kind.CONTRACTION, "", named, (a, b), (c,), loops, none, none)
    return with_loops(found, "m k,n k,m n" if transposed else "m k,k n,m n")


@pytest.mark.parametrize("config,rule", [
    (MmaConfig(), None), (MmaConfig(bm=8, wm=8, wn=16, swapped=True), None),
    (MmaConfig(wm=8, bk=16, swapped=True), "shared-fragment"),
    (MmaConfig(bm=48), "power-of-two"), (MmaConfig(wm=8), "warp-tile"), (MmaConfig(wn=128), "warp-in-block"),
    (MmaConfig(bk=8), "step-depth"), (MmaConfig(stages=1), "stages"), (MmaConfig(vec=16), "vector-fits"),
    (MmaConfig(min_blocks_per_sm=16), "blocks-fit"), (MmaConfig(bm=128, bn=128, wm=128, wn=64), "register-budget"),
    (MmaConfig(bm=256, bn=256, wm=64, wn=64, min_blocks_per_sm=2, bk=16, staged=False), "register-budget"),
    (MmaConfig(bm=256, bn=128, wm=64, wn=64, stages=5), "shared-budget"), (MmaConfig(group_m=0), "group-positive"),
    (MmaConfig(index=16), "index-bits"), (MmaConfig(bm=256, bn=256, wm=16, wn=16, bk=16, staged=False), "register-budget")])
def test_rules_of_mma(config: MmaConfig, rule: str | None) -> None:
    reason = mma.why_invalid(config, dense("M", 768, 768), A100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


@pytest.mark.parametrize("config,rule", [
    (WgmmaConfig(), None), (WgmmaConfig(consumers=4), "consumers"), (WgmmaConfig(bm=64), "rows"), (WgmmaConfig(bn=24), "columns"),
    (WgmmaConfig(bm=384), "box"), (WgmmaConfig(stages=1), "stages"), (WgmmaConfig(vec=16), "vector-fits"),
    (WgmmaConfig(bm=256, bn=256), "register-budget"), (WgmmaConfig(bm=192, bn=256, consumers=3), "register-budget"),
    (WgmmaConfig(cluster_m=2), None), (WgmmaConfig(cluster_n=4), None), (WgmmaConfig(cluster_m=2, cluster_n=2), None),
    (WgmmaConfig(blocks=128, cluster_m=4, cluster_n=2), None), (WgmmaConfig(blocks=128, cluster_m=4, cluster_n=4), "cluster:"),
    (WgmmaConfig(blocks=0, cluster_m=2, cluster_n=2, cluster_k=2), None), (WgmmaConfig(cluster_n=2, cluster_k=2), "parts-in"),
    (WgmmaConfig(bm=64, blocks=0, consumers=1, cluster_m=4, cluster_k=4), "cluster:"), (WgmmaConfig(deep=3), "deep"),
    (WgmmaConfig(stages=3, deep=2), None), (WgmmaConfig(stages=4, deep=2), "shared-budget"),
    (WgmmaConfig(cluster_m=3), "cluster:"), (WgmmaConfig(cluster_m=2, blocks=131), "cluster:"),
    (WgmmaConfig(bn=16, cluster_m=4), "cluster-parts"), (WgmmaConfig(bn=96), None),
    (WgmmaConfig(bn=144, stages=5), None), (WgmmaConfig(bn=144, stages=6), "shared-budget"),
    (WgmmaConfig(bm=192, bn=224, consumers=3, stages=2), "register-budget"),
    (WgmmaConfig(streamed=True, cluster_n=2, copied=True), None), (WgmmaConfig(streamed=True, blocks=0), "streamed"),
    (WgmmaConfig(streamed=True, pingpong=True), "streamed"),
    (WgmmaConfig(pingpong=True), None), (WgmmaConfig(pingpong=True, blocks=0), "pingpong"),
    (WgmmaConfig(192, 192, consumers=3, pingpong=True), "pingpong"), (WgmmaConfig(bn=192, pingpong=True), None),
    (WgmmaConfig(bn=256, pingpong=True), "register-budget"), (WgmmaConfig(192, 192, 4, 3, copied=True), None),
    (WgmmaConfig(bn=256, stages=5), "shared-budget"), (WgmmaConfig(group_m=0), "grid"), (WgmmaConfig(index=64), "index-bits")])
def test_rules_of_wgmma(config: WgmmaConfig, rule: str | None) -> None:
    reason = wgmma.why_invalid(config, dense("M", 768, 768), H100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


def test_rules_of_what_memory_runs_along() -> None:
    """Columns of [n, k] weights are rows of k in shared memory, as many as a tile has; of [k, n] weights copies bring whole rows
    of 128 bytes."""
    along = dense("M", 768, 768, transposed=True)
    config = WgmmaConfig(bn=96, copied=True)
    assert wgmma.why_invalid(config, along, H100) is None
    assert wgmma.stage_bytes(config, along) == config.stage_bytes
    assert wgmma.stage_bytes(config, dense("M", 768, 768)) == replace(config, bn=128).stage_bytes
    beside = replace(along, outputs=(replace(along.outputs[0], unit_axis=None),))
    assert str(wgmma.why_invalid(WgmmaConfig(copied=True), beside, H100)).startswith("copied-results")
    single = dense("M", 768, 768, "f32", transposed=True)
    assert all(c.tf32 for c in itertools.islice(wgmma.space(single, H100), 1)) and any(wgmma.space(single, H100))
    eight = dense("M", 768, 768, "f8E4M3FN", transposed=True)
    assert str(wgmma.why_invalid(WgmmaConfig(bn=256), eight, H100)).startswith("register-budget")


def test_rules_name_what_a_target_or_a_workload_lacks() -> None:
    assert str(wgmma.why_invalid(WgmmaConfig(), dense("M", 8, 8), A100)).startswith("architecture")
    assert str(mma.why_invalid(MmaConfig(), dense("M", 8, 8, "f32"), A100)).startswith("element-type")
    few = GpuLimits("sm_90a", H100.shared_bytes, registers=32768)
    assert str(wgmma.why_invalid(WgmmaConfig(bn=16), dense("M", 8, 8), few)).startswith("setmaxnreg-budget")
    assert str(wgmma.why_invalid(WgmmaConfig(vec=1, copied=True), dense("M", 8, 8), H100)).startswith("copied-results")
    full = replace(H100, shared_bytes=WgmmaConfig().tile_bytes() + 71)
    assert wgmma.why_invalid(WgmmaConfig(), dense("M", 8, 8), full) == (
        f"barriers: 9 of 8 bytes; 8 fit beside {WgmmaConfig().tile_bytes()} bytes of tiles")
    assert wgmma.why_invalid(WgmmaConfig(), dense("M", 8, 8), replace(full, shared_bytes=full.shared_bytes + 1)) is None
    eight = dense("M", 16, 16, "f8E4M3FN")
    assert str(mma.why_invalid(MmaConfig(vec=16, bk=128), eight, A100)).startswith("architecture")
    assert mma.why_invalid(MmaConfig(vec=16, bk=128), eight, GpuLimits.of("sm_90a")) is None
    assert mma.why_invalid(MmaConfig(vec=4, bk=32, tf32=True), dense("M", 8, 8, "f32"), A100) is None


@pytest.mark.parametrize("consumers", wgmma.REGISTERS)
def test_registers_given_away_cover_those_taken(consumers: int) -> None:
    """Else the warpgroups that multiply wait for registers for ever."""
    copies, multiplies = wgmma.REGISTERS[consumers]
    threads = 128 * (consumers + 1)
    given = min(255, 65536 // threads) // 8 * 8
    assert copies % 8 == multiplies % 8 == 0
    assert copies + consumers * multiplies <= given * (consumers + 1)


@pytest.mark.parametrize("family,limits", [(mma, A100), (mma, H100), (wgmma, H100)])
def test_spaces_are_legal_and_have_no_doubles(family: object, limits: GpuLimits) -> None:
    work = dense("M", 768, 768)
    found = list(itertools.islice(family.space(work, limits), 2000))  # type: ignore[attr-defined]
    assert len(found) > 100
    assert len(set(found)) == len(found)
    assert all(parse_config(config_text(c)) == c for c in found[:50])


@pytest.mark.parametrize("work", [dense("M", 2304, 768), dense("M", "N", "K"), dense(1, 10, "M"), dense("M", 64, 64, "bf16")])
@pytest.mark.parametrize("family,limits", [("mma", A100), ("wgmma", H100)])
def test_defaults_are_legal_and_in_the_tree(family: str, limits: GpuLimits, work: Workload) -> None:
    configs, root = heuristics_of(family).default(work, limits)
    assert {leaf.kernel for leaf in leaves(root)} <= set(range(len(configs)))
    for c in configs:
        rules = {"gemv": gemv, "mma": mma, "wgmma": wgmma}[c.family]
        assert rules.why_invalid(c, work, limits) is None
    assert (configs[-1].family, configs[-1].index, configs[-1].vec) == ("mma", 64, 1)


@pytest.mark.parametrize("config,rule", [
    (GemvConfig(), None), (GemvConfig(8, vec=8, tensor=True), None), (GemvConfig(cluster_k=8), None),
    (GemvConfig(bn=48), "power-of-two"), (GemvConfig(rows=32), "rows"), (GemvConfig(4, tensor=True), "rows"),
    (GemvConfig(bn=16), "columns"), (GemvConfig(vec=16), "vector-fits"), (GemvConfig(cluster_k=2, split_k=2), "one-way"),
    (GemvConfig(min_blocks_per_sm=32), "blocks-fit"), (GemvConfig(16, 64, tensor=True, min_blocks_per_sm=16), "shared-budget"),
    (GemvConfig(8, 64, unroll=4), "register-budget"), (GemvConfig(cluster_k=16), "cluster:"),
    (GemvConfig(index=16), "index-bits")])
def test_rules_of_gemv(config: GemvConfig, rule: str | None) -> None:
    reason = gemv.why_invalid(config, dense("M", 768, 768), H100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


def test_gemv_takes_few_rows_of_floats() -> None:
    assert gemv.takes(dense("M", 8, 8), A100, PLAIN) is None
    assert str(gemv.takes(dense(17, 8, 8), A100, PLAIN)).startswith("few-rows")
    assert str(gemv.takes(dense("M", 8, 8, "i8"), A100, PLAIN)).startswith("element-type")
    assert str(gemv.why_invalid(GemvConfig(8, tensor=True), dense("M", 8, 8, "f32"), A100)).startswith("element-type")
    assert str(gemv.why_invalid(GemvConfig(cluster_k=2), dense("M", 8, 8), A100)).startswith("architecture")


def test_defaults_of_bytes_are_smaller_where_fragments_need_more_registers() -> None:
    """The right operand of `dense` runs along n; transposed it runs along k, which equal extents do not hide."""
    gathered, along = dense("M", "N", "K", "i8"), dense("M", "N", "K", "i8", transposed=True)
    large = MmaConfig(128, 128, 64, 64, 32, 4, 16, min_blocks_per_sm=1)
    small = MmaConfig(128, 64, 64, 32, 32, 4, 16, min_blocks_per_sm=1)
    square = [dense("K", "K", "K", "i8", transposed=t) for t in (True, False)]
    found = [mma_heuristics.default(work, H100)[0] for work in (along, gathered, *square)]
    assert [(large in configs, small in configs) for configs in found] == [(True, False), (False, True)] * 2


def chosen(node: Node, dims: dict[str, int]) -> int:
    while isinstance(node, Split):
        node = node.below if Expr.parse(node.expr).evaluate(dims) <= node.bound else node.above
    return node.kernel


@pytest.mark.parametrize("dims,family", [
    ({"M": 16, "N": 4096, "K": 512}, "gemv"), ({"M": 17, "N": 4096, "K": 512}, "wgmma"),
    ({"M": 4096, "N": 4096, "K": 512}, "wgmma"),
    ({"M": 4, "N": 4096, "K": 511}, "gemv"),
    ({"M": 4096, "N": 4095, "K": 512}, "mma"), ({"M": 4096, "N": 4096, "K": 511}, "mma")])
def test_warpgroups_get_large_and_aligned_shapes(dims: dict[str, int], family: str) -> None:
    configs, root = wgmma_heuristics.default(dense("M", "N", "K"), H100)
    assert configs[chosen(root, dims)].family == family


def test_families_by_element_and_target() -> None:
    host = HostLimits()
    assert families_of(dense("M", 8, 8), host)[0] == "host_matmul"
    assert families_of(dense("M", 8, 8), A100) == ("mma", "simt", "gemv", "gpu_pointwise")
    assert families_of(dense("M", 8, 8, "f8E5M2"), A100) == ("simt", "gpu_pointwise")
    assert families_of(dense("M", 8, 8, "f8E5M2"), GpuLimits.of("sm_89"))[0] == "mma"
    assert families_of(dense("M", 8, 8, "bf16"), H100) == ("wgmma", "mma", "simt", "gemv", "gpu_pointwise")
    assert families_of(dense("M", 8, 8, "f32"), H100) == ("simt", "gemv", "gpu_pointwise")
