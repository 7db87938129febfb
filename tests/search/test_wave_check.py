"""The check of a kernel over two waves of blocks: which dims repeat, how far, and what it notices."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gpu_surfaces import H100, attention, narrow, pointwise, rows, square
from search_surfaces import dense, square_pair

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.runner.gpu_runner import GpuRunner
from tilewright.search.runner.verification import Case, seeded
from tilewright.search.runner.wave_check import WAVES, WaveCheck, repeatable, wave_check, waves

FEW = replace(H100, multiprocessors=2)
W = dense(96, 16)
KERNEL = MicroKernel("k", W.key, "simt", "simt{bm=32 bn=32 bk=8 tm=4 tn=4}", (), ("1", "1", "1"))


def case(m: int = 37, workload: Workload = W) -> Case:
    shape = (("d0", m),)
    a, b = (x.astype(np.float64) for x in seeded(workload, shape, 3))
    return Case(shape, 3, (a @ b,))


def check() -> WaveCheck:
    found = wave_check(W, KERNEL, [case(8), case()], FEW)
    assert found is not None
    return found


def test_dims_that_repeat() -> None:
    assert [repeatable(w) for w in (W, narrow(), rows(), pointwise(), square_pair())] == ["d0"] * 5
    assert [repeatable(w) for w in (square(), attention())] == ["d0", None]  # the rows of x in x @ w; queries that are keys too
    assert repeatable(replace(W, ir="linalg.index 0")) is None


def test_the_smallest_repetition_that_fills_the_device_twice() -> None:
    found = check()
    assert dict(found.case.shape) == {"d0": 37} and waves(W, KERNEL, found.shape, FEW) >= WAVES
    assert waves(W, KERNEL, (("d0", 37 * found.count // 2),), FEW) < WAVES
    assert wave_check(W, replace_guards("mod(d0, 64)"), [case()], FEW) is None
    assert wave_check(W, KERNEL, [Case((("d0", 0),), 3, (np.zeros((0, 96)),))], FEW) is None


def replace_guards(*guards: str) -> MicroKernel:
    return MicroKernel("k", W.key, "simt", KERNEL.config, (), ("1", "1", "1"), guards=guards)


def test_right_results_pass_and_one_wrong_tile_does_not() -> None:
    found = check()
    a, b, empty = found.arrays(seeded(found.workload, found.case.shape, found.case.seed))
    right = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    assert empty.shape == right.shape and found.why_wrong([right], KERNEL) is None
    for change in (0.0, np.nan, np.inf):
        wrong = right.copy()
        wrong[-16:, -16:] = change
        assert found.why_wrong([wrong], KERNEL)
    shifted = np.roll(right, 1, 0)
    assert "waves of blocks: norm error" in str(found.why_wrong([shifted], KERNEL))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_results_of_16_bits(dtype: type) -> None:
    w = narrow(96, 64)
    found = WaveCheck(w, case(19, w), "d0", 40)
    a, b, _ = found.arrays(seeded(found.workload, found.case.shape, found.case.seed))
    right = (a.astype(np.float64) @ b.astype(np.float64)).astype(dtype)
    kernel = MicroKernel("k", "", "simt", "simt", (), ("1", "1", "1"))
    if dtype is np.float16:
        assert found.why_wrong([right], kernel) is None
    wrong = right.copy()
    wrong[128:256] = 0
    assert found.why_wrong([wrong], kernel)


class Gpu:
    """Multiplies in NumPy; where there are many rows its last ones are wrong, if it is told so."""

    cache = "none"

    def __init__(self, filled: GpuLimits | None, wrong: bool) -> None:
        self.filled, self.wrong, self.rows = filled, wrong, list[int]()

    def run(self, kernel: MicroKernel, image: bytes, dims: dict[str, int], arrays: list[np.ndarray]) -> list[np.ndarray]:
        a, b, _ = arrays
        self.rows.append(len(a))
        got = a @ b
        if self.wrong and len(a) > 100:
            got[-32:] = 0
        return [a, b, got]

    def time(self, *_: object) -> list[float]:
        return [1.0]


@pytest.mark.parametrize("filled,wrong,refused", [(None, True, False), (FEW, False, False), (FEW, True, True)])
def test_a_kernel_that_fails_in_its_second_wave_never_wins(filled: GpuLimits | None, wrong: bool, refused: bool) -> None:
    gpu = Gpu(filled, wrong)
    runner = GpuRunner(gpu, {W.key: [case()]})  # type: ignore[arg-type]
    for _ in range(2):
        assert ("2 waves of blocks" in runner.run(W, KERNEL, b"image", {"d0": 8}).error) == refused
    assert len(gpu.rows) == (1 if filled is None else 2)
