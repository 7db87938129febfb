from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu_fake_worker import FakeGpu
from gpu_surfaces import H100, square
from search_surfaces import Clock, dense, rows_up_to

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import BuildResult
from tilewright.search.runner import gpu_runner
from tilewright.search.runner.measurer import Measurer
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.runner.runner_process import ProcessRunner
from tilewright.search.runner.verification import Case, seeded
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Task

W = dense(32, 16)
SHAPE = (("d0", 3),)


def expected(workload: Workload = W, seed: int = 0) -> Case:
    a, b = (x.astype(np.float64) for x in seeded(workload, SHAPE, seed))
    return Case(SHAPE, seed, (a @ b,))


def kernel(image: bytes, guards: tuple[str, ...] = ()) -> MicroKernel:
    return MicroKernel("k", W.key, "simt", image.decode(), (), ("1", "1", "1"), guards=guards)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessRunner]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    with ProcessRunner(10.0, "gpu_fake_worker", cases={W.key: [expected()]}) as found:
        yield found


def test_a_verified_kernel_is_timed(runner: ProcessRunner) -> None:
    found = runner.run(W, kernel(b"good"), b"good", {"d0": 8})
    assert not found.error and found.seconds[0] == 1.0 and found.cache == "none"


def test_a_wrong_kernel_is_refused_at_every_shape(runner: ProcessRunner) -> None:
    for m in (8, 3):
        found = runner.run(W, kernel(b"wrong"), b"wrong", {"d0": m})
        assert not found.seconds and "wrong: result 0" in found.error
    assert not runner.run(W, kernel(b"good"), b"good", {"d0": 8}).error


def test_operands_are_made_once_for_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(workload: Workload, shape: Dims, seed: int) -> list[np.ndarray]:
        made.append(seed)
        return seeded(workload, shape, seed)

    monkeypatch.setattr(gpu_runner, "seeded", counted)
    here = gpu_runner.GpuRunner(FakeGpu(), {W.key: [expected(), expected(seed=5)]})
    for image in (b"good", b"wrong", b"as good"):
        assert bool(here.run(W, kernel(image), image, dict(SHAPE)).error) == (image == b"wrong")
    assert made == [0, 5]


def test_what_cannot_be_verified_cannot_win(runner: ProcessRunner) -> None:
    guarded = kernel(b"good", ("mod(d0, 8)",))  # the known outputs are of 3 rows
    found = runner.run(W, guarded, b"good", {"d0": 8})
    assert not found.seconds and "not verified" in found.error
    other = square()
    assert "not verified" in runner.run(other, kernel(b"other"), b"other", {"d0": 8, "d1": 8}).error


@pytest.mark.parametrize("image", [b"sticky", b"late sticky"])
def test_a_sticky_error_costs_the_process_and_one_kernel(runner: ProcessRunner, image: bytes) -> None:
    before = runner.run(W, kernel(b"good"), b"good", {"d0": 8}).seconds[1]
    lost = runner.run(W, kernel(image), image, {"d0": 8})
    assert not lost.seconds and "ILLEGAL_ADDRESS" in lost.error
    after = runner.run(W, kernel(b"good"), b"good", {"d0": 8})
    assert not after.error and after.seconds[1] != before  # another process


def test_an_error_that_is_not_sticky_keeps_the_process(runner: ProcessRunner) -> None:
    before = runner.run(W, kernel(b"good"), b"good", {"d0": 8}).seconds[1]
    assert "INVALID_VALUE" in runner.run(W, kernel(b"refused"), b"refused", {"d0": 8}).error
    assert runner.run(W, kernel(b"good"), b"good", {"d0": 9}).seconds[1] == before


def test_a_hanging_kernel_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    with ProcessRunner(2.0, "gpu_fake_worker", cases={W.key: [expected()]}) as quick:
        assert "time limit" in quick.run(W, kernel(b"hang"), b"hang", {"d0": 8}).error


def test_refusals_are_records_that_never_win(runner: ProcessRunner) -> None:
    task = Task.of(W, H100, ("simt",), rows_up_to(64))
    configs = task.lattice().configs[:2]

    class Images(ReplayBuilder):
        def _build(self, workload: Workload, text: str, family: str) -> BuildResult:
            image = b"wrong" if text == configs_text[0] else b"good"
            return BuildResult(MicroKernel("k", workload.key, family, text, (), ("1", "1", "1"), guards=("floordiv(d0, 999)",)),
                               image)

    configs_text = task.lattice().texts[:2]
    log = TuningLog()
    noted: dict[str, object] = {}
    measurer = Measurer(W, Clock().context(runner, log, Images()), noted.__setitem__)
    bad, good = (measurer.measure(c, (("d0", 8),), 1) for c in configs)
    assert bad is not None and good is not None and "wrong" in bad.error and good.seconds
    assert good.built is not None and good.built.guards == ("floordiv(d0, 999)",) and set(noted) == set(configs_text)
    again: dict[str, object] = {}
    Measurer(W, Clock().context(runner, log, Images()), again.__setitem__)
    assert again == noted  # a log tells what was built
