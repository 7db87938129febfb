"""The device of a target, and the caller that runs a program on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.call.caller import Caller
from tilewright.runtime.cuda.cuda_caller import CudaCaller
from tilewright.runtime.errors import OptionError, perhaps
from tilewright.runtime.gpu.accelerator import Accelerator
from tilewright.runtime.gpu.gpu_caller import GpuCaller
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.foreign_caller import ForeignCaller
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.required_features import foreign_machine, missing_features
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


@dataclass(frozen=True)
class Elsewhere:
    """A CPU that this machine has not, whose code is not loaded here. wanted, found: what the code is for and what is here,
    as words.
    """

    wanted: str
    found: str

    @property
    def name(self) -> str:
        return TargetKind.HOST.value


AnyDevice = HostDevice | Accelerator | Cuda | Elsewhere


@dataclass(frozen=True)
class DeviceName:
    """A kind of device, and which GPU of the process where a call does not say it."""

    kind: TargetKind
    ordinal: int = 0

    @staticmethod
    def parse(text: str) -> DeviceName:
        """"cpu" (or "host"), "cuda", "cuda:1", "emulator"; OptionError for others."""
        kind, _, rest = text.partition(":")
        try:
            target = Target.parse(kind)
        except OptionError:
            names = ("cpu", "cuda", "cuda:1", "emulator")
            raise OptionError(f"device={text!r}: wanted one of {', '.join(names)}, or None for what the file was saved for"
                              f"{perhaps(kind, names)}") from None
        if rest and (target.kind is not TargetKind.CUDA or not rest.isdecimal()):
            raise OptionError(f"device={text!r}: wanted 'cpu', 'emulator', or 'cuda' with the number of a GPU as in 'cuda:1'; "
                              f"leave {rest!r} out, the file says what it was compiled for")
        return DeviceName(target.kind, int(rest or 0))


def device_for(program: Program, code: Mapping[str, Memory], ordinal: int = 0, *, runs_here: bool = False) -> AnyDevice:
    """The device that a program was compiled for.

    Args:
        ordinal: the GPU of calls with host arrays alone.
        runs_here: is it known that this CPU has what the code needs?
    """
    target = Target.parse(program.target)
    if target.kind is TargetKind.HOST:
        foreign = None if runs_here else foreign_machine(bytes(code[program.host_object][:64]))
        if foreign is not None:
            return Elsewhere(foreign, f"this machine is {machine()}")
        lacking = missing_features(program.features) if target.arch and not runs_here else ()
        if lacking:
            return Elsewhere(f"a CPU with {', '.join(lacking)}", "this one has not")
        return HostDevice(bytes(code[program.runtime_object]))
    if target.kind is TargetKind.EMULATOR:
        from tilewright.runtime.emulator.emulator_device import EmulatorDevice

        return EmulatorDevice(target.arch)
    return Cuda(ordinal)


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
        if isinstance(device, Elsewhere):
            return ForeignCaller(program, device.wanted, device.found)
        return HostCaller(program, code, constants, device, threads)  # type: ignore[arg-type]
    return GpuCaller(program, code, constants, device)  # type: ignore[arg-type]
