"""PTX of every GPU family: ptxas takes it for every architecture without spills, and it does what its configuration says."""

from __future__ import annotations

import itertools
import re

import pytest
from gpu_workloads import (
    RELU,
    TANH,
    Case,
    contraction,
    convolution,
    gather,
    over_operands,
    pointwise,
    rows,
    selective_scan,
    transpose,
)
from tensor_core_workloads import product

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptx import check_arch, to_ptx
from tilewright.compiler.builder.ptxas import assemble_ptx, disassembly, find_disassembler, find_tool
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.target import Target
from tools.bench.gpu.kernels import longest_loop, opcode_class, sass_lines
from tools.bench.gpu.sass import read_listings

needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed: pip install nvidia-cuda-nvcc")

ERF = "%s = arith.mulf %x0, %x1 : f32\n %t = math.erf %s : f32\n linalg.yield %t : f32"
CASES = {
    "simt nn": (contraction("m k,k n,m n"), "simt"),
    "simt nn large": (contraction("m k,k n,m n"), "simt{bm=128 bn=128 tm=8 tn=8}"),
    "simt nn bounded": (contraction("m k,k n,m n"), "simt{bm=128 bn=128 tm=8 tn=8 min-blocks-per-sm=2}"),
    "simt nt large": (contraction("m k,n k,m n"), "simt{bm=128 bn=128 tm=8 tn=8}"),
    "simt tn large": (contraction("k m,k n,m n"), "simt{bm=128 bn=128 tm=8 tn=8}"),
    "simt few rows": (contraction("m k,k n,m n"), "simt{bm=16 bk=32 tm=2}"),
    "simt any": (contraction("m k,k n,m n"), "simt{vec=1 transpose-on-copy=true index=64}"),
    "simt batch": (contraction("b m k,b n k,b m n"), "simt"),
    "simt epilogue": (contraction("m k,k n,m n", epilogue=RELU), "simt{bm=128 bn=128 tm=8 tn=8}"),
    "simt staged": (contraction("m k,k n,m n", epilogue=TANH), "simt{bm=128 bn=128 tm=8 tn=8}"),
    "simt split": (contraction("m k,k n,m n"), "simt{split-k=4}"),
    "simt nhwc": (convolution("nhwc", 1, 1, 64, 64, 56), "simt"),
    "simt nchw": (convolution("nchw", 1, 1, 64, 64, 56), "simt{min-blocks-per-sm=1}"),
    "simt f64": (contraction("m k,k n,m n", "f64"), "simt{vec=2}"),
    "simt f16": (contraction("m k,k n,m n", "f16"), "simt"),
    "simt bf16": (contraction("m k,k n,m n", "bf16"), "simt"),
    "simt computed": (contraction("m k,n k,m n", computed="ab"), "simt"),
    "simt i8": (product("m k,k n,m n", "i8"), "simt{vec=4}"),
    "simt f8": (product("m k,k n,m n", "f8E4M3FN"), "simt{vec=4}"),
    "simt i32": (contraction("m k,k n,m n", "i32"), "simt"),
    "rows softmax": (rows("softmax"), "gpu_rows{vectors-in-registers=8 unroll=1}"),
    "rows softmax block": (rows("softmax"), "gpu_rows{threads=256 per_row=256 vectors-in-registers=8 unroll=1}"),
    "rows softmax long": (rows("softmax"), "gpu_rows{threads=512 per_row=512}"),
    "rows softmax shared": (rows("softmax"), "gpu_rows{threads=512 per_row=512 vec=1 unroll=4 blocks=16}"),
    "rows layernorm shared": (rows("layernorm"), "gpu_rows{threads=256 per_row=256 blocks=4}"),
    "rows sum of columns shared": (rows("sum0"), "gpu_rows{per_row=1 vec=1 unroll=4 blocks=8}"),
    "rows softmax f16": (rows("softmax", element="f16"), "gpu_rows"),
    "rows layernorm": (rows("layernorm"), "gpu_rows{vectors-in-registers=8 unroll=1}"),
    "rows layernorm any": (rows("layernorm"), "gpu_rows{threads=256 vec=1 index=64}"),
    **{f"rows {kind} over operands, {threads} threads": (over_operands(rows(kind)), f"gpu_rows{{threads={threads} {config}}}")
       for kind in ("softmax", "layernorm")
       for threads, config in ((128, "vec=1 vectors-in-registers=1 unroll=1"), (64, "vectors-in-registers=8 unroll=1"),
                               (256, "per-row=256 vectors-in-registers=8 unroll=1"), (512, "per-row=512"),
                               (1024, "per-row=64 vec=1"))},
    "rows sum": (rows("sum"), "gpu_rows"),
    "rows sum of columns": (rows("sum0"), "gpu_rows{per_row=1 vec=1 unroll=4}"),
    "pointwise": (pointwise(ERF, lambda x, b: x), "gpu_pointwise"),
    "pointwise any": (pointwise(ERF, lambda x, b: x), "gpu_pointwise{vec=1 index=64}"),
    "transpose": (transpose(), "gpu_pointwise{vec=1 tile=32}"),
    "transpose f16": (transpose("f16"), "gpu_pointwise{vec=1 tile=32}"),
    "gather": (gather(), "gpu_pointwise"),
    "walk": (selective_scan(), "gpu_pointwise{vec=1 threads=128}"),
    "walk any": (selective_scan(5), "gpu_pointwise{vec=1 threads=64 index=64}"),
    "gather f16 by i32": (gather("f16", "i32"), "gpu_pointwise"),
}


