"""The Runner with which a model is tuned for a GPU target: kernels are checked against the reference before they are timed."""

from __future__ import annotations

from compiler.expected import Expectations
from compiler.tables import Tables
from compiler.tuning import Request, task_of
from search.runner.gpu_process import gpu_process
from search.runner.runner_process import ProcessRunner


def gpu_runner(request: Request, tables: Tables) -> ProcessRunner:
    """On the GPU that is here, or on the emulator."""
    points = {w.key: task_of(w, request, tables).points for w in request.workloads}
    return gpu_process(request.target, Expectations(request.workloads, points, request.options.seed))
