"""What every GPU family compiles to: registers, spills, shared memory, the mix of its main loop, and compile time on one core.

    python -m tools.bench gpu-kernels --arch sm_90a [--filter simt] [--json out.jsonl]

Needs ptxas (nvidia-cuda-nvcc), and nvdisasm (nvidia-cuda-nvdisasm) for the loops; without it the loops are those of the PTX.
Compile time is from the workload's text to PTX, the median of three; ptxas, which a driver runs when it loads a kernel, is
counted apart.
"""

from __future__ import annotations

import collections
import importlib
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptxas import assemble_ptx, disassembly, find_tool
from tilewright.compiler.cli.output import Output
from tilewright.runtime.target import Target
from tools.bench import command

ROOT = Path(__file__).resolve().parents[3]
_SHOWN = 5  # classes of instructions in a mix


@dataclass(frozen=True)
class Row:
    """A kernel. `shared`: dynamic bytes of a block; `mix`: instructions of the longest innermost loop by class; `loop` says whose
    instructions they are, `sass` or `ptx`."""

    name: str
    config: str
    registers: int
    spills: int
    shared: int
    loop: str
    mix: dict[str, int]
    compile_ms: float
    ptxas_ms: float


def cases() -> dict[str, tuple[str, str]]:
    """Name -> the text of a workload and its configuration."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    w: Any = importlib.import_module("gpu_workloads")
    t: Any = importlib.import_module("tensor_core_workloads")
    square, erf = "m k,k n,m n", "%s = arith.mulf %x0, %x1 : f32\n %t = math.erf %s : f32\n linalg.yield %t : f32"
    large, small = "simt{bm=128 bn=128 tm=8 tn=8}", "simt{bm=16 bk=32 tm=2}"
    found = {
        "matmul f32": (w.contraction(square), "simt"),
        "matmul f32, large": (w.contraction(square), large),
        "matmul f32, few rows": (w.contraction(square), small),
        "matmul f32, any layout": (w.contraction(square), "simt{vec=1 transpose-on-copy=true index=64}"),
        "matmul f32, split": (w.contraction(square), "simt{split-k=4}"),
        "matmul f32, bias and relu": (w.contraction(square, epilogue=w.RELU), large),
        "matmul f64": (w.contraction(square, "f64"), "simt{vec=2}"),
        "matmul f16, any": (w.contraction(square, "f16"), "simt"),
        "batch matmul f32": (w.contraction("b m k,b n k,b m n"), "simt"),
        "conv nhwc f32": (w.convolution("nhwc", 1, 1, 64, 64, 56), "simt{min-blocks-per-sm=1}"),
        "conv nchw f32": (w.convolution("nchw", 1, 1, 64, 64, 56), "simt{min-blocks-per-sm=1}"),
        "matmul f16": (t.product(square), "mma"),
        "matmul f16, bulk copies": (t.product(square), "wgmma"),
        "softmax, held": (w.rows("softmax"), "gpu_rows{vectors-in-registers=8 unroll=1}"),
        "softmax, block": (w.rows("softmax"), "gpu_rows{threads=512 per_row=512}"),
        "softmax, shared by blocks": (w.rows("softmax"), "gpu_rows{threads=512 per_row=512 vec=1 unroll=4 blocks=16}"),
        "layernorm, held": (w.rows("layernorm"), "gpu_rows{vectors-in-registers=8 unroll=1}"),
        "sum of rows": (w.rows("sum"), "gpu_rows"),
        "sum of columns": (w.rows("sum0"), "gpu_rows{per_row=1 vec=1 unroll=4}"),
        "pointwise erf": (w.pointwise(erf, None), "gpu_pointwise"),
        "transpose": (w.transpose(), "gpu_pointwise{vec=1 tile=32}"),
        "gather": (w.gather(), "gpu_pointwise"),
    }
    return {name: (case.text, config) for name, (case, config) in found.items()}


def measure(name: str, text: str, config: str, arch: str) -> Row:
    """Compile a kernel three times and look at what came out."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        built = build_kernel(text, "", "kernel", config, Target.parse(f"cuda:{arch}"))
        times.append(time.perf_counter() - start)
    ptx = built.code.decode()
    start = time.perf_counter()
    report = assemble_ptx(ptx, arch)
    ptxas = time.perf_counter() - start
    entry = report.entries["kernel"]
    lines = sass_lines(report.cubin) if find_tool("nvdisasm") else ptx.split("\n")
    loop = longest_loop(lines)
    return Row(name, built.kernel.config, max(e.registers for e in report.entries.values()),
               sum(e.spills for e in report.entries.values()), entry.shared + built.kernel.shared_bytes,
               "sass" if find_tool("nvdisasm") else "ptx", dict(collections.Counter(map(opcode_class, loop)).most_common()),
               1e3 * statistics.median(times), 1e3 * ptxas)


