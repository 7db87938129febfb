"""The device of a target, and the caller that runs a program on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from runtime.artifact import Memory
from runtime.caller import Caller
from runtime.cpu import HostDevice
from runtime.errors import DeviceError
from runtime.gpu_caller import Accelerator, GpuCaller
from runtime.program import Program
from runtime.target import Target, TargetKind


class AbsentDevice:
    """Stands for a GPU that this machine lacks: a program for it can be saved and explained, not called."""

    def __init__(self, target: Target) -> None:
        self.name = str(target)


class AbsentCaller:
    """Refuses every call."""

    native = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise DeviceError(f"the model is compiled for {self.name} and no such device is here; save() it and load() it where "
                          f"there is one, or compile for emulator:{self.name.partition(':')[2]} to run it on this CPU")

    def thread_count(self, threads: int | None = None) -> int:
        return 1


AnyDevice = HostDevice | Accelerator | AbsentDevice


def device_for(program: Program, code: Mapping[str, Memory]) -> AnyDevice:
    """The device that a program was compiled for; AbsentDevice where there is none here."""
    target = Target.parse(program.target)
    if target.kind is TargetKind.HOST:
        return HostDevice(bytes(code[program.runtime_object]))
    if target.kind is TargetKind.EMULATOR:
        from runtime.emulator.device import EmulatorDevice

        return EmulatorDevice(target.arch)
    return AbsentDevice(target)


def caller_for(program: Program, code: Mapping[str, Memory], constants: Mapping[str, Memory], device: AnyDevice,
               threads: int | None) -> Caller | GpuCaller | AbsentCaller:
    """What runs the program's calls on a device."""
    kind = Target.parse(program.target).kind
    if isinstance(device, AbsentDevice):
        return AbsentCaller(device.name)
    if kind is TargetKind.HOST:
        return Caller(program, code, constants, device, threads)  # type: ignore[arg-type]
    return GpuCaller(program, code, constants, device)  # type: ignore[arg-type]
