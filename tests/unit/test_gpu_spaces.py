"""Rules, spaces and defaults of the GPU families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from gpu_workloads import contraction, rows
from hand_workloads import with_loops

from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.builder.ptx import gpu_limits
from tilewright.compiler.tuning.dispatch_tables import default_tables
from tilewright.passes.spaces.family_registry import config_text, current_text, parse_config, space_of
from tilewright.passes.spaces.gpu import gemv, gpu_pointwise, gpu_rows, gpu_rows_heuristics, simt, simt_heuristics
from tilewright.passes.spaces.gpu.gpu_pointwise import GpuPointwiseConfig
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.passes.spaces.gpu.simt import SimtConfig
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import DispatchTable, leaves
from tilewright.runtime.program.kernel import layout
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType

A100 = GpuLimits.of("sm_80")
Size = int | str


def size(d: Size) -> Expr:
    return Expr.of(d) if isinstance(d, int) else Expr.dim(d)


def dense(m: Size, n: Size, k: Size, dtype: DType = DType.F32) -> Workload:
    shapes = ((m, k), (k, n), (m, n))
    a, b, c = (Operand(dtype, tuple(map(size, s)), 1) for s in shapes)
    loops = (Loop("m", size(m)), Loop("n", size(n)), Loop("k", size(k)))
    named = tuple(dict.fromkeys(d for s in shapes for d in s if isinstance(d, str)))
    found = Workload("dense", "dense", Kind.CONTRACTION, "", named, (a, b), (c,), loops, Expr.of(0), Expr.of(0))
    return with_loops(found, "m k,k n,m n")


def softmax(m: Size, n: Size, unit: int = 1) -> Workload:
    x = Operand(DType.F32, (size(m), size(n)), unit)
    loops = (Loop("row", size(m)), Loop("col", size(n)))
    named = tuple(d for d in (m, n) if isinstance(d, str))
    found = Workload("softmax", "softmax", Kind.ROWS, "", named, (x,), (x,), loops, Expr.of(0), Expr.of(0))
    return with_loops(found, "row col,row col")


@pytest.mark.parametrize("config,rule", [
    (SimtConfig(), None), (SimtConfig(bm=48), "power-of-two"), (SimtConfig(bm=8, tm=16), "thread-in-block"),
    (SimtConfig(fragment_k=32), "fragment-in-step"), (SimtConfig(min_blocks_per_sm=16), "blocks-fit"),
    (SimtConfig(stages=1), "stages"),
    (SimtConfig(vec=8), "vector-fits"), (SimtConfig(bm=256, bn=256, tm=16, tn=16), "register-budget"),
    (SimtConfig(bm=256, bn=256, bk=32, tm=8, tn=8, stages=4, index=64), "register-budget"),
    (SimtConfig(bm=256, bn=256, bk=32, tm=8, tn=16, stages=4), "register-budget"),
    (SimtConfig(bm=256, bn=64, bk=32, tm=8, tn=4, stages=4), "shared-budget"), (SimtConfig(group_m=0), "group-positive"),
    (SimtConfig(bm=16, bn=16), "threads-whole-warps"), (SimtConfig(index=16), "index-bits")])
def test_rules_of_simt(config: SimtConfig, rule: str | None) -> None:
    reason = simt.why_invalid(config, dense("M", 768, 768), A100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


@pytest.mark.parametrize("config,rule", [
    (GpuRowsConfig(), None), (GpuRowsConfig(vec=3), "power-of-two"), (GpuRowsConfig(threads=64, per_row=128), "rows-in-block"),
    (GpuRowsConfig(vectors_in_registers=2), "unroll-loops"),
    (GpuRowsConfig(vectors_in_registers=32, unroll=1), "register-budget"),
    (GpuRowsConfig(vectors_in_registers=1, unroll=1), "row-fits"), (GpuRowsConfig(threads=2048), "threads-whole-warps"),
    (GpuRowsConfig(blocks=3), "power-of-two"), (GpuRowsConfig(vectors_in_registers=2, unroll=1, blocks=4), "blocks-share"),
    (GpuRowsConfig(blocks=64), "blocks-join"), (GpuRowsConfig(blocks=8), "blocks-filled"), (GpuRowsConfig(blocks=4), None)])
def test_rules_of_rows(config: GpuRowsConfig, rule: str | None) -> None:
    reason = gpu_rows.why_invalid(config, softmax("M", 768), A100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


@pytest.mark.parametrize("config,rule", [
    (GpuPointwiseConfig(), None), (GpuPointwiseConfig(vec=3), "vector-power-of-two"), (GpuPointwiseConfig(vec=16), "vector-fits"),
    (GpuPointwiseConfig(chunks=0), "chunks-positive"), (GpuPointwiseConfig(1, 1, 64, 48), "tile-whole-warps"),
    (GpuPointwiseConfig(4, 1, 256, 32), "tile-elements"), (GpuPointwiseConfig(threads=100), "threads-whole-warps")])
def test_rules_of_pointwise(config: GpuPointwiseConfig, rule: str | None) -> None:
    reason = gpu_pointwise.why_invalid(config, softmax("M", 768), A100)
    assert reason is None if rule is None else reason is not None and reason.startswith(rule), reason


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("work", [dense("M", 2304, 768), dense(1, 10, "M"), dense("M", "M", 64, DType.F64),
                                  dense(5, 7, 3, DType.F16)])
def test_defaults_of_simt_are_legal_and_in_the_tree(work: Workload, arch: str) -> None:
    configs, root = simt_heuristics.default(work, GpuLimits.of(arch))
    assert [space_of(c.family).why_invalid(c, work, GpuLimits.of(arch)) for c in configs] == [None] * len(configs)
    assert {leaf.kernel for leaf in leaves(root)} <= set(range(len(configs)))
    assert isinstance(configs[-1], SimtConfig) and configs[-1].vec == 1 and configs[-1].index == 64


@pytest.mark.parametrize("work", [softmax("M", 768), softmax("M", "N"), softmax(4, 50000), softmax("M", 1 << 20),
                                  softmax(1, "N"), softmax("M", 16, unit=0)])
def test_defaults_of_rows_are_legal_and_in_the_tree(work: Workload) -> None:
    configs, root = gpu_rows_heuristics.default(work, A100)
    assert [gpu_rows.why_invalid(c, work, A100) for c in configs] == [None] * len(configs)
    assert {leaf.kernel for leaf in leaves(root)} <= set(range(len(configs)))
    assert configs[0].per_row == 1 if work.inputs[0].unit_axis == 0 else configs[0].per_row >= 32


@pytest.mark.parametrize("family,work", [(simt, dense("M", 768, 768)), (gpu_rows, softmax("M", 768)),
                                         (gpu_pointwise, softmax("M", 768)), (gemv, dense("M", 768, 768))])
def test_spaces_are_legal_and_have_no_doubles(family: object, work: Workload) -> None:
    found = list(family.space(work, A100))  # type: ignore[attr-defined]
    assert len(found) == len(set(found)) > 20
    assert all(family.why_invalid(c, work, A100) is None for c in found[:: len(found) // 20])  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["simt", "simt{index=64 vec=1 transpose-on-copy=true}",
                                  "gpu_rows{vectors-in-registers=2 unroll=1}", "gpu_pointwise{tile=32 vec=1}"])
def test_text_of_a_configuration(text: str) -> None:
    assert parse_config(config_text(parse_config(text))) == parse_config(text)


@pytest.mark.parametrize("old,new", [
    ("simt{bm=16 turn=true together=1 ahead=2 split=2 group=4}",
     "simt{bm=16 transpose-on-copy=true fragment-k=2 min-blocks-per-sm=1 split-k=2 group-m=4}"),
    ("mma{together=2 split=4 group=1}", "mma{min-blocks-per-sm=2 split-k=4 group-m=1}"),
    ("wgmma{group=1 split=2 down=2}", "wgmma{group-m=1 split-k=2 cluster-m=2}"), ("wgmma{across=4}", "wgmma{cluster-n=4}"),
    ("gpu_attention{held=false together=1 split=8}",
     "gpu_attention{queries-in-registers=false min-blocks-per-sm=1 split-kv=8}"),
    ("gpu_rows{held=2 unroll=1}", "gpu_rows{vectors-in-registers=2 unroll=1}"),
    ("host_rows{held=true vectors=1}", "host_rows{held=true vectors=1}"), ("simt{bogus=3}", "simt{bogus=3}")])
def test_former_option_names_are_read(old: str, new: str) -> None:
    """Of logs, archives and artifacts that older versions wrote. A text that no family reads stays as it is."""
    assert current_text(old) == new
    assert current_text(new) == new


def built(work: Workload) -> DispatchTable:
    target = Target.parse("emulator:sm_80")
    return default_tables([work], gpu_limits(target), LocalBuilder(target)).tables[0]


def reached(dims: dict[str, int], table: DispatchTable, strides: Sequence[tuple[int, ...]]) -> str:
    """The configuration that a table picks."""
    values = dict(dims)
    for number, s in enumerate(strides):
        values |= layout(number, s)
    return table.kernels[table.select(values).kernel].config


def test_kernels_are_reached_only_where_their_guards_hold() -> None:
    table = built(replace(dense("M", "N", "K"), ir=contraction("m k,k n,m n").text))
    assert reached({"M": 100, "N": 64, "K": 32}, table, [(32, 1), (64, 1), (64, 1)]) == "simt"
    assert reached({"M": 8, "N": 64, "K": 32}, table, [(32, 1), (64, 1), (64, 1)]).startswith("gemv{rows=8")
    assert reached({"M": 20, "N": 64, "K": 32}, table, [(32, 1), (64, 1), (64, 1)]).startswith("simt{bm=16")
    single = reached({"M": 100, "N": 63, "K": 32}, table, [(32, 1), (63, 1), (63, 1)])
    assert "vec=1" in single and "index" not in single
    assert "index=64" in reached({"M": 100, "N": 64, "K": 32}, table, [(33, 1), (64, 1), (64, 1)])


def test_rows_of_any_length_have_a_kernel() -> None:
    table = built(replace(softmax("M", "N"), ir=rows("softmax").text))
    picked = {n: reached({"M": 3, "N": n}, table, [(n, 1), (n, 1)]) for n in (8, 30, 200, 201, 4000, 40000, 100_000, 100_001)}
    chosen = {n: parse_config(text) for n, text in picked.items()}
    assert chosen[8] == chosen[30] == GpuRowsConfig(128, 32, 1, 1, 1)
    assert chosen[200] == GpuRowsConfig(128, 32, 4, 2, 1)
    assert chosen[201] == GpuRowsConfig(128, 32, 1, 8, 1)
    assert chosen[4000] == GpuRowsConfig(256, 256, 4, 8, 1)
    assert chosen[40000] == GpuRowsConfig(512, 512, 4, 0, 2)
    assert chosen[100_000] == chosen[100_001] == GpuRowsConfig(512, 512, 1, 0, 4, blocks=16)
    assert parse_config(reached({"M": 1000, "N": 100_000}, table, [(100_000, 1)] * 2)) == GpuRowsConfig(512, 512, 4, 0, 2)
