"""What SASS instructions ask of the pipes of an H100's multiprocessor.

Sources. CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", compute capability 9.0, results a cycle of
a multiprocessor: 128 additions and multiply-adds of f32, 256 of halves in pairs, 64 of 32-bit integers (add, compare, shift,
logic, multiply-add), 64 conversions, 16 reciprocals, exponentials and their like, 32 shuffles. H100 whitepaper: four schedulers
of one warp instruction a cycle; 2048 multiply-adds of 16-bit floats a cycle on the tensor cores of a multiprocessor, half of
tf32, twice of bytes; 128 bytes a cycle of shared memory. A100 whitepaper: 5120 bytes a cycle of the L2 cache, which is taken to
hold for an H100 too, and 64 of the port of a multiprocessor. Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture via Microbenchmarking" (2024): mma.sync reaches 0.62 of that rate, wgmma all of it. Rates that are published
nowhere (the uniform datapath, SYNCS, the copy engine) are not counted beyond their issue slots.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tilewright.passes.spaces.gpu.gpu_rates import SHARED_BYTES, GpuRates
from tilewright.runtime.limits import WARP
from tools.bench.gpu.sass import Instruction


class Pipe(StrEnum):
    """Where an instruction goes; `membar`: it waits for memory. `other`: names that nobody has told of."""

    TENSOR = "tensor"
    FMA = "fma"
    ALU = "alu"
    MUFU = "mufu"
    LSU = "lsu"
    UNIFORM = "uniform"
    CONTROL = "control"
    MEMBAR = "membar"
    OTHER = "other"


WARPGROUP_PRODUCTS = ("HGMMA", "QGMMA", "IGMMA")
PRODUCTS = (*WARPGROUP_PRODUCTS, "HMMA", "IMMA", "QMMA")
MULTIPLY_ADDS = ("FFMA", "HFMA2", "FFMA2")
_NAMES = {
    Pipe.TENSOR: {*PRODUCTS, "DMMA"},
    Pipe.FMA: {"FFMA", "FMUL", "FADD", "FFMA2", "FADD2", "FMUL2", "HFMA2", "HADD2", "HMUL2", "IMAD"},
    Pipe.ALU: {"IADD3", "VIADD", "ISETP", "FSETP", "LOP3", "SHF", "SEL", "FSEL", "FMNMX", "VIMNMX", "IMNMX", "LEA", "PRMT",
               "PLOP3", "MOV", "F2FP", "I2FP", "SGXT", "CS2R", "HMNMX2", "HSETP2", "VIADDMNMX", "IABS", "BMSK", "P2R", "R2P",
               "FCHK", "FSET"},
    Pipe.MUFU: {"MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "FLO", "BREV"},
    Pipe.LSU: {"LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDGSTS", "LDL", "STL", "ATOM", "ATOMS", "ATOMG", "RED", "REDG",
               "LD", "ST", "SHFL"},
    Pipe.MEMBAR: {"MEMBAR", "ERRBAR", "CGAERRBAR", "CCTL"},
    Pipe.CONTROL: {"BRA", "BRX", "JMP", "BAR", "BSSY", "BSYNC", "EXIT", "CALL", "RET", "NOP", "WARPSYNC", "WARPGROUP", "DEPBAR",
                   "LDGDEPBAR", "NANOSLEEP", "ELECT", "VOTE", "FENCE", "BREAK", "YIELD", "ACQBULK", "SYNCS", "WARPGROUPSET"},
}  # fmt: skip
_PIPE = {name: pipe for pipe, names in _NAMES.items() for name in names}
_FMA_RATE, _ALU_RATE, _MUFU_RATE = 4.0, 2.0, 0.5  # warp instructions a cycle
_SHARED = ("LDS", "STS", "LDSM", "STSM", "ATOMS", "LDGSTS")
_STEP = 32  # bytes along k of a product of warpgroups


def pipe_of(i: Instruction) -> Pipe:
    """Names that begin with U, or move values from or to uniform registers, are the uniform datapath's."""
    if i.name in _PIPE:
        return _PIPE[i.name]
    uniform = i.name.startswith("U") or i.name in ("R2UR", "S2UR", "REDUX", "VOTEU", "S2R", "LDC")
    return Pipe.UNIFORM if uniform else Pipe.OTHER


