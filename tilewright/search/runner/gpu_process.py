"""The Runner of a GPU target: a process of its own that verifies and times kernels (search/runner/gpu_worker.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.runtime.target import Target, TargetKind
from tilewright.search.runner.runner_process import ProcessRunner
from tilewright.search.runner.verification import Case

GPU_WORKER = f"{__package__}.gpu_worker"
_EMULATED, _SECONDS = 600.0, 30.0


def gpu_process(target: Target, cases: Mapping[str, Sequence[Case]], ordinal: int = 0) -> ProcessRunner:
    """On the GPU `ordinal` that is here, or on the emulator of the target's architecture."""
    return ProcessRunner(time_limit(target), GPU_WORKER, (str(target), str(ordinal)), cases)


def time_limit(target: Target) -> float:
    """Seconds that verifying and timing a kernel may take."""
    return _EMULATED if target.kind is TargetKind.EMULATOR else _SECONDS
