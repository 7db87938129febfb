"""tools.bench gpu-table: SASS is read, loops are found, pipes are counted, and the arithmetic says what bounds a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tilewright.compiler.builder.ptxas import find_disassembler, find_tool
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates
from tilewright.passes.spaces.kernel_cost import GpuBlock, KernelCost, Load
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType
from tools.bench.gpu.gpu_roofline import FENCE, Subject
from tools.bench.gpu.gpu_table import Kernels, chosen, flags
from tools.bench.gpu.peer_arithmetic import cublas
from tools.bench.gpu.sass import Instruction, read_listings
from tools.bench.gpu.sass_pipes import PRODUCTS, pipe_of, work_of

LIMITS = GpuLimits.of("sm_90a")
RATES = GpuRates.of(LIMITS)
# A kernel of one product a step, which waits out of line; a loop that stores twice; an end; a wait that branches back.
LISTING = """
	.section	.text.made,"ax",@progbits
made:
.text.made:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_9:
        /*0010*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR6], R14 ;
        /*0030*/              @!P1 BRA `(.L_x_5) ;
.L_x_2:
        /*0040*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8].tnspB, R24 ;
        /*0050*/                   HGMMA.64x256x16.F32 R24, R4, gdesc[UR12].tnspB, R24, gsb0 ;
        /*0060*/                   UIADD3 UR5, UR5, 0x1, URZ ;
        /*0070*/                   IMAD.U32 R14, RZ, RZ, UR8 ;
        /*0080*/                   MEMBAR.ALL.GPU ;
        /*0090*/               @P1 BRA `(.L_x_1) ;
.L_x_3:
        /*00a0*/                   LDS.128 R4, [R2] ;
        /*00b0*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*00c0*/                   BAR.SYNC.DEFER_BLOCKING 0x1, 0x100 ;
        /*00d0*/              @!P3 BRA `(.L_x_3) ;
        /*00e0*/              @!P4 BRA `(.L_x_9) ;
        /*00f0*/                   EXIT ;
.L_x_5:
        /*0100*/                   NANOSLEEP.SYNCS 0x989680 ;
        /*0110*/                   BRA `(.L_x_2) ;
.L_x_6:
        /*0120*/                   BRA `(.L_x_6);
