"""Measures the tables that tuning policies are replayed on: every configuration of a sample at every shape.

    python -m tools.bench tables build resnet18 --built /tmp/built --out tools/bench/policies/tables/resnet18.jsonl --configs 48
    python -m tools.bench tables measure resnet18 --built /tmp/built --out tools/bench/policies/tables/resnet18.jsonl --seconds 90

`build` compiles each kernel once and keeps it under --built; `measure` appends to the table. Both leave the operators that the
table holds as they are, stop after --seconds and, called again, go on. Measuring needs a quiet machine, building does not: its
seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.builder.build import build_kernel, kernel_symbol
from tilewright.compiler.builder.codegen import limits
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.host.benchmark import Timing
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.target import Target
from tilewright.search.database.measurement_table import OperatorTable, read_tables
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.protocols import BuildResult
from tilewright.search.runner.host_runner import HostRunner
from tilewright.search.space.lattice import Lattice
from tools.bench import command
from tools.bench.policies.tuning_models import ModelOperator, models

FAMILIES = {Kind.CONTRACTION: "host_matmul", Kind.ATTENTION: "host_attention", Kind.ROWS: "host_rows"}
TIMING = Timing(warmup=0.0, batch=0.0004, fewest=3, most=3)


class Built(msgspec.Struct, frozen=True):
    """One operator with its kernels; kernel None: `errors` says why there is none."""

    workload: WorkloadForm
    configs: tuple[str, ...]
    kernels: tuple[MicroKernel | None, ...]
    code: tuple[bytes, ...]
    errors: tuple[str, ...]
    seconds: tuple[float, ...]
    defaults: int


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command.parser("tables", __doc__)
    parser.add_argument("step", choices=("build", "measure"))
    parser.add_argument("model", choices=sorted(models()))
    parser.add_argument("--built", type=Path, required=True, help="folder of built kernels")
    parser.add_argument("--out", type=Path, required=True, help="table to append to")
    parser.add_argument("--configs", type=int, default=48, help="configurations of an operator, the defaults among them")
    parser.add_argument("--seconds", type=float, default=90.0, help="stop after the operator during which this has passed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    target, found = Target.parse("host"), models()[args.model]
    deadline = time.monotonic() + args.seconds
    done = {t.name for t in read_tables(args.out)} if args.out.exists() else set()
    found = tuple(o for o in found if o.name not in done)
    if args.step == "build":
        args.built.mkdir(parents=True, exist_ok=True)
        for operator in found:
            path = _path(args, operator)
            if not path.exists() and time.monotonic() < deadline:
                path.write_bytes(msgspec.msgpack.encode(build(operator, target, args.configs, args.seed)))
                print(f"built {operator.name}", flush=True)
        return 0
    for operator in found:
        if not _path(args, operator).exists() or time.monotonic() > deadline:
            continue
        start = time.monotonic()
        table = measure(operator, msgspec.msgpack.decode(_path(args, operator).read_bytes(), type=Built))
        with args.out.open("ab") as out:
            out.write(msgspec.json.encode(table) + b"\n")
        print(f"{operator.name}: {len(table.configs)} configurations in {time.monotonic() - start:.1f} s", flush=True)
    return 0


def build(operator: ModelOperator, target: Target, count: int, seed: int) -> Built:
    """The defaults and a random sample of the operator's space, compiled."""
    workload = outlined(operator, target)
    found = limits(target)
    assert isinstance(found, HostLimits)
    family = FAMILIES[workload.kind]
    defaults = [config_text(c) for c in default_of(family, workload, found)[0]]
    lattice = Lattice.of(workload, found, (family,), [parse_config(t) for t in defaults])
    drawn = [lattice.texts[i] for i in lattice.sample(min(count, len(lattice)), np.random.default_rng(seed))]
    texts = list(dict.fromkeys([*defaults, *drawn]))[:count]
    results = [build_one(workload, t, target) for t in texts]
    return Built(
        WorkloadForm.of(workload),
        tuple(texts),
        tuple(r.kernel for r in results),
        tuple(r.code for r in results),
        tuple(r.error for r in results),
        tuple(r.seconds for r in results),
        len(set(defaults)),
    )


def build_one(workload: Workload, text: str, target: Target) -> BuildResult:
    """One kernel and the processor seconds that it takes; the cache is left alone."""
    start = time.process_time()
    try:
        built = build_kernel(workload.ir, workload.key, kernel_symbol(workload, parse_config(text)), text, target)
    except TilewrightError as error:
        return BuildResult(None, error=str(error), seconds=time.process_time() - start)
    return BuildResult(built.kernel, built.code, seconds=time.process_time() - start)


def outlined(operator: ModelOperator, target: Target) -> Workload:
    """The heaviest workload of the operator's graph, its inputs from the second on constant where their shape is known."""
    graph = ops.Graph()
    graph.output(operator.make(graph))
    model = ingest(graph, {operator.dim: operator.range}, None)
    known = {a.name: [int(d) for d in a.dims] for a in model.inputs[1:] if a.dims and all(str(d).isdigit() for d in a.dims)}
    constants = {n: np.zeros(dims, np.float32) for n, dims in known.items()}
    workloads = outline(Compilation(graph, {operator.dim: operator.range}, target, constants=constants)).workloads
    middle = operator.sizes[len(operator.sizes) // 2]
    tuned = [w for w in workloads if w.kind in FAMILIES]
    return max(tuned, key=lambda w: w.flops.evaluate(dict.fromkeys(w.dims, middle)))


def measure(operator: ModelOperator, built: Built) -> OperatorTable:
    """Seconds of every kernel at every size; a kernel that does not run there has none."""
    runner = HostRunner(HostDevice(), TIMING)
    workload = built.workload.workload()
    shapes = [dict.fromkeys(workload.dims, size) for size in operator.sizes]
    seconds: list[list[float]] = [[] for _ in built.configs]
    spent: list[list[float]] = [[] for _ in built.configs]
    for shape in shapes:
        for i, (kernel, code) in enumerate(zip(built.kernels, built.code, strict=True)):
            start = time.perf_counter()
            found = runner.run(workload, kernel, code, shape).seconds if kernel is not None else ()
            spent[i].append(time.perf_counter() - start)
            seconds[i].append(found[0] if found else 0.0)
    return OperatorTable(
        operator.name,
        msgspec.structs.replace(built.workload, ir=""),
        operator.calls,
        tuple(tuple(s.items()) for s in shapes),
        built.configs,
        tuple(tuple(float(f"{t:.4g}") for t in row) for row in seconds),
        tuple(float(f"{t:.3g}") for t in built.seconds),
        tuple(float(f"{np.mean(row):.3g}") for row in spent),
        built.defaults,
    )


def _path(args: argparse.Namespace, operator: ModelOperator) -> Path:
    return Path(args.built) / f"{args.model}.{operator.name}.msgpack"
