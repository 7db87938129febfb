"""An emulated GPU: PTX executed on NumPy arrays, with checks that name instruction, thread and address."""

from runtime.emulator.emulator_device import EmulatorDevice, LoadedModule
from runtime.emulator.machine.findings import ALL_CHECKS, EmulatorError, Finding, FindingReport, KernelCheck

__all__ = ["ALL_CHECKS", "EmulatorDevice", "EmulatorError", "Finding", "FindingReport", "KernelCheck", "LoadedModule"]
