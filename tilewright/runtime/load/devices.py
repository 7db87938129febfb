"""The device of a target, and the caller that runs a program on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.call.caller import Caller
from tilewright.runtime.cuda.cuda_caller import CudaCaller
from tilewright.runtime.errors import OptionError
from tilewright.runtime.gpu.accelerator import Accelerator
from tilewright.runtime.gpu.gpu_caller import GpuCaller
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.program.artifact import Memory
from tilewright.runtime.program.program import Program
from tilewright.runtime.target import Target, TargetKind


@dataclass(frozen=True)
class Cuda:
    """The GPUs of this process, if there are any: that is looked at when a program is first called.

    ordinal: the GPU of calls with host arrays alone; other calls run where their arrays lie.
    """

    ordinal: int = 0

    @property
    def name(self) -> str:
        return TargetKind.CUDA.value


AnyDevice = HostDevice | Accelerator | Cuda


def device_for(program: Program, code: Mapping[str, Memory]) -> AnyDevice:
    """The device that a program was compiled for."""
    target = Target.parse(program.target)
    if target.kind is TargetKind.HOST:
        return HostDevice(bytes(code[program.runtime_object]))
    if target.kind is TargetKind.EMULATOR:
        from tilewright.runtime.emulator.emulator_device import EmulatorDevice

        return EmulatorDevice(target.arch)
    return Cuda()


def caller_for(program: Program, code: Mapping[str, Memory], constants: Mapping[str, Memory], device: AnyDevice,
               threads: int | None) -> Caller:
    """What runs the program's calls on a device.

    Raises:
        OptionError: the device is of another kind than the program's target.
    """
    kind = Target.parse(program.target).kind
    if device.name.partition(":")[0] != kind.value:
        raise OptionError(f"device {device.name}: the model is compiled for {program.target}")
    if isinstance(device, Cuda):
        return CudaCaller(program, code, constants, device.ordinal)
    if kind is TargetKind.HOST:
        return HostCaller(program, code, constants, device, threads)  # type: ignore[arg-type]
    return GpuCaller(program, code, constants, device)  # type: ignore[arg-type]
