"""How well arithmetic alone ranks GPU kernels that nobody measured: against the emulator's clock, operator by operator.

    python -m tools.bench gpu-ranking [--arch sm_90a] [--kernels 48] [--filter dense] [--json found.jsonl]

At each shape the configurations are the defaults of the families, the best by the prior, and others drawn evenly; each is built
and timed by the emulator's clock. That clock is a model of a GPU, not a GPU: what is compared is arithmetic on configurations
with counts of what the built code does. `spearman` is the rank correlation, `drawn` that of the evenly drawn ones alone; `first`
is the clock's time of the prior's choice over the best in the set, `tenth` of the best of its ten.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.builder.assemble_kernel import assembled
from tilewright.compiler.builder.build import BuiltKernel
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.cli.output import Output
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.passes.spaces.family_registry import config_text, families_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Dim, Expr, ShapeRange
from tilewright.runtime.target import Target
from tilewright.search.runner.gpu_runner import EmulatedGpu
from tilewright.search.runner.verification import blank, seeded
from tilewright.search.search_strategy.candidates import ranked
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.shapes import Dims, ShapeDemand
from tilewright.search.space.task import Task
from tools.bench import command

RANGE = (1, 4096)
_BEST = 0.25  # share of the set that the prior picks


@dataclass(frozen=True)
class Case:
    """An operator with the values of its dim T at which kernels are compared."""

    make: Callable[[ops.Graph], ops.Tensor]
    values: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """An operator at a shape. illegal: configurations that may not run there, or cannot be built."""

    operator: str
    T: int
    kernels: int
    illegal: int
    spearman: float
    drawn: float
    first: float
    tenth: float
    slowest: float


def cases() -> Mapping[str, Case]:
    """Small enough to emulate: a few blocks stand for a launch, but each runs its whole depth."""
    def dense(dtype: str, k: int, n: int) -> Callable[[ops.Graph], ops.Tensor]:
        return lambda g: ops.dense(g.input("x", ["T", k], dtype), g.input("w", [k, n], dtype))

    def attention(g: ops.Graph) -> ops.Tensor:
        q, k, v = (g.input(name, [1, 12, "T", 64], "f16") for name in "qkv")
        return ops.attention(q, k, v)

    return {
        "dense_256x768_f32": Case(dense("f32", 256, 768), (8, 128, 1024)),
        "dense_768x768_f16": Case(dense("f16", 768, 768), (16, 256, 2048)),
        "bmm_nt_64_f32": Case(lambda g: ops.batch_matmul(g.input("q", [12, "T", 64]), g.input("k", [12, "T", 64]),
                                                         transpose_b=True), (24, 128)),
        "softmax_768_f32": Case(lambda g: ops.softmax(g.input("x", ["T", 768])), (32, 2048)),
        "layernorm_768_f32": Case(lambda g: ops.layernorm(g.input("x", ["T", 768]), g.input("g", [768]), g.input("b", [768])),
                                  (32, 2048)),
        "gelu_768_f32": Case(lambda g: ops.gelu(g.input("x", ["T", 768])), (32, 2048)),
        "attention_12x64_f16": Case(attention, (64, 256)),
    }


def workload_of(case: Case, target: Target) -> tuple[Workload, Mapping[str, Expr]]:
    """The one operator that a case outlines to, and its dims over T."""
    graph = ops.Graph()
    graph.output(case.make(graph))
    model = outline(Compilation(graph, {"T": Dim(*RANGE)}, target))
    found = max(model.workloads, key=lambda w: w.flops.evaluate(dict.fromkeys(w.dims, 64)))
    return found, model.uses[found.key][0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("gpu-ranking", __doc__)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--kernels", type=int, default=48, help="configurations at a shape")
    parser.add_argument("--filter", default="", help="operators whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="append the rows to a file")
    args = parser.parse_args(argv)
    out = Output(False)
    rows = []
    for name, case in cases().items():
        if args.filter in name:
            for row in compared(name, case, args.arch, args.kernels, args.seed):
                rows.append(row)
                print(row, flush=True)
                if args.json is not None:
                    with args.json.open("a") as file:
                        file.write(line(row, args.arch, args.seed) + "\n")
    columns = ("operator", "T", "kernels", "Spearman", "of drawn", "first", "best of 10")
    out.table("Prior against the emulator's clock (a model, no GPU)", columns,
              [(r.operator, r.T, r.kernels, r.spearman, r.drawn, r.first, r.tenth) for r in rows])
    return 0


def line(row: Row, arch: str, seed: int) -> str:
    import json

    return json.dumps({"record": "gpu_prior", "arch": arch, "seed": seed, "when": round(time.time()), **asdict(row)})


def compared(name: str, case: Case, arch: str, count: int, seed: int) -> Iterator[Row]:
    """One row a shape."""
    limits, target = GpuLimits.of(arch), Target.parse(f"emulator:{arch}")
    workload, use = workload_of(case, target)
    families = families_of(workload, limits)[:2 if arch == "sm_90a" and "f16" in name and "dense" in name else 1]
    ranges = ShapeRange((("T", Dim(*RANGE)),))
    task = Task.of(workload, limits, families, ShapeDemand(ranges, [use]))
    builder, gpu = LocalBuilder(target), EmulatedGpu(limits)
    rng = np.random.default_rng(seed)
    for value in case.values:
        shape: Dims = tuple((name, extent.evaluate({"T": value})) for name, extent in use.items())
        configs, drawn = picked(task, shape, count, rng)
        expected = ranked(task, shape, configs)
        found = np.array([_clock(builder, gpu, workload, c, shape) for c in configs])
        legal = np.isfinite(found)
        even = legal & np.isin(np.arange(len(configs)), drawn)
        best = found[legal].min()
        order = np.argsort(expected[legal], kind="stable")
        yield Row(name, value, int(legal.sum()), int((~legal).sum()), spearman(expected[legal], found[legal]),
                  spearman(expected[even], found[even]), float(found[legal][order[0]] / best),
                  float(found[legal][order[:10]].min() / best), float(found[legal].max() / best))


def picked(task: Task, shape: Dims, count: int, rng: np.random.Generator) -> tuple[list[TileConfig], list[int]]:
    """Configurations, and the places of those that were drawn evenly."""
    lattice = task.lattice()
    by_prior = np.argsort(ranked(task, shape, lattice.configs), kind="stable")[: round(_BEST * count)]
    chosen = dict.fromkeys([lattice.configs[n] for n in by_prior] + task.defaults())
    even = [lattice.configs[n] for n in lattice.sample(max(0, count - len(chosen)), rng)]
    configs = list(dict.fromkeys([*chosen, *even]))
    return configs, [configs.index(c) for c in even]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; NaN where one side does not vary."""
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic) if len(a) > 2 else float("nan")


def _clock(builder: LocalBuilder, gpu: EmulatedGpu, workload: Workload, config: TileConfig, shape: Dims) -> float:
    """Seconds by the emulator's clock; infinite where the kernel cannot be built or may not run there."""
    (built,) = builder.build([(workload, config)])
    if built.kernel is None or not built.kernel.legal(dense_symbols(workload, dict(shape))):
        return float("inf")
    try:
        kernel = assembled(BuiltKernel(built.kernel, built.code, built.llvm_ir), builder.target).kernel
    except BuildError as error:
        print(f"{config_text(config)}: {error}", file=sys.stderr)
        return float("inf")
    arrays = [*seeded(workload, shape, 0), *blank(workload, shape)]
    return gpu.time(workload, kernel, built.code, dict(shape), arrays)[0]
