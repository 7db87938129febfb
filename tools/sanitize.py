"""Runs a model's GPU kernels on the emulator under all of its checks, in program order and in adversarial orders.

    python -m tools.sanitize MODEL --dim arg0.1=1:128 --arch sm_90a --seeds 3 --shapes 3 [--json]

MODEL is MLIR or a saved model (.tw) of a GPU target. Every shape runs once in program order and once per seed, with warps and
asynchronous copies as late or as early as the program's barriers allow; each result is compared with the float64 reference.
Exits with 1 on a finding or a wrong result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import typer

import tilewright as tw
from tilewright.compiler.cli.arguments import load_constants, parse_dims
from tilewright.compiler.cli.output import Output, dims_text
from tilewright.compiler.cli.run import source_inputs, tolerance_of
from tilewright.compiler.cli.sampling import shapes_of
from tilewright.compiler.reference import compare, evaluate
from tilewright.compiler.verification.random_inputs import Array, random_inputs
from tilewright.runtime.emulator import ALL_CHECKS, EmulatorDevice, EmulatorError, Finding, FindingReport
from tilewright.runtime.errors import ArtifactError, TilewrightError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.artifact import Artifact, LazyBundle
from tilewright.runtime.program.program import Program
from tilewright.runtime.target import Target


@dataclass(frozen=True)
class Sanitized:
    """One run. `seed` None is program order; `error` is the norm-relative error of the worst result, `launches` how often each
    kernel ran."""

    dims: Mapping[str, int]
    seed: int | None
    findings: tuple[Finding, ...]
    error: float
    correct: bool
    seconds: float
    launches: Mapping[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return self.correct and not self.findings


class CountingDevice(EmulatorDevice):
    """An emulator that collects findings and counts the launches of each kernel."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch, collect=True)
        self.counts: dict[str, int] = {}

    def begin(self, seed: int | None) -> None:
        """Forget what was found; order everything by `seed` from now on."""
        self.seed, self.report, self.counts = seed, FindingReport(ALL_CHECKS, collect=True), {}

    def launch(self, kernel: Any, *args: Any, **options: Any) -> Any:
        self.counts[kernel.name] = self.counts.get(kernel.name, 0) + 1
        return super().launch(kernel, *args, **options)


class Sanitizer:
    """A saved model of a GPU target on an emulator of its architecture. `constants`: those bound at compile time, by name."""

    def __init__(self, path: Path, constants: Mapping[str, Array] | None = None) -> None:
        bundle = _gpu_bundle(Artifact(path))
        program = bundle.program()
        arch = Target.parse(program.target).arch
        self.program: Program = msgspec.structs.replace(program, target=f"emulator:{arch}")
        self.constants = dict(constants or {})
        self.device = CountingDevice(arch)
        self._fn = CompiledFunction(self.program, bundle.code(), bundle.constants(), self.device)

    def runs(self, shapes: int, seeds: int, seed: int = 0) -> Iterator[Sanitized]:
        """Every shape in program order, then in `seeds` adversarial orders."""
        for number, dims in enumerate(shapes_of(self.program.ranges(), shapes, seed)):
            arrays = random_inputs(self.program, dims, seed + number)
            wanted = evaluate(self.program.source, source_inputs(self.program, self.constants, arrays))
            for order in (None, *range(seed, seed + seeds)):
                yield self._run(dims, arrays, wanted, order)

    def _run(self, dims: Mapping[str, int], arrays: Sequence[Array], wanted: Sequence[Array], seed: int | None) -> Sanitized:
        self.device.begin(seed)
        start, error, correct = time.perf_counter(), float("nan"), False
        try:
            got = self._fn(*arrays)
            compared = [compare(g, w) for g, w in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True)]
            bound = tolerance_of([a.dtype for a in (*self.program.inputs, *self.program.outputs) if a.dims is not None])
            error = max((c.norm_error for c in compared), default=0.0)
            correct = all(c.ok(bound.norm, bound.peak) for c in compared)
        except EmulatorError as fatal:
            if fatal.finding is None:
                raise
        return Sanitized(dict(dims), seed, tuple(self.device.report.findings), error, correct, time.perf_counter() - start,
                         dict(self.device.counts))