def ptx_of(case: Case, config: str, arch: str = "sm_80") -> str:
    return build_kernel(case.text, "", "kernel", config, Target.parse(f"cuda:{arch}")).code.decode()


@pytest.mark.sampled(4)
@needs_ptxas
@pytest.mark.parametrize("name,arch", list(zip(CASES, itertools.cycle(["sm_80", "sm_89", "sm_90a"]))))
def test_ptxas_takes_every_family_without_spills(name: str, arch: str) -> None:
    case, config = CASES[name]
    report = assemble_ptx(ptx_of(case, config, arch), arch)
    assert "kernel" in report.entries
    assert {entry: r.spills for entry, r in report.entries.items()} == dict.fromkeys(report.entries, 0)
    assert report.warnings == ()


@needs_ptxas
def test_registers_are_bounded_where_blocks_share_a_multiprocessor() -> None:
    report = assemble_ptx(ptx_of(*CASES["simt nn bounded"]), "sm_80")
    assert report.entries["kernel"].registers <= 128


def test_copies_of_a_contraction_are_asynchronous_and_wide() -> None:
    text = ptx_of(contraction("m k,k n,m n"), "simt")
    assert len(re.findall(r"cp\.async\.cg\.shared\.global", text)) == 6  # two stages of the prologue and the loop, two tiles
    assert "cp.async.wait_group \t1" in text or "cp.async.wait_group 1" in text
    assert "bar" in text
    assert len(re.findall(r"fma\.rn\.f32", text)) == 64 * 4
    assert "ld.shared.v4" in text


def test_copies_follow_what_layouts_allow() -> None:
    turned = ptx_of(contraction("m k,n k,m n"), "simt{transpose-on-copy=true}")
    assert "cp.async.cg" not in turned
    assert "cp.async.ca.shared.global" in turned
    halves = ptx_of(contraction("m k,k n,m n", "f16"), "simt{vec=1}")
    assert "cp.async.ca" not in halves  # two bytes are too few for an asynchronous copy
    assert "st.shared" in halves


def test_rows_join_by_shuffles_and_read_once_when_held() -> None:
    held = ptx_of(rows("softmax"), "gpu_rows{vectors-in-registers=2 unroll=1}")
    again = ptx_of(rows("softmax"), "gpu_rows{vec=1 unroll=1}")
    assert len(re.findall(r"shfl\.sync\.bfly", held)) == 2 * 5
    assert len(re.findall(r"ld\.global", held)) == 2
    assert len(re.findall(r"ld\.global", again)) == 3
    assert "bar" not in held
    assert "bar" in ptx_of(rows("softmax"), "gpu_rows{threads=64 per_row=64 vec=1}")


def test_32_bit_coordinates_carry_a_guard() -> None:
    case, _ = CASES["pointwise"]
    kernels = [build_kernel(case.text, "", "kernel", c, Target.parse("cuda:sm_80")).kernel
               for c in ("gpu_pointwise{vec=1}", "gpu_pointwise{vec=1 index=64}")]
    big = {"M": 1 << 16, "N": 1 << 15, "operand0.stride0": 1 << 15, "operand2.stride0": 1 << 15}
    small = {"M": 1 << 15, "N": 1 << 15, "operand0.stride0": 1 << 15, "operand2.stride0": 1 << 15}
    assert [k.legal(big) for k in kernels] == [False, True]
    assert [k.legal(small) for k in kernels] == [True, True]
    assert kernels[1].guards == ()


