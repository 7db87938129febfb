"""PTX of the tensor-core families: no spills, no serialised products, the instructions that their configurations ask for."""

from __future__ import annotations

import itertools
import re

import pytest
from attention_workloads import attention
from gpu_workloads import Case
from hand_workloads import with_loops
from product_rows_workloads import product_rows
from tensor_core_workloads import convolution, product

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptxas import EntryReport, PtxasReport, assemble_ptx, disassembly, find_disassembler, find_tool
from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.gpu import mma_heuristics
from tilewright.passes.spaces.gpu.mma_rows import MmaRowsConfig
from tilewright.passes.spaces.gpu.wgmma import REGISTERS
from tilewright.passes.spaces.gpu.wgmma_attention import COPIER, MULTIPLIER
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType
from tools.bench.gpu.sass import read_listings

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed: pip install nvidia-cuda-nvcc")
NN, NT, TN, TT = "m k,k n,m n", "m k,n k,m n", "k m,k n,m n", "k m,n k,m n"
MMA = {
    "few rows": (product(NN), "mma{bm=16 bn=64 bk=64 wm=16 wn=16 stages=4}"),
    "fewest rows": (product(NN), "mma{bm=8 bn=64 bk=64 wm=8 wn=16 stages=4 swapped=true}"),
    "fewest in parts": (product(NT, epilogue="tanh"), "mma{bm=8 bn=64 bk=64 wm=8 wn=16 stages=4 split-k=4 swapped=true}"),
    "middle": (product(NN, epilogue="tanh", out="f16"), "mma"),
    "large": (product(NN, "bf16", epilogue="relu"), "mma{bm=128 bn=128 bk=32 wm=64 wn=32 stages=4}"),
    "large nt": (product(NT), "mma{bm=128 bn=128 bk=32 wm=64 wn=32 stages=4 staged=false}"),
    "large tn": (product(TN), "mma{bm=128 bn=128 bk=32 wm=64 wn=32 stages=4 split-k=4}"),
    "largest": (product(NN), "mma{bm=128 bn=256 bk=32 wm=64 wn=64 stages=3}"),
    "single": (product(NN), "mma{bk=32 stages=2 vec=1}"),
    "any": (product(TN, epilogue="tanh"), "mma{bk=32 stages=2 vec=1 index=64}"),
    "computed": (product(NN, computed=True), "mma{min-blocks-per-sm=2}"),
    "batch": (product("b m k,b n k,b m n"), "mma"),
    "convolution": (convolution(1, 1, 64, 64, 56), "mma"),
    "s8": (product(NT, "i8"), "mma{bk=128 vec=16}"),
    "tf32": (product(NN, "f32"), "mma{bk=32 vec=4 tf32=true}"),
}
BYTES = {
    "nt": (product(NT, "f8E4M3FN"), "mma{bk=128 vec=16 min-blocks-per-sm=2}"),
    "nn": (product(NN, "f8E5M2"), "mma{bk=128 vec=16 min-blocks-per-sm=2}"),
    "tn": (product(TN, "f8E4M3FN"), "mma{bk=64 stages=2 vec=16 min-blocks-per-sm=2}"),
    "fewest rows": (product(NT, "f8E5M2"), "mma{bm=8 bn=64 wm=8 wn=16 bk=128 stages=4 vec=16 swapped=true}"),
    "single": (product(NN, "f8E4M3FN"), "mma{bk=32 stages=2 vec=1 min-blocks-per-sm=2}"),
    "any": (product(NT, "f8E5M2"), "mma{bk=32 stages=2 vec=1 index=64 min-blocks-per-sm=2}"),
}
DEFAULTS = [(NN, "f8E4M3FN", "sm_89"), (TN, "f8E5M2", "sm_89"), (NT, "f8E4M3FN", "sm_90a"), (TN, "f8E4M3FN", "sm_90a"),
            (TN, "i8", "sm_80"), (TT, "f8E5M2", "sm_90a")]
