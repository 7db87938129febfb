"""From a model to an archive of candidate kernels, to be measured where the GPU is (search/archive/kernel_archive.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.compiler.tuning.dispatch_tables import default_tables, numerics_of
from tilewright.compiler.tuning.expected import Expectations
from tilewright.compiler.tuning.operator_tuning import task_of, weight_of
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.errors import OptionError
from tilewright.search.archive.kernel_archive import ArchiveOperator, Contents, write_archive
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.protocols import Builder
from tilewright.search.search_strategy.candidates import candidates
from tilewright.search.space.task import Task

KERNELS = 64


def archive_kernels(compilation: Compilation, path: Path, kernels: int = KERNELS,
                    progress: Callable[[str, int, int], None] = lambda name, built, failed: None,
                    choose: Callable[[Task, int], Sequence[TileConfig]] | None = None) -> Contents:
    """Build candidates for every operator of a model and write them to `path`.

    Args:
        kernels: most candidates of an operator. choose: gives them; None takes those that promise most. progress: told the
            operator's name, its kernels and its failures.
    Raises:
        OptionError: the target is no GPU. IngestError, BuildError: as `compile`.
    """
    if not compilation.on_gpu:
        raise OptionError(f"target {compilation.target}: wanted a GPU of a named architecture, as in cuda:sm_90a")
    if kernels < 1:
        raise OptionError(f"kernels={kernels}: wanted at least 1")
    model, options = outline(compilation), compilation.options
    with ExitStack() as stack:
        builder = options.builder or stack.enter_context(WorkerBuilder(compilation.target, inspect=True))
        tables = default_tables(model.workloads, compilation.limits, builder, numerics_of(options))
        code: dict[str, bytes] = {}
        operators = []
        for workload in model.workloads:
            task = task_of(workload, model, tables)
            chosen = choose(task, kernels) if choose else candidates(task, kernels, options.seed)
            operator, images = _operator(task, model, builder, chosen)
            progress(workload.name, len(operator.kernels), len(operator.failed))
            operators.append(operator)
            code |= images
    points = {o.workload.key: o.points for o in operators}
    cases = Expectations(model.workloads, points, options.seed)
    contents = Contents(str(compilation.target), operators, code, cases, {"compiler": fingerprint()[:12]}, options.seed,
                        options.max_regret, options.max_kernels)
    write_archive(path, contents)
    return contents


def _operator(task: Task, model: OutlinedModel, builder: Builder,
              chosen: Sequence[TileConfig]) -> tuple[ArchiveOperator, dict[str, bytes]]:
    """The operator with its built candidates, and their images by digest."""
    workload = task.workload
    built = builder.build([(workload, c) for c in chosen])
    good = tuple(r.kernel for r in built if r.kernel is not None)
    failed = {config_text(c): r.error for c, r in zip(chosen, built, strict=True) if r.kernel is None}
    images = {r.kernel.object: r.code for r in built if r.kernel is not None}
    points = task.points
    return ArchiveOperator(WorkloadForm.of(workload), task.families, good, points.shapes, points.weights, task.held_out,
                           weight_of(workload, model), points.measured_weights, failed), images