def sass_lines(cubin: bytes) -> list[str]:
    """The disassembly of the kernel called `kernel`."""
    found, inside = [], False
    for line in disassembly(cubin).splitlines():
        if re.match(r"\s*\.section\s", line):
            inside = re.search(r"\.text\.kernel[\",\s]", line) is not None
        if inside:
            found.append(line)
    return found


def longest_loop(lines: Sequence[str]) -> list[str]:
    """Opcodes of the innermost loop with the most instructions: from a label to a branch back to it, with none inside. Empty
    where there is no loop."""
    code: list[str] = []
    at: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in lines:
        label = re.match(r"\s*(\$?\.?L[\w$]+):", line)
        if label:
            at[label[1]] = len(code)
        found = re.match(r"\s*(?:/\*[0-9a-f]{4,6}\*/)?\s*(?:@!?U?[%\w]+\s+)?([A-Za-z][\w.]*)[\s;]", line)
        if not found or label or line.lstrip().startswith((".", "//")):
            continue
        code.append(found[1])
        target = re.search(r"(\$?\.?L_[\w$]+|\$L[\w$]+)", line) if found[1].upper().startswith("BRA") else None
        if target and at.get(target[1], len(code)) < len(code) - 1:
            loops.append((at[target[1]], len(code)))
    inner = [(a, b) for a, b in loops if not any(a <= c and d < b for c, d in loops)]
    begin, end = max(inner, key=lambda x: x[1] - x[0], default=(0, 0))
    return code[begin:end]


def opcode_class(opcode: str) -> str:
    """`FFMA`, `LDS.128`, `ld.shared.v4`: what tells instructions of a loop apart."""
    if opcode.isupper() or opcode[0].isupper():
        width = re.search(r"\.(128|64)\b", opcode)
        return opcode.split(".")[0] + (f".{width[1]}" if width else "")
    return ".".join(opcode.split(".")[:2])


def shown(mix: dict[str, int]) -> str:
    """`FFMA 512, LDS.128 32, ... (of 600)`."""
    if not mix:
        return "no loop"
    items = list(mix.items())
    return ", ".join(f"{name} {count}" for name, count in items[:_SHOWN]) + f" (of {sum(mix.values())})"


def table(rows: Sequence[Row], arch: str) -> None:
    """Print the rows."""
    columns = ("kernel", "configuration", "registers", "spills", "shared bytes", "main loop", "compile ms", "ptxas ms")
    listed = [(r.name, r.config, r.registers, r.spills, r.shared, shown(r.mix), r.compile_ms, r.ptxas_ms) for r in rows]
    Output(False).table(f"GPU kernels for {arch}", columns, listed)
    if any(r.loop == "ptx" for r in rows):
        print("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm): the loops are those of the PTX")


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("gpu-kernels", __doc__)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--filter", default="", help="only kernels whose name or configuration contains this")
    parser.add_argument("--json", type=Path, help="append a line per kernel to this file")
    args = parser.parse_args(argv)
    rows = []
    for name, (text, config) in cases().items():
        if (args.filter in name or args.filter in config) and (args.arch == "sm_90a" or not config.startswith("wgmma")):
            rows.append(measure(name, text, config, args.arch))
            if args.json:
                with args.json.open("a") as file:
                    file.write(json.dumps({"arch": args.arch, **asdict(rows[-1])}) + "\n")
    table(rows, args.arch)
    return 0