ATTENTION = {
    "few": (attention(out="f16"), "gpu_attention{bm=16 min-blocks-per-sm=2}"),
    "parts": (attention(out="f16"), "gpu_attention{bm=16 min-blocks-per-sm=2 split-kv=8}"),
    "middle": (attention(mask="causal", out="f16"), "gpu_attention{min-blocks-per-sm=2}"),
    "large": (attention(mask="causal", out="f16"), "gpu_attention{bm=128 min-blocks-per-sm=2}"),
    "tall": (attention(out="f16"), "gpu_attention{bm=128 wm=32 bn=32 min-blocks-per-sm=1}"),
    "masked": (attention(mask="row", out="f16"), "gpu_attention{bm=128 min-blocks-per-sm=1}"),
    "head 128": (attention(depth=128, columns=128, out="f16"), "gpu_attention{bm=128 min-blocks-per-sm=1}"),
    "query 256": (attention("b m d,b n d,b n e,b m e", "bf16", 256, 128),
                  "gpu_attention{bn=32 queries-in-registers=false min-blocks-per-sm=1}"),
    "single": (attention(out="f16"), "gpu_attention{bm=128 bn=32 vec=1 min-blocks-per-sm=1}"),
    "any": (attention(mask="causal"), "gpu_attention{bm=128 bn=32 vec=1 index=64 min-blocks-per-sm=1}"),
    "any, head 128": (attention(depth=128, columns=128),
                      "gpu_attention{bm=128 bn=16 vec=1 index=64 queries-in-registers=false min-blocks-per-sm=1}"),
    "tf32": (attention(element="f32", mask="causal"), "gpu_attention{vec=4 tf32=true min-blocks-per-sm=1}"),
}
MMA_ROWS = {
    "held": (product_rows("layernorm", 768, out="f16", kept="f16"), "mma_rows{lanes=4 vectors-in-registers=8}"),
    "softmax": (product_rows("softmax", 256, "bf16", "bf16"), "mma_rows{bm=64 stages=2 lanes=8 vectors-in-registers=1}"),
    "read again": (product_rows("layernorm", 1030), "mma_rows{bm=16 wm=16 stages=2 lanes=2}"),
    "tf32": (product_rows("layernorm", 512, "f32"), "mma_rows{bk=32 vec=4 tf32=true vectors-in-registers=4}"),
    "any": (product_rows("softmax", 100), "mma_rows{index=64 bm=16 bk=32 wm=16 stages=2 vec=1 lanes=1 vectors-in-registers=4}"),
}
WGMMA_ATTENTION = {
    "head 64": (attention(mask="causal", out="f16"), "wgmma_attention"),
    "head 80": (attention(element="bf16", depth=80, columns=80, mask="row", out="bf16"), "wgmma_attention"),
    "head 128": (attention(depth=128, columns=128, out="f16"), "wgmma_attention"),
    "head 256": (attention(depth=256, columns=256, out="f16"), "wgmma_attention{bn=64}"),
    "three": (attention(out="f16"), "wgmma_attention{consumers=3 blocks=132 pingpong=true copied=true}"),
    "tiles of a block": (attention(mask="causal", out="f16"), "wgmma_attention{stages=4 blocks=132 pingpong=true copied=true}"),
    "tiles, head 128": (attention(depth=128, columns=128, out="f16"), "wgmma_attention{blocks=132 pingpong=true copied=true}"),
    "one, in parts": (attention(depth=128, columns=128), "wgmma_attention{consumers=1 split-kv=4}"),
}
WGMMA = {
    "one consumer": (product(NN), "wgmma{bm=64 bn=128 stages=6 consumers=1}"),
    "two": (product(NN, "bf16"), "wgmma{bm=128 bn=128 stages=5}"),
    "two wide": (product(NT, epilogue="tanh"), "wgmma{bm=128 bn=256 stages=4}"),
    "two tall": (product(TN, out="f16"), "wgmma{bm=256 bn=128 stages=4}"),
    "three": (product(NN, epilogue="relu"), "wgmma{bm=192 bn=128 stages=4 consumers=3}"),
    "batch": (product("b m k,b n k,b m n"), "wgmma"),
    "e4m3": (product(NT, "f8E4M3FN"), "wgmma"),
    "e5m2": (product(NT, "f8E5M2"), "wgmma{bm=64 bn=64 consumers=1}"),
    "s8": (product(NT, "i8"), "wgmma"),
    "tf32": (product(NT, "f32"), "wgmma{tf32=true}"),
    "parts": (product(NT, out="f16", epilogue="tanh"), "wgmma{bm=128 bn=128 stages=4 blocks=0 cluster-k=8}"),
    "copied": (product(NN, out="bf16", epilogue="relu"), "wgmma{bm=128 bn=256 stages=3 copied=true}"),
    "waves": (product(NT, out="f16"), "wgmma{bm=192 bn=192 stages=4 consumers=3 copied=true}"),
    "turns": (product(NN, out="f16"), "wgmma{stages=5 copied=true pingpong=true cluster-m=2}"),
    "turns, f32": (product(NT, epilogue="relu"), "wgmma{bm=64 bn=256 copied=true pingpong=true}"),
    "split": (product(NN), "wgmma{blocks=0 split-k=4}"),
    "steps shared evenly": (product(NN, out="f16", epilogue="gelu"), "wgmma{bn=256 copied=true cluster-m=2 streamed=true}"),
    "steps shared evenly, three": (product(NT, out="f16"), "wgmma{bm=192 bn=192 consumers=3 copied=true streamed=true}"),
    "steps shared evenly, small": (product(NT, "bf16"), "wgmma{bm=64 consumers=1 stages=3 deep=2 streamed=true}"),
    "cluster below": (product(NT, out="f16"), "wgmma{bm=128 bn=256 stages=4 cluster-m=2}"),
    "cluster beside": (product(NN, epilogue="relu"), "wgmma{bm=256 bn=128 stages=3 cluster-n=2 copied=true}"),
    "cluster of four": (product(TN), "wgmma{bm=192 bn=128 stages=4 consumers=3 cluster-m=4}"),
}


