"""The Runner with which a model is tuned for a GPU target: kernels are checked against the reference before they are timed."""

from __future__ import annotations

from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.compiler.tuning.dispatch_tables import Tables
from tilewright.compiler.tuning.expected import Expectations
from tilewright.compiler.tuning.operator_tuning import task_of
from tilewright.search.runner.gpu_process import gpu_process
from tilewright.search.runner.runner_process import ProcessRunner


def gpu_runner(model: OutlinedModel, tables: Tables) -> ProcessRunner:
    """On the GPU that is here, or on the emulator."""
    return gpu_process(model.compilation.target, expectations(model, tables))


def expectations(model: OutlinedModel, tables: Tables) -> Expectations:
    """What the kernels of a model must give at some shapes of its range."""
    points = {w.key: task_of(w, model, tables).points for w in model.workloads}
    return Expectations(model.workloads, points, model.compilation.options.seed)
