"""What it costs a kernel of every GPU family to go by a byte: instructions, registers and spills, with and without.

    python -m tools.bench gpu-predicates [--arch sm_90a] [--filter simt]

Kernels are those of `gpu-kernels`, tiles and attention of tensor cores, and what the preferred family of each workload of some
models runs untuned, its first and its last configuration: row programs, scans, sorts, scatters, windows, weights in few bits,
sequences of a ragged batch. Instructions are those of the PTX, of all entries of a kernel, divided by the entries; registers and
spills are ptxas's.
"""

from __future__ import annotations

import fnmatch
import importlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptxas import assemble_ptx, find_tool
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.dispatch_creation.outlined import predicated_ir
from tilewright.passes.mlir import ir, new_context
from tilewright.passes.spaces.family_registry import config_text, families_of
from tilewright.passes.spaces.in_order import default_of
from tilewright.runtime.errors import BuildError
from tilewright.runtime.ragged_dim import Ragged
from tilewright.runtime.shape import Dim
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
    attention, product = a.attention(element="f16").text, t.product("m k,k n,m n").text
    return {"gemv f16": (product, "gemv"), "attention f16": (attention, "gpu_attention"),
            "attention f16, split": (attention, "gpu_attention{split-kv=4}"),
            "attention f16, warpgroups": (attention, "wgmma_attention"),
            "attention f16, warpgroups, split": (attention, "wgmma_attention{split-kv=4}"),
            "matmul f16, split": (product, "mma{split-k=4}"), "matmul f16, cluster along k": (product, "mma{cluster-k=2}"),
            "matmul f16, bulk copies, split": (product, "wgmma{split-k=2}"),
            "matmul f16, bulk copies, cluster": (product, "wgmma{cluster-m=2 cluster-n=2}"),
            "matmul f16, bulk copies, ping-pong": (product, "wgmma{bm=64 pingpong=true}")}


def models() -> dict[str, tuple[ops.Graph, dict[str, Dim | Ragged]]]:
    """Name -> a model whose kernels are of many forms, and its dims."""
    various, ragged = ops.Graph(), ops.Graph()
    x, table = various.input("x", ["M", 64], "f32"), various.input("table", [100, 64], "f32")
    index, image = various.input("index", ["M"], "i64"), various.input("image", ["M", 8, 14, 14], "f32")
    codes, scale = various.input("codes", [32, 32], "ui8"), various.input("scale", [32, 2], "f32")
    weight = ops.decode(codes, scale, bits=4, group=32)
    for found in (ops.cumsum(x), *ops.topk(x, 4), ops.argmax(x, 1), ops.softmax(x), ops.rmsnorm(x), ops.sum(x, 0),
                  ops.gather(table, index), ops.index_put(table, [index], x, reduce="add"), ops.max_pool2d(image, 2),
                  ops.interpolate(image, [28, 28]), ops.dense(x, weight, transposed=True), ops.transpose(x)):
        various.output(found)
    dims: dict[str, Dim | Ragged] = {"B": Dim(1, 64), "S": Ragged(1, 512, over="B")}
    for n, element in enumerate(("f32", "f16")):
        rows, w = ragged.input(f"rows{n}", ["B", "S", 64], element), ragged.input(f"w{n}", [64, 64], element)
        heads = ops.reshape(ops.dense(rows, w), (*rows.dims[:2], 1, 64))
        heads = ops.transpose(heads, (0, 2, 1, 3))
        mixed = ops.reshape(ops.transpose(ops.attention(heads, heads, heads), (0, 2, 1, 3)), rows.dims)
        ragged.output(ops.add(rows, mixed))
        ragged.output(ops.max(mixed, 1))
    return {"various": (various, {"M": Dim(1, 4096)}), "ragged": (ragged, dims)}


def model_cases(arch: str) -> Iterator[tuple[str, str, str]]:
    """Name, workload text and configuration."""
    for name, (graph, dims) in models().items():
        compilation = Compilation(graph, dims, full_target(f"cuda:{arch}"))
        for workload in outline(compilation).workloads:
            configs = default_of(families_of(workload, compilation.limits)[0], workload, compilation.limits)[0]
            for config in dict.fromkeys((configs[0], configs[-1])):
                yield f"{name}, {workload.kind.value} {workload.name}", workload.ir, config_text(config)


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
    listed = [(name, *rest) for name, rest in {**cases(), **attention_cases()}.items()]
    found: list[PredicateCost] = []
    for name, text, config in itertools.chain(listed, model_cases(given.arch)):
        if not fnmatch.fnmatch(f"{name} {config}", f"*{given.filter}*"):
            continue
        try:
            found.append(one := cost(name, text, config, given.arch))
        except BuildError as error:
            print(f"{name} ({config}): not built, {str(error).splitlines()[0]}", flush=True)
            continue
        print(f"{name} ({config}): {one.instructions:+.1f} instructions, {one.registers:+d} registers, {one.spills:+d} "
              "bytes spilled", flush=True)
    if found:
        print(f"{len(found)} kernels: at most {max(f.instructions for f in found):+.1f} instructions, "
              f"{max(f.registers for f in found):+d} registers, {max(f.spills for f in found):+d} bytes spilled")
    return 0
