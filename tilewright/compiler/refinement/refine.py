"""refine: a saved model tuned again for the shapes that were counted, never slower at any of them than before.

The search knows what runs now as the choice to be beaten. What it finds is then held against the old model in turns, at every
counted shape; an operator that a shape speaks against, or that is not shown to be as fast there, goes back to its old kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.refinement.cpu_share import CpuShare, SharedBuilder, SharedRunner, keep_to_cores
from tilewright.compiler.refinement.stored_model import StoredModel, stored_model, with_tables
from tilewright.compiler.tuning.dispatch_tables import Tables
from tilewright.compiler.tuning.model_tuning import tune_model
from tilewright.compiler.tuning.operator_tuning import weights_of
from tilewright.compiler.verification.verify_in_turns import Arrays, Compared, compare
from tilewright.runtime.errors import OptionError
from tilewright.runtime.load.devices import device_for
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.artifact import Artifact, Bundle
from tilewright.runtime.program.artifact_writer import write_artifact
from tilewright.runtime.program.dispatch import DispatchTable
from tilewright.runtime.program.traffic import Traffic, model_of
from tilewright.runtime.shape import Expr
from tilewright.search.database.stored_log import open_log
from tilewright.search.libraries import load_libraries


@dataclass(frozen=True)
class RefineOptions:
    """seconds: of the search; holding old against new comes on top. cpu: the share of the machine that all of it keeps to.
    aside: keep this process to as many cores as the model was compiled for.
    log: path or URL of records to go on from and to add to. progress: told how the search goes; compared: of each shape."""

    seconds: float = 60.0
    cpu: CpuShare = field(default_factory=lambda: CpuShare(1.0))
    aside: bool = False
    seed: int = 0
    log: str | None = None
    progress: Callable[[Any], None] | None = None
    compared: Callable[[Compared], None] = lambda found: None


@dataclass(frozen=True)
class Refined:
    """shapes: the last comparison of each counted shape, the most frequent first. changed: operators that have other kernels.
    kept: operators that went back to their old ones, with the reason."""

    bundle: Bundle
    shapes: tuple[Compared, ...]
    calls: tuple[int, ...]
    changed: tuple[str, ...]
    kept: Mapping[str, str]

    @property
    def geomean(self) -> float:
        """Times as fast as before, the shapes weighted by their calls."""
        logs = np.log([1 / s.ratio for s in self.shapes])
        return float(np.exp(np.average(logs, weights=self.calls)))

    @property
    def worst(self) -> float:
        """Times as fast as before, where that is least."""
        return min(1 / s.ratio for s in self.shapes)


def refine(path: Path, traffic: Traffic, output: Path, arrays: Callable[[CompiledFunction], Arrays],
           options: RefineOptions) -> Refined:
    """Tune a saved model for what was counted and write the result as another one.

    Args:
        arrays: of a function: what it is called with at a shape to hold old against new.
    Raises:
        ArtifactError, OptionError: the model cannot be refined (stored_model), or the traffic is none of it.
    """
    opened = next(iter(Artifact(path).bundles("host")), None)
    if opened is None:
        raise OptionError(f"{path}: wanted a model for a host; compile it again with the option traffic")
    bundle = opened.load()
    if options.aside and bundle.program.asked.threads:
        keep_to_cores(bundle.program.asked.threads)
    traffic.refuse_other_model(model_of(bundle.program), str(path))
    shapes = _shapes(traffic, bundle.program.ranges(), path)
    wanted = CompileOptions(seconds=options.seconds, policy="ucb", seed=options.seed, progress=options.progress,
                            traffic=[(dims, calls) for dims, calls in shapes])
    options.cpu.rest()
    stored = stored_model(bundle, wanted)
    options.cpu.rest()
    log = open_log(options.log, writes=True)
    with ExitStack() as stack:
        stack.callback(log.finish)
        builder = SharedBuilder(stack.enter_context(WorkerBuilder(stored.model.compilation.target, workers=1)), options.cpu)
        runner = SharedRunner(stack.enter_context(options.cpu.runner(weights_of(stored.model).argument())), options.cpu)
        load_libraries()
        options.cpu.rest()
        found = stored.tables
        tune_model(stored.model, found, builder, runner, log)
    return _verified(stored, found, shapes, output, arrays, options)


def _shapes(traffic: Traffic, ranges: Mapping[str, Any], path: Path) -> list[tuple[dict[str, int], int]]:
    """Counted shapes within the ranges, the most frequent first; OptionError where none is of the model."""
    found = [(dict(s.dims), s.calls) for s in traffic.shapes
             if s.calls and s.dims.keys() == set(ranges) and all(ranges[n].contains(v) for n, v in s.dims.items())]
    if not found:
        raise OptionError(f"traffic: wanted calls at dims {', '.join(ranges) or 'none'} of {path} within their ranges, got "
                          f"{len(traffic.shapes)} shapes and none of them; give what fn.traffic().save() wrote of this model")
    return sorted(found, key=lambda s: -s[1])


def _verified(stored: StoredModel, found: Tables, shapes: Sequence[tuple[dict[str, int], int]], output: Path,
              arrays: Callable[[CompiledFunction], Arrays], options: RefineOptions) -> Refined:
    """Write what stands the comparison: operators go back to their old tables until every shape is good."""
    before = {t.workload: t for t in stored.tables.tables}
    old, kept = _function(stored.bundle), dict[str, str]()
    options.cpu.rest()
    given, bits = arrays(old), stored.bundle.program.asked.deterministic == "batch"
    while True:
        bundle = with_tables(stored, found)
        new, changed = _function(bundle), found.changed
        options.cpu.rest()
        results, against = list[Compared](), None
        for dims, _ in shapes:
            same = not _blamed(stored, changed, before, dims)
            result = Compared(dims, 0.0, 1.0, 0) if same else compare(old, new, dims, given, bits, options.cpu.timed)
            options.compared(result)
            results.append(result)
            if not result.good:
                against = result
                break
        if against is None:
            write_artifact(output, [bundle])
            return Refined(bundle, tuple(results), tuple(c for _, c in shapes), tuple(t.name for t in changed), kept)
        table = _worst(stored, changed, before, against, found)
        kept[table.name] = str(against)
        found = found.with_untuned({table.workload})


def _function(bundle: Bundle) -> CompiledFunction:
    program = bundle.program
    return CompiledFunction(program, bundle.code, bundle.constants, device_for(program, bundle.code), llvm_ir=bundle.llvm_ir,
                            threads=program.asked.threads)


def _blamed(stored: StoredModel, changed: Sequence[DispatchTable], before: Mapping[str, DispatchTable],
            dims: Mapping[str, int]) -> list[DispatchTable]:
    """Changed tables that serve this shape otherwise than before."""
    by_key = {t.workload: t for t in changed}
    found: dict[str, DispatchTable] = {}
    program = stored.bundle.program
    for call in program.calls:
        key = program.tables[call.table].workload
        if key in by_key:
            local = _local(program.tables[call.table], call.dims, call.layout, dims)
            if local is None or _served(by_key[key], local) != _served(before[key], local):
                found[key] = by_key[key]
    return list(found.values())


def _local(table: DispatchTable, texts: Sequence[str], layout: Mapping[str, str],
           dims: Mapping[str, int]) -> dict[str, int] | None:
    """The local dims and layout symbols of a call; None of one in a loop, whose dims are not the model's alone."""
    exprs = {**dict(zip(table.dims, map(Expr.parse, texts), strict=True)), **{n: Expr.parse(t) for n, t in layout.items()}}
    if any(not e.symbols <= dims.keys() for e in exprs.values()):
        return None
    return {name: e.evaluate(dims) for name, e in exprs.items()}


def _served(table: DispatchTable, local: Mapping[str, int]) -> tuple[str, int] | None:
    try:
        leaf = table.select(local)
    except KeyError:
        return None
    return table.kernels[leaf.kernel].object, leaf.threads


def _worst(stored: StoredModel, changed: Sequence[DispatchTable], before: Mapping[str, DispatchTable], against: Compared,
           found: Tables) -> DispatchTable:
    """The changed table of a bad shape that is expected to gain least: what its certificate says of the whole traffic."""
    blamed = _blamed(stored, changed, before, against.dims) or list(changed)
    gains = {c.workload: sum(e.default - e.predicted for e in c.expected if e.default) for c in found.certificates}
    return min(blamed, key=lambda t: gains.get(t.workload, 0.0))