def _gpu_bundle(artifact: Artifact) -> LazyBundle:
    for kind in ("emulator", "cuda"):
        for bundle in artifact.bundles(kind):
            return bundle
    targets = ", ".join(g.target for g in artifact.manifest.groups) or "nothing"
    raise ArtifactError(f"{artifact.path} holds code for {targets}; wanted a model compiled for cuda:<arch> or emulator:<arch>")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dim", action="append", help="range of a dim, as for tilewright compile; repeatable")
    parser.add_argument("--arch", default="sm_90a", help="architecture that MLIR is compiled for")
    parser.add_argument("--constants", type=Path, help="arguments to bind: a .npz or .safetensors file")
    parser.add_argument("--shapes", type=int, default=3, help="shapes of the range: its ends, primes, random ones")
    parser.add_argument("--seeds", type=int, default=3, help="adversarial orders at each shape")
    parser.add_argument("--seed", type=int, default=0, help="of inputs, shapes and the first order")
    parser.add_argument("--json", action="store_true", help="print JSON Lines instead of text")
    return parser.parse_args(argv)


def sanitize(args: argparse.Namespace, out: Output) -> int:
    """Run and report; the exit code."""
    constants = load_constants(args.constants)
    with tempfile.TemporaryDirectory() as folder:
        path = args.model
        if path.suffix != ".tw":
            path = Path(folder) / "model.tw"
            ranges = parse_dims(args.dim).as_ranges()
            tw.compile(args.model, ranges, target=f"emulator:{args.arch}", constants=constants or None).save(path)
        sanitizer = Sanitizer(path, constants)
        done = []
        for run in sanitizer.runs(args.shapes, args.seeds, args.seed):
            done.append(run)
            report(out, run)
    return summary(out, sanitizer.program, done)


def report(out: Output, run: Sanitized) -> None:
    """The findings of a run, each with kernel, instruction, thread and address."""
    order = "program order" if run.seed is None else f"order {run.seed}"
    for f in run.findings:
        out.event("finding", dims=dict(run.dims), seed=run.seed, check=f.check.value, kernel=f.site.kernel, line=f.site.line,
                  instruction=f.site.text, block=f.block, thread=f.thread, address=f.address, message=f.message)
        out.text(f"{dims_text(run.dims)}, {order}: {f}")
    if not run.correct and not run.findings:
        out.text(f"{dims_text(run.dims)}, {order}: wrong result, norm-relative error {run.error:.2e}")
    out.event("run", dims=dict(run.dims), seed=run.seed, findings=len(run.findings), norm_error=run.error, correct=run.correct,
              seconds=round(run.seconds, 3), launches=dict(run.launches))


def summary(out: Output, program: Program, runs: Sequence[Sanitized]) -> int:
    """A row per kernel that ran, and one per shape; the exit code."""
    found = [f for run in runs for f in run.findings]
    launches: dict[str, int] = {}
    for run in runs:
        for name, count in run.launches.items():
            launches[name] = launches.get(name, 0) + count
    configs = {step.symbol: k.config for t in program.tables for k in t.kernels for step in k.launches()}
    kernels = [(name, configs.get(name, ""), count, sum(f.site.kernel == name for f in found))
               for name, count in launches.items()]
    out.table("Kernels", ("kernel", "configuration", "launches", "findings"), kernels)
    shapes = list(dict.fromkeys(tuple(run.dims.items()) for run in runs))
    rows = []
    for shape in shapes:
        mine = [run for run in runs if tuple(run.dims.items()) == shape]
        rows.append((dims_text(dict(shape)), len(mine), max(run.error for run in mine), sum(len(run.findings) for run in mine),
                     sum(run.seconds for run in mine)))
    out.table("Shapes", ("dims", "orders", "norm error", "findings", "seconds"), rows)
    wrong = sum(not run.correct for run in runs)
    unused = sorted(set(configs) - set(launches))
    out.event("sanitized", runs=len(runs), findings=len(found), wrong=wrong, kernels=sorted(launches), not_launched=unused)
    out.text(f"{len(runs)} runs of {len(launches)} kernels: {len(found)} findings, {wrong} wrong results; "
             f"{len(unused)} of the model's kernels serve other shapes")
    return 0 if all(run.clean for run in runs) else 1


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        return sanitize(args, Output(args.json))
    except (TilewrightError, OSError, typer.BadParameter) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
