"""The Runner with which a model is tuned for a GPU target: kernels are checked against the reference before they are timed."""

from __future__ import annotations

from compiler.dispatch_tables import Tables
from compiler.expected import Expectations
from compiler.outlined_model import OutlinedModel
from compiler.tuning import task_of
from search.runner.gpu_process import gpu_process
from search.runner.runner_process import ProcessRunner


def gpu_runner(model: OutlinedModel, tables: Tables) -> ProcessRunner:
    """On the GPU that is here, or on the emulator."""
    points = {w.key: task_of(w, model, tables).points for w in model.workloads}
    compilation = model.compilation
    return gpu_process(compilation.target, Expectations(model.workloads, points, compilation.options.seed))
