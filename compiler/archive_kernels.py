"""From a model to an archive of candidate kernels, to be measured where the GPU is (search/archive/kernel_archive.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compiler.api import outline_model, shape_range
from compiler.assemble import distinct
from compiler.bind_constants import bind_constants
from compiler.codegen import limits
from compiler.expected import Expectations
from compiler.fingerprint import fingerprint
from compiler.ingest import ingest
from compiler.options import CompileOptions
from compiler.source import ModelIR
from compiler.tables import Numerics, Tables, default_tables
from compiler.tuning import Request, task_of, weight_of
from compiler.uses import uses_of
from compiler.worker_builder import WorkerBuilder
from passes.spaces.registry import config_text
from passes.workload import Workload
from runtime.errors import OptionError
from runtime.shape import Dim
from runtime.target import Target, TargetKind
from search.archive.kernel_archive import ArchiveOperator, Contents, write_archive
from search.database.workload_form import WorkloadForm
from search.protocols import Builder
from search.search_strategy.candidates import candidates

KERNELS = 64


def archive_kernels(model_ir: ModelIR, dynamic_dims: Mapping[str, Dim | tuple[int, int]], target: Target | str, path: Path,
                    options: CompileOptions | None = None, *, constants: Mapping[str, Any] | None = None,
                    function: str | None = None, kernels: int = KERNELS, builder: Builder | None = None,
                    progress: Callable[[str, int, int], None] = lambda name, built, failed: None) -> Contents:
    """Build candidates for every operator of a model and write them to `path`.

    Args:
        kernels: most candidates of an operator. progress: told the operator's name, its kernels and its failures.
        others: as of compiler.api.compile.
    Raises:
        OptionError: the target is no GPU of a named architecture. IngestError, BuildError: as `compile`.
    """
    options = options or CompileOptions()
    target = Target.parse(target) if isinstance(target, str) else target
    if target.kind is TargetKind.HOST or not target.arch:
        raise OptionError(f"target {target}: wanted a GPU of a named architecture, as in cuda:sm_90a")
    if kernels < 1:
        raise OptionError(f"kernels={kernels}: wanted at least 1")
    ingested = ingest(model_ir, dynamic_dims, function)
    options.check_traffic(shape_range(ingested))
    ingested, bound = bind_constants(ingested, constants or {})
    outlined, workloads = outline_model(ingested.text, bound, limits(target), options)
    made = distinct(list(workloads.values()))
    request = Request(made, uses_of(outlined, workloads), shape_range(ingested), target, options)
    if builder is None:
        with WorkerBuilder(target, inspect=True) as workers:
            contents = _contents(request, workers, kernels, progress)
    else:
        contents = _contents(request, builder, kernels, progress)
    write_archive(path, contents)
    return contents


def _contents(request: Request, builder: Builder, kernels: int, progress: Callable[[str, int, int], None]) -> Contents:
    options = request.options
    tables = default_tables(request.workloads, limits(request.target), builder, Numerics.of(options))
    code: dict[str, bytes] = {}
    operators = [_operator(w, request, tables, builder, kernels, code, progress) for w in request.workloads]
    points = {o.workload.key: o.points for o in operators}
    cases = Expectations(request.workloads, points, options.seed)
    return Contents(str(request.target), operators, code, cases, {"compiler": fingerprint()[:12]}, options.seed,
                    options.max_regret, options.max_kernels)


def _operator(workload: Workload, request: Request, tables: Tables, builder: Builder, kernels: int, code: dict[str, bytes],
              progress: Callable[[str, int, int], None]) -> ArchiveOperator:
    """Builds the candidates; their images go to `code`, equal ones once."""
    task = task_of(workload, request, tables)
    chosen = candidates(task, kernels, request.options.seed)
    built = builder.build([(workload, c) for c in chosen])
    good = [r.kernel for r in built if r.kernel is not None]
    code |= {r.kernel.object: r.code for r in built if r.kernel is not None}
    failed = {config_text(c): r.error for c, r in zip(chosen, built, strict=True) if r.kernel is None}
    progress(workload.name, len(good), len(failed))
    points = task.points
    return ArchiveOperator(WorkloadForm.of(workload), task.families, tuple(good), points.shapes, points.weights, task.held_out,
                           weight_of(workload, request), points.measured_weights, failed)