def ptx_of(case: Case, config: str, arch: str) -> str:
    return build_kernel(case.text, "", "kernel", config, Target.parse(f"cuda:{arch}")).code.decode()


def clean(report: PtxasReport) -> EntryReport:
    assert {entry: r.spills for entry, r in report.entries.items()} == dict.fromkeys(report.entries, 0)
    assert report.warnings == ()
    return report.entries["kernel"]


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.parametrize("name,arch", list(zip(MMA, itertools.cycle(["sm_80", "sm_90a"]))))
def test_mma_has_no_spills(name: str, arch: str) -> None:
    case, config = MMA[name]
    entry = clean(assemble_ptx(ptx_of(case, config, arch), arch))
    assert entry.registers <= 255
    assert entry.stack == 0


@pytest.mark.sampled(2)
@needs_ptxas
@pytest.mark.parametrize("name,arch", list(zip(MMA_ROWS, itertools.cycle(["sm_80", "sm_90a"]))))
def test_products_with_the_work_on_their_rows_have_no_spills(name: str, arch: str) -> None:
    case, config = MMA_ROWS[name]
    built = build_kernel(case.text, "", "kernel", config, Target.parse(f"cuda:{arch}"))
    entry = clean(assemble_ptx(built.code.decode(), arch))
    parsed = parse_config(config)
    assert isinstance(parsed, MmaRowsConfig) and entry.stack == 0
    assert entry.registers <= GpuLimits.of(arch).registers_each(parsed.threads)
    rows = case.results[0].dims[-1]
    kept = 2 if name == "held" else 4
    most = GpuLimits.of(arch).shared_bytes
    assert built.kernel.shared_bytes == parsed.shared_bytes(4 if name == "tf32" else 2, kept, rows) <= most


