"""The emulator's sweeps of every family, element type and epilogue, on a CUDA device: the same tests over the same shapes."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import gpu_harness
import pytest
from gpu.cuda_device import FilledDevice, missing_reason

REASON = missing_reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]
MODULES = ("test_families", "test_gemv", "test_mma", "test_cluster_sums", "test_wgmma", "test_gpu_attention",
           "test_wgmma_attention", "test_mma_rows")


def _sweeps() -> dict[str, Callable[..., None]]:
    """Tests that launch through tests/gpu_harness.py, and nowhere else."""
    found = {}
    for module in MODULES:
        if importlib.util.find_spec(f"emulator.{module}") is None:
            continue
        for name, test in vars(importlib.import_module(f"emulator.{module}")).items():
            if name.startswith("test_") and inspect.isfunction(test) and "sweep(" in inspect.getsource(test):
                found[f"{name}_of_{module.removeprefix('test_')}"] = test
    return found


globals().update(_sweeps())


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A kernel for a later architecture than the GPU's is skipped."""
    made = FilledDevice()

    class OnTheGpu:
        """Takes the emulator's place."""

        def __new__(cls, arch: str, **_: object) -> Any:
            from tilewright.runtime.cuda.cuda_device import cannot_run

            reason = cannot_run(arch, made.ordinal)
            if reason:
                pytest.skip(reason)
            return made

    monkeypatch.setattr(gpu_harness, "EmulatorDevice", OnTheGpu)
    yield made
    made.close()