@dataclass(frozen=True)
class Work:
    """What instructions ask for, run once by a warp; products of a warpgroup count a quarter for each of its warps.

    tensor to lsu: cycles of a multiprocessor's pipes. shared_bytes: of shared memory. multiply_adds: of tensor cores, or where
    there are none of f32 lanes. other_bytes: read by generic addresses, out of the shared memory of other blocks.
    """

    counts: Counter[str] = field(default_factory=Counter)
    tensor: float = 0.0
    fma: float = 0.0
    alu: float = 0.0
    mufu: float = 0.0
    lsu: float = 0.0
    shared_bytes: float = 0.0
    multiply_adds: float = 0.0
    other_bytes: float = 0.0

    @property
    def instructions(self) -> int:
        return sum(self.counts.values())

    def cycles(self, rates: GpuRates) -> dict[str, float]:
        """By pipe, for one warp; issue slots are a pipe."""
        return {"tensor": self.tensor, "issue": self.instructions / rates.issue, "fma": self.fma, "alu": self.alu,
                "mufu": self.mufu, "shared": max(self.lsu, self.shared_bytes / SHARED_BYTES)}


def work_of(code: Iterable[Instruction], rates: GpuRates) -> Work:
    """All of a stretch of code, every instruction once."""
    listed = list(code)
    counts = Counter(str(pipe_of(i)) for i in listed)
    integers = sum(i.name == "IMAD" for i in listed)
    shared = sum(_accessed(i) for i in listed if i.name in _SHARED) + sum(_descriptor_bytes(i) for i in listed) / 4
    products = [i for i in listed if i.name in PRODUCTS]
    tensor = sum(_product_cycles(i, rates) for i in products)
    scalar = WARP * sum(2 if i.name in ("HFMA2", "FFMA2") else 1 for i in listed if i.name in MULTIPLY_ADDS)
    return Work(
        counts=counts,
        tensor=tensor,
        fma=max(counts[Pipe.FMA] / _FMA_RATE, integers / _ALU_RATE),
        alu=counts[Pipe.ALU] / _ALU_RATE,
        mufu=counts[Pipe.MUFU] / _MUFU_RATE,
        lsu=float(counts[Pipe.LSU]),
        shared_bytes=shared,
        multiply_adds=sum(map(_multiply_adds, products)) if products else float(scalar),
        other_bytes=sum(float(WARP * i.access_bytes) for i in listed if i.name == "LD"),
    )


def _accessed(i: Instruction) -> float:
    """Bytes of a warp: of ldmatrix and stmatrix, 16 bytes of 8 rows for each matrix."""
    if i.name in ("LDSM", "STSM"):
        return 128.0 * next((int(m) for m in i.modifiers if m in ("2", "4")), 1)
    return float(WARP * i.access_bytes)


def _shape(i: Instruction) -> tuple[int, int, int]:
    """Rows, columns and depth: `64x256x16` of warpgroups; `16816`, `1688`, `16832` of warps, where rows are 16 and columns 8."""
    wide = next((re.fullmatch(r"(\d+)x(\d+)x(\d+)", m) for m in i.modifiers if "x" in m), None)
    if wide is not None:
        return int(wide[1]), int(wide[2]), int(wide[3])
    narrow = next((m for m in i.modifiers if re.fullmatch(r"168\d+", m)), None)
    return (16, 8, int(narrow[3:])) if narrow is not None else (16, 8, 16)


def _multiply_adds(i: Instruction) -> float:
    """Of a warp: a quarter of what a warpgroup multiplies."""
    m, n, k = _shape(i)
    return m * n * k / (4 if i.name in WARPGROUP_PRODUCTS else 1)


def _product_cycles(i: Instruction, rates: GpuRates) -> float:
    """Cycles of all tensor cores of a multiprocessor."""
    slower = 2.0 if i.has("TF32") else 0.5 if i.name[0] in "QI" else 1.0
    share = 1.0 if i.name in WARPGROUP_PRODUCTS else rates.mma
    return _multiply_adds(i) * slower / (rates.matrix * share)


def _descriptor_bytes(i: Instruction) -> float:
    """What a product of warpgroups reads of shared memory: its columns, and its rows unless they are registers."""
    if i.name not in WARPGROUP_PRODUCTS:
        return 0.0
    _, columns, _ = _shape(i)
    from_registers = re.match(r"R\d+, R\d+,", i.operands) is not None
    return float((columns + (0 if from_registers else 64)) * _STEP)
