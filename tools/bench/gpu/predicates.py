"""What it costs a kernel of every GPU family to go by a byte: instructions, registers and spills, with and without.

    python -m tools.bench gpu-predicates [--arch sm_90a] [--filter simt]

Instructions are those of the PTX, of all entries of a kernel, divided by the entries; registers and spills are ptxas's.
"""

from __future__ import annotations

import fnmatch
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptxas import assemble_ptx, find_tool
from tilewright.passes.dispatch_creation.outlined import predicated_ir
from tilewright.passes.mlir import ir, new_context
from tilewright.runtime.target import Target
from tools.bench import command
from tools.bench.gpu.kernels import cases


@dataclass(frozen=True)
class PredicateCost:
    """More of each in the kernel that goes by a byte; -1 where there is no ptxas. instructions: per entry."""

    name: str
    instructions: float
    registers: int
    spills: int


def attention_cases() -> dict[str, tuple[str, str]]:
    """Products of one row and attention, which `gpu-kernels` has no rows of."""
    cases()  # puts the tests' folder in reach
    t: Any = importlib.import_module("tensor_core_workloads")
    a: Any = importlib.import_module("attention_workloads")
    attention = a.attention(element="f16").text
    return {"gemv f16": (t.product("m k,k n,m n").text, "gemv"), "attention f16": (attention, "gpu_attention"),
            "attention f16, warpgroups": (attention, "wgmma_attention")}


def cost(name: str, text: str, config: str, arch: str) -> PredicateCost:
    """Build a kernel twice.

    Raises:
        BuildError: the family refuses it, or ptxas does.
    """
    with new_context(), ir.Location.unknown():
        other = predicated_ir(text)
    plain, going = (build_kernel(t, "", "kernel", config, Target.parse(f"cuda:{arch}")).code.decode() for t in (text, other))
    entries = len(re.findall(r"\.entry\b", plain))
    more = (_instructions(going) - _instructions(plain)) / entries
    if find_tool("ptxas") is None:
        return PredicateCost(name, more, -1, -1)
    found = [assemble_ptx(p, arch).entries.values() for p in (plain, going)]
    registers = [max(e.registers for e in f) for f in found]
    spills = [sum(e.spills for e in f) for f in found]
    return PredicateCost(name, more, registers[1] - registers[0], spills[1] - spills[0])


def _instructions(ptx: str) -> int:
    """Statements that are no directive, label or declaration."""
    statement = re.compile(r"\s*(@!?%?\w+\s+)?([a-z][\w.:]*\s.*|ret|exit);")
    return sum(statement.match(line) is not None for line in ptx.splitlines())


def main(argv: Sequence[str]) -> int:
    """Print what is found."""
    parser = command.parser("gpu-predicates", __doc__)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--filter", default="*")
    given = parser.parse_args(argv)
    for name, (text, config) in {**cases(), **attention_cases()}.items():
        if fnmatch.fnmatch(f"{name} {config}", f"*{given.filter}*"):
            found = cost(name, text, config, given.arch)
            print(f"{name} ({config}): {found.instructions:+.1f} instructions, {found.registers:+d} registers, {found.spills:+d} "
                  "bytes spilled", flush=True)
    return 0
