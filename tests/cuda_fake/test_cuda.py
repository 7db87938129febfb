"""The CUDA device against a driver whose GPUs are emulators: cuda-python, the native table and the caller as they are."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Iterator

import llvm_level
import pytest
from cuda_fake.worker import Worker, scenarios

MODULES = ("scenarios_calls", "scenarios_graphs", "scenarios_nodes", "scenarios_updates", "scenarios_failures",
           "scenarios_kernels", "scenarios_ragged", "scenarios_many", "scenarios_bench", "scenarios_partitions")
_MISSING = "cuda-python is not installed" if importlib.util.find_spec("cuda") is None else ""
_MISSING = _MISSING or ("" if platform.machine() == "x86_64" else "the fake driver's library is for x86-64")
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)
CASES = [] if _MISSING else [(m, n, f.__dict__.get("driver")) for m in MODULES for n, f in scenarios(m).items()]


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[[], Worker]]:
    """One process for all scenarios that share one; a new one where the last was lost."""
    made: list[Worker] = []

    def get() -> Worker:
        if not made or made[-1].lost:
            made.append(Worker({}))
        return made[-1]

    yield get
    for worker in made:
        worker.close()


@pytest.mark.parametrize("module,name,driver", CASES, ids=[f"{m.removeprefix('scenarios_')}-{n}" for m, n, _ in CASES])
def test_scenario(shared: Callable[[], Worker], module: str, name: str, driver: dict[str, object] | None,
                  request: pytest.FixtureRequest) -> None:
    worker = shared() if driver is None else Worker(driver)
    failure = worker.run(module, name, llvm_level.is_whole(request.config) or llvm_level.is_as_shipped(name))
    if driver is not None:
        worker.close()
    assert not failure, failure