def test_functions_of_libdevice_are_linked() -> None:
    case = pointwise("%s = math.sin %x0 : f32\n %t = math.powf %s, %x1 : f32\n linalg.yield %t : f32", lambda x, b: x)
    text = ptx_of(case, "gpu_pointwise")
    assert "__nv_" not in text
    if find_tool("ptxas"):
        assert assemble_ptx(text, "sm_80").entries["kernel"].registers > 0


def test_unknown_intrinsics_and_functions_are_refused() -> None:
    declared = 'declare float @llvm.nvvm.no.such.thing(float)\ndefine ptx_kernel void @k(ptr addrspace(1) %p) {\n' \
               "%x = load float, ptr addrspace(1) %p\n%y = call float @llvm.nvvm.no.such.thing(float %x)\n" \
               "store float %y, ptr addrspace(1) %p\nret void }"
    with pytest.raises(BuildError, match=r"no instruction for llvm\.nvvm"):
        to_ptx(declared, "sm_80")
    with pytest.raises(BuildError, match="libdevice has no __nv_nothing"):
        to_ptx(declared.replace("llvm.nvvm.no.such.thing", "__nv_nothing"), "sm_80")
    with pytest.raises(BuildError, match="LLVM does not accept"):
        to_ptx("define nonsense", "sm_80")


@pytest.mark.parametrize("arch", ["", "sm_75", "gfx90a", "x86-64"])
def test_architectures_are_checked(arch: str) -> None:
    with pytest.raises(OptionError, match="wanted sm_80 or later"):
        check_arch(arch)


@needs_ptxas
def test_ptxas_says_what_it_refuses() -> None:
    with pytest.raises(BuildError, match="ptxas refuses the kernel for sm_80"):
        assemble_ptx(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { nonsense; }", "sm_80")


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_main_loop_is_mostly_multiply_adds(arch: str) -> None:
    """8 x 8 sums a thread: 16 positions of k, their elements by the widest accesses of shared memory."""
    report = assemble_ptx(ptx_of(*CASES["simt nn large"], arch), arch)
    loop = [opcode_class(x) for x in longest_loop(sass_lines(report.cubin))]
    assert loop.count("FFMA") == 64 * 16
    assert loop.count("LDS.128") == 2 * 2 * 16
    assert loop.count("FFMA") > 0.85 * len(loop)


@pytest.mark.parametrize("columns,config,loads", [
    (768, "gpu_rows{vectors-in-registers=8 unroll=1}", (3 * 6, 0)),
    (4096, "gpu_rows{threads=256 per-row=256 vectors-in-registers=8 unroll=1}", (3 * 4, 0)),
    (1024, "gpu_rows{vectors-in-registers=8 unroll=1}", (8, 2 * 8))])
def test_what_follows_sums_of_a_row_is_loaded_in_front_of_them(columns: int, config: str, loads: tuple[int, int]) -> None:
    """The weights of a layernorm are under way while the threads of a row join their sums; nothing that is loaded stands under a
    condition, where the assembler would move it behind them. More than there are registers for is loaded where it is used."""
    case = rows("layernorm", columns)
    text = build_kernel(case.text, "", "kernel", config, Target.parse("cuda:sm_90a")).code.decode()
    halves = text[: text.index("shfl")], text[text.index("shfl") :]
    assert tuple(len(re.findall(r"ld\.global\S*v4", half)) for half in halves) == loads
    assert " bra" not in text[max(text.rindex(word) for word in ("shfl", "bar.sync") if word in text) :]
    if find_tool("ptxas") and find_disassembler() and not loads[1]:
        report = assemble_ptx(text, "sm_90a")
        assert report.entries["kernel"].spills == 0
        code = [i.name for i in read_listings(disassembly(report.cubin))["kernel"].code]
        last = max(i for i, name in enumerate(code) if name == "LDG")
        assert code[:last].count("SHFL") <= 5  # of ten: the second sum is wholly behind the last load
