"""An emulated GPU: PTX executed on NumPy arrays, with checks that name instruction, thread and address."""

from runtime.emulator.device import EmulatorDevice, LoadedModule
from runtime.emulator.findings import ALL_CHECKS, Check, EmulatorError, Finding, Report

__all__ = ["ALL_CHECKS", "Check", "EmulatorDevice", "EmulatorError", "Finding", "LoadedModule", "Report"]
