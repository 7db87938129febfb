"""GpuImage: PTX with machine code beside it, and which of them a device is given."""

from __future__ import annotations

import pytest

from tilewright.runtime.emulator import EmulatorDevice
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.gpu.gpu_image import GpuImage, machine_code_fits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.runner.measurer import code_digest

PTX = b".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{ ret; }\n"
CUBIN = b"\x7fELF\0 machine code"
BOTH = GpuImage(PTX, CUBIN, "sm_90a")


def test_what_was_stored_is_read() -> None:
    assert GpuImage.of(BOTH.stored()) == BOTH
    assert GpuImage(PTX).stored() == PTX and GpuImage.of(PTX) == GpuImage(PTX)
    assert GpuImage.of(CUBIN) == GpuImage(b"", CUBIN)


def test_a_device_is_given_machine_code_that_fits_and_else_ptx() -> None:
    assert BOTH.for_device("sm_90a") == (CUBIN, PTX)
    assert BOTH.for_device("sm_100a") == GpuImage(PTX).for_device("sm_90a") == (PTX,)
    assert GpuImage(b"", CUBIN).for_device("sm_80") == (CUBIN,)


@pytest.mark.parametrize("arch,runs", [("sm_80", {"sm_80", "sm_86", "sm_89"}), ("sm_90a", {"sm_90a"}),
                                       ("sm_86", {"sm_86", "sm_89"}), ("sm_100f", {"sm_100a", "sm_103a"}), ("", set())])
def test_machine_code_runs_on_later_devices_of_its_generation(arch: str, runs: set[str]) -> None:
    devices = {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a"}
    assert {d for d in devices if machine_code_fits(arch, d)} == runs


@pytest.mark.parametrize("cut", [9, 40, -1])
def test_a_cut_image_is_refused(cut: int) -> None:
    with pytest.raises(DeviceError, match=r"truncated|damaged"):
        GpuImage.of(BOTH.stored()[:cut])


def test_the_emulator_runs_the_ptx() -> None:
    EmulatorDevice("sm_90a").load(BOTH.stored()).kernel("k")


def test_equal_ptx_is_equal_code() -> None:
    kernel = MicroKernel("k", "w", "simt", "", (), ("1", "1", "1"))
    assert code_digest(kernel, BOTH.stored()) == code_digest(kernel, PTX)
