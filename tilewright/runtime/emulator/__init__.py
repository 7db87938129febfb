"""An emulated GPU: PTX executed on NumPy arrays, with checks that name instruction, thread and address."""

from tilewright.runtime.emulator.emulator_device import EmulatorDevice, LoadedModule
from tilewright.runtime.emulator.machine.findings import ALL_CHECKS, EmulatorError, Finding, FindingReport, KernelCheck

__all__ = ["ALL_CHECKS", "EmulatorDevice", "EmulatorError", "Finding", "FindingReport", "KernelCheck", "LoadedModule"]
