"""PTX and machine code of few rows and few tiles: wide loads, all of a step on their way before its products, no spills."""

from __future__ import annotations

import re

import pytest
from gpu_codegen.test_tensor_cores import NN, NT, clean, needs_ptxas, ptx_of
from gpu_workloads import Case, contraction
from tensor_core_workloads import product

from tilewright.compiler.builder.ptxas import assemble_ptx, disassembly, find_disassembler
from tools.bench.gpu.sass import read_listings

LONG, SQUARE = {"n": 768, "k": 3072}, {"n": 4096, "k": 4096}
# the case, a configuration that is a default of it, its architecture, loads of weights and of rows in a step
GEMV: dict[str, tuple[Case, str, str, int]] = {
    "few rows": (product(NT, sizes=LONG), "gemv{rows=8 unroll=3 vec=8 cluster-k=8 tensor=true}", "sm_90a", 12 + 3),
    "all rows": (product(NT, sizes=LONG), "gemv{rows=16 unroll=3 vec=8 cluster-k=8 tensor=true}", "sm_90a", 12 + 6),
    "along columns": (product(NN, sizes=LONG),
                      "gemv{rows=16 bn=64 unroll=3 vec=8 cluster-k=8 tensor=true min-blocks-per-sm=3}", "sm_90a", 24 + 6),
    "oldest": (product(NT, sizes=LONG), "gemv{rows=16 unroll=3 vec=8 split-k=4 tensor=true}", "sm_80", 12 + 6),
    "one row of f32": (contraction(NT, sizes=SQUARE), "gemv{cluster-k=4}", "sm_90a", 8 + 2),
    "rows of f32": (contraction(NN, sizes=SQUARE), "gemv{rows=16 warps=2 cluster-k=4 min-blocks-per-sm=3}", "sm_90a", 8 + 16),
}


@pytest.mark.sampled(2)
@needs_ptxas
@pytest.mark.parametrize("name", GEMV)
def test_weights_come_by_whole_loads_that_are_under_way_together(name: str) -> None:
    case, config, arch, loads = GEMV[name]
    text = ptx_of(case, config, arch)
    report = assemble_ptx(text, arch)
    clean(report)
    assert not re.search(r"ld\.global(\.nc)?\.(b16|b32|v2)", text.split(".entry kernel_sum")[0])
    if find_disassembler():
        assert together([i.opcode for i in read_listings(disassembly(report.cubin))["kernel"].code]) >= min(loads, 8)


def together(code: list[str]) -> int:
    """The longest run of 16-byte loads without a product between them."""
    most = run = 0
    for x in code:
        run = run + 1 if "LDG.E.128" in x else 0 if re.match(r"(HMMA|FFMA)", x) else run
        most = max(most, run)
    return most


@needs_ptxas
def test_a_cluster_adds_up_without_a_second_launch() -> None:
    config = "mma{min-blocks-per-sm=2 cluster-k=8}"
    text = ptx_of(product(NN, sizes=LONG, out="f16"), config, "sm_90a")
    clean(assemble_ptx(text, "sm_90a"))
    assert len(re.findall(r"ld\.shared::cluster\.v4\.b32", text)) == 16
    assert re.findall(r"barrier\.cluster\.(\w+)", text) == ["arrive", "wait"] * 2
    assert "kernel_sum" not in text and ".reqnctapercluster 8" in text
