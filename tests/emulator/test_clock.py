"""The emulator's clock: a model of a GPU that is deterministic, and that sees what costs time."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_harness import build
from gpu_workloads import contraction, rows

from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.gpu.gpu_launch import enqueue, fetch, place
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.runner.emulator_clock import EmulatorClock

LIMITS = GpuLimits.of("sm_80")
SQUARE = contraction("m k,k n,m n", sizes={"n": 64, "k": 64})


def seconds(config: str, m: int, sample: int = 2, registers: int = 64, element: str = "f32") -> float:
    """Of [m, 64] x [64, 64]."""
    built = build(contraction("m k,k n,m n", element, {"n": 64, "k": 64}).text, config, LIMITS.arch)
    kind = {"f32": np.float32, "f16": np.float16}[element]
    arrays = [np.ones((m, 64), kind), np.ones((64, 64), kind), np.zeros((m, 64), kind)]
    return EmulatorClock(LIMITS, sample).seconds(built.kernel, built.code, _dims(built.kernel, m), arrays, 4 * m * 128, registers)


def _dims(kernel: MicroKernel, m: int) -> dict[str, int]:
    return {p.name: m for p in kernel.params if p.kind == "dim"}


def test_equal_runs_take_equal_time() -> None:
    assert seconds("simt{bm=16 bn=32}", 40) == seconds("simt{bm=16 bn=32}", 40)


@pytest.mark.parametrize("config", ["simt{bm=16 bn=32}", "simt{bm=16 bn=32 split-k=2}", "gpu_pointwise{vec=1}"])
def test_a_few_blocks_stand_for_all(config: str) -> None:
    assert seconds(config, 128, sample=2) == pytest.approx(seconds(config, 128, sample=1000), rel=0.02)


def test_time_grows_with_waves_and_with_what_a_block_holds() -> None:
    one = LIMITS.multiprocessors
    config = "simt{bm=16 bn=64 tm=2}"
    few, all_, next_, many = (seconds(config, 16 * n) for n in (1, one, one * 6 + 1, one * 40))
    assert few == pytest.approx(all_, rel=1e-3) and all_ < next_ < many
    assert seconds(config, 16 * one * 40, registers=255) >= many  # fewer resident blocks


def test_products_of_tensor_cores_are_faster_and_wide_accesses_too() -> None:
    m = 16 * 4 * LIMITS.multiprocessors
    assert seconds("mma{bm=64 bn=64 bk=32}", m, element="f16") < seconds("simt", m)
    assert seconds("mma{bm=64 bn=64 bk=32}", m, element="f16") < seconds("mma{bm=64 bn=64 bk=32 vec=1}", m, element="f16")


def test_only_the_chosen_blocks_run() -> None:
    built = build(SQUARE.text, "gpu_pointwise{vec=1 threads=64}", "sm_80")
    device = EmulatorDevice("sm_80")
    arrays = [np.ones((8, 64), np.float32), np.ones((64, 64), np.float32), np.full((8, 64), -1, np.float32)]
    placed = place(device, built.kernel, _dims(built.kernel, 8), arrays)
    enqueue(device, built.kernel, device.load(built.code), _dims(built.kernel, 8), placed, only=[1, 3])
    found = fetch(device, placed, 2, arrays[2])
    assert (found[[1, 3]] == 64).all() and (np.delete(found, [1, 3], axis=0) == -1).all()
    assert device.launches[0].batches == 1


def test_products_of_matrices_are_counted_by_their_shape() -> None:
    built = build(contraction("m k,k n,m n", "f16", {"n": 64, "k": 64}).text, "mma{bm=64 bn=64 bk=32}", "sm_80")
    device = EmulatorDevice("sm_80", profile=True)
    arrays = [np.ones((64, 64), np.float16), np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)]
    placed = place(device, built.kernel, _dims(built.kernel, 64), arrays)
    enqueue(device, built.kernel, device.load(built.code), _dims(built.kernel, 64), placed)
    counts = device.launches[0].instructions
    assert counts["mma.sync.m16n8k16"] == 64 * 64 * 64 // (16 * 8 * 16)
    assert counts["cp.async.cg"] and counts["cp.async.commit_group"] and counts["cp.async.wait_group"]


def test_rows_in_registers_beat_rows_that_are_read_again() -> None:
    config = "gpu_rows{{threads=128 per_row=32 vec=4 vectors-in-registers={} unroll=1}}"
    built = {held: build(rows("softmax", 256).text, config.format(held), "sm_80")
             for held in (0, 2)}
    clock, arrays = EmulatorClock(LIMITS), [np.ones((4096, 256), np.float32), np.zeros((4096, 256), np.float32)]
    times = {held: clock.seconds(b.kernel, b.code, _dims(b.kernel, 4096), arrays, 4096 * 256 * 8, 40)
             for held, b in built.items()}
    assert times[2] < times[0]


def test_what_the_emulator_refuses_is_an_error() -> None:
    with pytest.raises(EmulatorError):
        EmulatorDevice("sm_80").load(".visible .entry k( nonsense")
