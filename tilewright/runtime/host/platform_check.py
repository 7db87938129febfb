"""Whether compiled models can run here: their host code is ELF for x86-64, called through Linux's ABI."""

from __future__ import annotations

import platform

from tilewright.runtime.errors import DeviceError


def check_platform() -> None:
    """DeviceError, in one line, where this is not Linux on x86-64."""
    system, processor = platform.system(), platform.machine()
    if system != "Linux" or processor.lower() not in ("x86_64", "amd64"):
        raise DeviceError(f"Tilewright runs on Linux x86-64, and this is {system} {processor}; use a Linux x86-64 machine, a "
                          "container or WSL 2")