@pytest.mark.sampled(2)
@needs_ptxas
@pytest.mark.parametrize("name,arch", list(zip(BYTES, itertools.cycle(["sm_89", "sm_90a"]))))
def test_products_of_8_bit_floats_have_no_spills(name: str, arch: str) -> None:
    case, config = BYTES[name]
    text = ptx_of(case, config, arch)
    assert ".version 8.4" in text
    assert re.search(r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.(e4m3\.e4m3|e5m2\.e5m2)\.f32", text)
    assert clean(assemble_ptx(text, arch)).registers <= 255


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.parametrize("maps,element,arch", DEFAULTS)
def test_defaults_of_bytes_have_no_spills(maps: str, element: str, arch: str) -> None:
    """Whichever way their operands lie: fragments that are gathered byte by byte take registers."""
    case = product(maps, element)
    for config in mma_heuristics.default(workload_of(case, maps), GpuLimits.of(arch))[0]:
        if config.vec > 1:
            clean(assemble_ptx(ptx_of(case, config_text(config), arch), arch))


def workload_of(case: Case, maps: str) -> Workload:
    """What the defaults of a contraction of m, n and k see of it."""
    *inputs, result = (Operand(DType(t.element), tuple(map(Expr.dim, t.dims)), 1) for t in (*case.inputs, *case.results))
    loops = tuple(Loop(x, Expr.dim(x.upper())) for x in "mnk")
    none = Expr.of(0)
    found = Workload(maps, maps, Kind.CONTRACTION, case.text, ("M", "N", "K"), tuple(inputs), (result,), loops, none, none)
    return with_loops(found, maps)


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.parametrize("name,arch", list(zip(ATTENTION, itertools.cycle(["sm_80", "sm_90a"]))))
def test_attention_has_no_spills(name: str, arch: str) -> None:
    case, config = ATTENTION[name]
    entry = clean(assemble_ptx(ptx_of(case, config, arch), arch))
    assert entry.registers <= 255
    assert entry.stack == 0


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.parametrize("name", WGMMA)
def test_wgmma_has_no_spills_and_its_registers_suffice(name: str) -> None:
    case, config = WGMMA[name]
    report = assemble_ptx(ptx_of(case, config, "sm_90a"), "sm_90a")
    entry = clean(report)
    assert not any("C7510" in w or "serialized" in w for w in report.warnings)
    consumers = parse_config(config).consumers  # type: ignore[attr-defined]
    copies, multiplies = REGISTERS.get(consumers, (entry.registers, entry.registers))
    assert copies + consumers * multiplies <= entry.registers * (consumers + 1)
    assert entry.registers <= multiplies


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.parametrize("name", WGMMA_ATTENTION)
def test_attention_of_warpgroups_has_no_spills(name: str) -> None:
    case, config = WGMMA_ATTENTION[name]
    entry = clean(assemble_ptx(ptx_of(case, config, "sm_90a"), "sm_90a"))
    consumers = parse_config(config).consumers  # type: ignore[attr-defined]
    copies, multiplies = COPIER[consumers] or entry.registers, MULTIPLIER[consumers]
    assert copies + consumers * multiplies <= entry.registers * (consumers + 1) or consumers == 1
    assert entry.registers <= multiplies


@pytest.mark.skipif(find_tool("ptxas") is None or find_disassembler() is None, reason="ptxas or nvdisasm is not installed")
def test_a_step_of_attention_by_warpgroups() -> None:
    """Per warp and step of 128 keys: 16 products, an exponential for each score and two factors; those before the wait for the
    products with the values; nothing waits for all of memory."""
    code = opcodes(ptx_of(*WGMMA_ATTENTION["head 128"], "sm_90a"), "sm_90a")
    assert not [x for x in code if x.startswith(("MEMBAR", "LDL", "STL"))]
    at = [i for i, x in enumerate(code) if x.startswith("WARPGROUP.DEPBAR")]
    powers = [sum(x.startswith("MUFU.EX2") for x in code[a:b]) for a, b in itertools.pairwise(at)]
    assert powers[1:] == [128 // 2 + 2, 0]  # between the two waits of a step, and up to that behind the last one
    assert sum(x.startswith("HGMMA") for x in code) == 32


def test_fragments_come_by_ldmatrix_and_copies_are_wide() -> None:
    text = ptx_of(product(NN), "mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=2}", "sm_80")
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16", text)) == 2
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16", text)) == 2
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32", text)) == 4
    assert "cp.async.cg" in text
    assert "cp.async.ca" not in text
    assert len(re.findall(r"ld\.shared\.b16", text)) == 0


def test_unaligned_operands_go_through_registers() -> None:
    text = ptx_of(product(NN), "mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=2 vec=1}", "sm_80")
    assert not re.search(r"cp\.async\.c[ag]", text)
    assert "st.shared" in text


def test_products_of_a_warpgroup_read_tiles_that_copies_bring() -> None:
    text = ptx_of(product(NN), "wgmma{bm=128 bn=128 stages=4}", "sm_90a")
    assert len(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.f16\.f16", text)) == 4
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global", text)) == 3  # one of A, two halves of B
    assert re.search(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40", text)
    assert re.search(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+232", text)
    assert len(re.findall(r"\.param \.align 64 \.b8 kernel_param_\d+\[128\]", text)) == 2


def opcodes(ptx: str, arch: str) -> list[str]:
    """Of the SASS of a kernel, with their modifiers."""
    return [i.opcode for i in read_listings(disassembly(assemble_ptx(ptx, arch).cubin))["kernel"].code]


def test_a_stage_is_given_back_without_a_fence_of_memory() -> None:
    """What a release orders costs a fence of all memory in each step: only the initialisation of mbarriers is told of."""
    text = ptx_of(product(NT), "wgmma{bm=128 bn=256 stages=4 cluster-m=2}", "sm_90a")
    assert len(re.findall(r"mbarrier\.arrive\.shared::cluster\.b64", text)) == 2
    assert not re.search(r"release\.cluster(?!;)|arrive\.release", text)
    assert re.findall(r"barrier\.cluster\.(\w+(?:\.\w+)?)", text) == ["arrive.relaxed", "wait"]
    assert "%nctaid.x" in text and not re.search(r"\b(66|132);", text)
    if find_tool("ptxas") and find_disassembler():
        assert not any(x.startswith("MEMBAR") for x in opcodes(text, "sm_90a"))


@pytest.mark.parametrize("out,divisions", [("f16", {"div.full.f32"}), ("", {"div.rn.f32"})])
def test_what_is_done_to_sums_has_no_branches(out: str, divisions: set[str]) -> None:
    """A rounded division calls a subroutine for what lies near the ends of f32: ptxas took 10 s over one for each sum, and twice
    the instructions. Those of erf never come near them; those of the model are exact only where the result is."""
    text = ptx_of(product(NT, out=out, epilogue="gelu"), "wgmma{bm=64 bn=64 consumers=1 stages=4}", "sm_90a")
    assert set(re.findall(r"div\.\w+\.f32", text)) == divisions
    assert text.count("rcp.approx.ftz.f32") == text.count(*divisions) > 0
    if out and find_tool("ptxas") and find_disassembler():
        assert not any(x.startswith(("CALL", "FCHK")) for x in opcodes(text, "sm_90a"))


def test_results_leave_warpgroup_by_warpgroup() -> None:
    text = ptx_of(*WGMMA["turns"], "sm_90a")
    assert len(re.findall(r"wgmma\.mma_async", text)) == 2 * 8  # in code of its own each warpgroup: 2 rows of 64 by 4 of k
    assert len(re.findall(r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16", text)) == 2 * 4 * 4
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.global", text)) == 2 * 4
    assert sorted(re.findall(r"bar\.(?:sync|arrive)\s+\d, 256", text)) == [
        "bar.arrive \t1, 256", "bar.arrive \t2, 256", "bar.sync \t1, 256", "bar.sync \t2, 256"]


def test_sums_of_8_bit_floats_are_promoted_after_each_step() -> None:
    text = ptx_of(product(NT, "f8E4M3FN"), "wgmma{bm=64 bn=64 consumers=1}", "sm_90a")
    assert re.findall(r"setp\.ne\.b32 p, (\d), 0;", text) == ["0", "1", "1", "1"]  # 128 of k: the first replaces what was there
    assert len(re.findall(r"add\.(?:rn\.)?f32", text)) == 32


@needs_ptxas
@pytest.mark.skipif(find_disassembler() is None, reason="neither nvdisasm nor cuobjdump is installed")
@pytest.mark.parametrize("name", ["one consumer", "cluster below", "waves", "turns", "steps shared evenly"])
def test_main_loops_leave_addresses_to_the_uniform_pipe(name: str) -> None:
    case, config = WGMMA[name]
    code = opcodes(ptx_of(case, config, "sm_90a"), "sm_90a")
    first = next(i for i, c in enumerate(code) if "GMMA" in c)
    found = code[first - 20 : first + code[first:].index("WARPGROUP.DEPBAR.LE") + 8]
    assert sum("GMMA" in c for c in found) >= 4
    assert not any(c.startswith(("R2UR", "MEMBAR", "IADD3.X")) for c in found)


@pytest.mark.skipif(find_disassembler() is None, reason="neither nvdisasm nor cuobjdump is installed")
def test_loops_are_of_tensor_instructions() -> None:
    code = opcodes(ptx_of(*MMA["largest"], "sm_80"), "sm_80")
    assert sum(x.startswith("HMMA") for x in code) >= 64
    code = opcodes(ptx_of(*WGMMA["two"], "sm_90a"), "sm_90a")
    assert sum(x.startswith("HGMMA") for x in code) == 4
