"""Kernels for GPUs of ragged models, which serve all sequences in one launch or have code of their own for whole tiles, beside
those of a dense model of the same configuration."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from tilewright.compiler import ops
from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptxas import assemble_ptx, find_tool
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.linalg.symbolic import SEGMENTS, WHOLE_TILES
from tilewright.passes.spaces.family_registry import config_text, families_of
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.ragged_dim import Ragged
from tilewright.runtime.shape import Dim, DimLike

_HEADS, _WIDTH = 8, 64
_ATTRIBUTE = re.compile(rf',?\s*({re.escape(SEGMENTS)} = "[^"]*"|{re.escape(WHOLE_TILES)})')
Model = tuple[ops.Graph, dict[str, DimLike]]


def models() -> Iterator[tuple[str, Model]]:
    """What the families of GPUs meet in ragged models."""
    rows: dict[str, DimLike] = {"B": Dim(0, 128), "S": Ragged(0, 512, over="B")}
    g = ops.Graph()
    g.output(ops.softmax(g.input("x", ["B", "S", _WIDTH]), 1))
    yield "softmax along the sequence", (g, rows)
    for dtype in ("f32", "f16"):
        g = ops.Graph()
        g.output(ops.matmul(g.input("x", ["B", "S", 512], dtype), g.input("w", ["B", 512, 2048], dtype)))
        yield f"grouped product {dtype}", (g, rows)
    for dtype in ("f32", "f16"):
        g = ops.Graph()
        g.output(ops.gelu(ops.dense(g.input("x", ["B", "S", 512], dtype), g.input("w", [512, 2048], dtype))))
        yield f"product over all rows {dtype}", (g, rows)
    g = ops.Graph()
    heads = [g.input(name, ["B", "S", _HEADS, _WIDTH], "f16") for name in "qkv"]
    q, k, v = (ops.transpose(x, (0, 2, 1, 3)) for x in heads)
    g.output(ops.transpose(ops.attention(q, k, v), (0, 2, 1, 3)))
    yield "attention f16", (g, rows)


def main(given: argparse.Namespace) -> int:
    """Print a line for each kernel that a family runs untuned; 1 where one spills more than that of one sequence."""
    worst = 0
    for name, (graph, dims) in models():
        compilation = Compilation(graph, dims, full_target(f"cuda:{given.arch}"))
        for workload in outline(compilation).workloads:
            for family in families_of(workload, compilation.limits) if _ATTRIBUTE.search(workload.ir) else ():
                for config in default_of(family, workload, compilation.limits)[0]:
                    worst = max(worst, _shown(f"{name}: {workload.name}", workload, config_text(config), compilation))
    return int(worst > 0)


def _shown(name: str, workload: Workload, config: str, compilation: Compilation) -> int:
    """Bytes that it spills more."""
    alone, texts = _ATTRIBUTE.sub("", workload.ir), []
    try:
        for text in (alone, workload.ir):
            texts.append(build_kernel(text, "", "kernel", config, compilation.target).code.decode())
    except BuildError as error:
        print(f"{name}: {config}: refused {'for all' if texts else 'alone'}: {str(error).splitlines()[0][-120:]}", flush=True)
        return 0
    if find_tool("ptxas") is None:
        print(f"{name}: {config}: built, not assembled", flush=True)
        return 0
    found = [assemble_ptx(p, compilation.target.arch).entries.values() for p in texts]
    registers, spills = [max(x.registers for x in e) for e in found], [sum(x.spills for x in e) for e in found]
    print(f"{name}: {config}: registers {registers[0]} -> {registers[1]}, bytes spilled {spills[0]} -> {spills[1]}", flush=True)
    return int(spills[1] - spills[0])
