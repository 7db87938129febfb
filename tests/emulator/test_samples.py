"""Whole kernels that LLVM generated: simt f32 and mma.sync f16 matmuls with cp.async pipelines, run-time M, N, K."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError, KernelCheck

DATA = Path(__file__).parent / "data"
KERNELS = {
    "simt_64x64x16": (np.float32, 256, 3 * (64 * 20 + 16 * 64) * 4),
    "mma_64x64x64": (np.float16, 128, 3 * (64 * 64 * 2) * 2),
}


def matmul(name: str, m: int, n: int, k: int, text: str | None = None, **options: object) -> tuple[float, EmulatorDevice]:
    """Norm-relative error against float64, and the device."""
    dtype, threads, shared = KERNELS[name]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    device = EmulatorDevice(**options)  # type: ignore[arg-type]
    module = device.load(text or (DATA / f"{name}.ptx").read_text())
    out = device.alloc(m * n * 4)
    slots = [device.upload(a), device.upload(b), out, m, n, k]
    device.launch(module.kernel("mm"), (-(-n // 64), -(-m // 64), 1), (threads, 1, 1), shared, slots)
    got, wanted = device.copy_out(out, (m, n), np.float32), a.astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted)), device


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (1, 8, 16), (63, 72, 200), (130, 64, 8)])
@pytest.mark.parametrize("seed", [None, 0])
def test_matmul(name: str, m: int, n: int, k: int, seed: int | None) -> None:
    error, device = matmul(name, m, n, k, seed=seed)
    assert error <= 1e-6
    assert not device.report.findings


def test_statistics_count_what_was_issued() -> None:
    _, device = matmul("simt_64x64x16", 64, 64, 64, profile=True)
    counts = device.launches[0]
    assert counts.instructions["fma.f32"] == 64 * 64 * 64 // 32
    assert counts.instructions["ld.shared"] == 8 * 4 * 32
    assert counts.bytes_written["global"] == 64 * 64 * 4
    assert counts.sectors >= 3 * 64 * 64 * 4 // 32
    assert counts.shared_wavefronts >= counts.shared_ideal > 0
    assert counts.barriers == 4


def dropped(text: str, piece: str, which: int = 0) -> str:
    """`text` without one line that contains `piece`."""
    lines = text.split("\n")
    at = [i for i, line in enumerate(lines) if piece in line][which]
    return "\n".join(lines[:at] + lines[at + 1 :])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("piece", ["bar.sync", "cp.async.wait_group"])
def test_a_dropped_synchronisation_is_found(name: str, piece: str) -> None:
    text = dropped((DATA / f"{name}.ptx").read_text(), piece)
    with pytest.raises(EmulatorError) as error:
        matmul(name, 64, 64, 256, text)
    assert error.value.finding is not None and error.value.finding.check in (KernelCheck.RACE, KernelCheck.UNINITIALISED)


def test_a_shrunk_buffer_is_found() -> None:
    dtype, threads, shared = KERNELS["simt_64x64x16"]
    device = EmulatorDevice()
    module = device.load((DATA / "simt_64x64x16.ptx").read_text())
    a = device.upload(np.zeros((64, 64), dtype))
    with pytest.raises(EmulatorError, match="out-of-bounds") as error:
        device.launch(module.kernel("mm"), (1, 1, 1), (threads, 1, 1), shared - 16, [a, a, device.alloc(64 * 64 * 4), 64, 64, 64])
    assert error.value.finding is not None and error.value.finding.address is not None