"""


def code(text: str) -> Instruction:
    listing = read_listings(f"\t.section\t.text.one,\"ax\"\n /*0000*/ {text} ;")
    return listing["one"].code[0]


def test_loops_of_a_listing() -> None:
    made = read_listings(LISTING)["made"]
    assert len(made.code) == 19 and made.code[3].guard == "!P1"
    (loop,) = [x for x in made.innermost(*PRODUCTS) if x.begin == 2]
    assert [i.name for i in made.of(loop)] == ["SYNCS", "BRA", "HGMMA", "HGMMA", "UIADD3", "IMAD", "MEMBAR", "BRA"]
    assert made.straight()[-1].address == 0xF0
    assert (1, 15) in [(x.begin, x.end) for x in made.loops]


def test_listings_of_cuobjdump() -> None:
    text = LISTING.replace("\t.section\t.text.made,\"ax\",@progbits", "\t\tFunction : made")
    for label, at in (("1", "20"), ("2", "40"), ("3", "a0"), ("5", "100"), ("6", "120"), ("9", "10")):
        text = text.replace(f"`(.L_x_{label})", f"0x{at}").replace(f".L_x_{label}:\n", "")
    assert read_listings(text)["made"].loops == read_listings(LISTING)["made"].loops


@pytest.mark.parametrize(("text", "pipe"), [
    ("HMMA.16816.F32 R24, R48, R10, R24", "tensor"), ("FFMA R1, R2, R3, R4", "fma"), ("LOP3.LUT R3, R11, 0x7f, RZ", "alu"),
    ("MUFU.EX2 R9, R9", "mufu"), ("LDSM.16.M88.4 R4, [R2]", "lsu"), ("UIADD3 UR5, UR5, 0x1, URZ", "uniform"),
    ("BAR.SYNC 0x0", "control"), ("ERRBAR", "membar"), ("ZZZ R1", "other"),
])  # fmt: skip
def test_pipes(text: str, pipe: str) -> None:
    assert pipe_of(code(text)) == pipe


@pytest.mark.parametrize(("text", "cycles", "shared"), [
    ("HGMMA.64x256x16.F32 R24, gdesc[UR8], R24", 128 / 4, (64 + 256) * 32 / 4),
    ("HGMMA.64x256x16.F32 R24, R4, gdesc[UR8], R24", 128 / 4, 256 * 32 / 4),
    ("HGMMA.64x128x8.F32.TF32 R24, gdesc[UR8], R24", 64 / 4, (64 + 128) * 32 / 4),
    ("QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", 64 / 4, (64 + 128) * 32 / 4),
    ("HMMA.16816.F32 R24, R48, R10, R24", 1 / 0.62, 0), ("HMMA.1688.F32.TF32 R24, R48, R10, R24", 1 / 0.62, 0),
    ("LDSM.16.M88.4 R4, [R2]", 0, 512), ("LDS.128 R4, [R2]", 0, 512), ("LDS R4, [R2]", 0, 128),
])  # fmt: skip
def test_products_and_bytes(text: str, cycles: float, shared: float) -> None:
    work = work_of([code(text)], RATES)
    assert work.tensor == pytest.approx(cycles) and work.shared_bytes == shared


class Made:
    """A contraction, as far as the arithmetic asks."""

    kind = Kind.CONTRACTION
    bytes = Expr.of(1 << 20)

    def __init__(self) -> None:
        operand = type("Operand", (), {"dtype": DType.F16})
        self.inputs, self.outputs = (operand, operand), (operand,)


def subject(listing: str = LISTING, extents: Mapping[str, int] | None = None, **changed: Any) -> Subject:
    block = {"threads": 256, "registers": 168, "shared_bytes": 100_000, "step": Load(0, 0, 16384.0, 0), "once": Load(),
             "along": "depth", "depth": 32, "ahead": 3, "most": 132} | changed
    cost = KernelCost({}, tiles={"rows": 64, "columns": 256, "depth": 32}, block=GpuBlock(**block),
                      units={"batch": 1, "rows": 64, "columns": 256, "depth": 0})
    given = extents or {"batch": 1, "rows": 64 * 132, "columns": 512, "depth": 3200}
    workload: Any = Made()
    return Subject(workload, cost, read_listings(listing)["made"], 168, given, {}, 128, False, LIMITS)


def test_a_persistent_kernel() -> None:
    made = subject()
    assert (made.tiles, made.steps, made.waves(), made.rounds_a_step, made.fences()) == (264, 100, [(1, 2)], 1, 1)
    pipes = made.pipes()
    assert pipes["tensor"] == 256 and pipes["l2"] == pytest.approx(16384 / (5120 / 132))
    assert pipes["shared"] == (64 + 2 * 256) * 32 / 128 + 128
    assert made.alone() == 8 + FENCE  # its own eight instructions, and the fence
    assert made.result_bytes == 64 * 256 * 2
    work, rounds = made.tail
    assert rounds == 16 * 2 and work.counts["lsu"] == 2 * 16  # 256 bytes of each thread, 16 at a time
    found = made.predict()
    assert found.bound == "latency" and found.total == pytest.approx(RATES.latency + 2 * (100 * (8 + FENCE) + found.behind))
    assert found.share_of_peak == pytest.approx(2 * 100 * 256 / found.total)


def test_what_bounds_a_kernel() -> None:
    smooth = LISTING.replace("        /*0080*/                   MEMBAR.ALL.GPU ;\n", "")
    assert subject(smooth).predict().bound == "l2"
    assert subject(smooth, step=Load(0, 0, 4096.0, 0)).predict().bound == "tensor"
    assert subject(smooth, ahead=0).predict().bound == "latency"
    assert subject(smooth, {"batch": 1, "rows": 64, "columns": 256, "depth": 32}).predict().bound == "results"
    large = subject(smooth)
    large.workload.bytes = Expr.of(1 << 31)  # type: ignore[misc]
    assert large.predict().bound == "memory" and large.predict().share == pytest.approx(1, abs=1e-3)
    assert subject(smooth, launches=2, parts=2, partial=1 << 16).predict().total > subject(smooth).predict().total
    assert subject(smooth, most=0).waves() == [(1, 1), (1, 1)] and subject(smooth, most=0, threads=128).waves() == [(2, 1)]


def test_a_loop_that_is_unrolled_runs_once() -> None:
    lines = LISTING.split("\n")
    straight = subject("\n".join(x for x in lines if not x.startswith(".L_x") and "BRA" not in x))
    assert straight.loop is None and straight.steps == 100
    assert 100 * straight.pipes()["tensor"] == pytest.approx(256)


def test_results_hide_under_products_of_another_tile() -> None:
    plain, hidden = subject(), subject()
    object.__setattr__(hidden, "overlapped", True)
    assert hidden.predict().total == pytest.approx(plain.predict().total - plain.predict().behind)


def test_peers_fill_the_machine() -> None:
    square = cublas(4096, 4096, 4096, 2, LIMITS)
    assert 0.85 < 4096**3 / (RATES.matrix * LIMITS.multiprocessors) / (square.us * 1e-6 * RATES.clock) < 0.95
    assert cublas(16, 768, 3072, 2, LIMITS).us < 5


def test_flags() -> None:
    fine = {"spills": 0, "fences_in_loop": 0, "family": "wgmma", "products_share": 0.93}
    assert flags(fine) == ""
    assert flags({**fine, "spills": 8}) == "8 bytes spilled"
    assert flags({**fine, "fences_in_loop": 4}) == "4 fences in the loop"
    assert flags({**fine, "products_share": 0.7}) == "products are 0.70 of the loop, wanted 0.9"
    assert flags({**fine, "family": "wgmma_attention", "products_share": 0.7}) == ""


@pytest.mark.parametrize("name,point", [("square_4096", 4096), ("dense_768x3072", 2048), ("attention_128", 2048)])
def test_main_loops_are_clean(name: str, point: int) -> None:
    """By what ptxas makes of the default kernels."""
    if find_tool("ptxas") is None or find_disassembler() is None:
        pytest.skip("ptxas and nvdisasm or cuobjdump are wanted (nvidia-cuda-nvcc, nvidia-cuda-nvdisasm)")
    (case,) = chosen(name, "f16")
    record = Kernels(case).at(point)
    assert record["family"].startswith("wgmma") and record["loop_found"]
    assert flags(record) == ""
