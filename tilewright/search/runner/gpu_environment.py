"""How records name a GPU, and what a name tells: its architecture and its multiprocessors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tilewright.runtime.cuda.cuda_device import limits_of, properties_of
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.database.records import TuningLog

_NAME = re.compile(r"(cuda|emulator):(\w+) .*, (\d+) multiprocessors")


def device_name(target: Target, ordinal: int = 0) -> str:
    """Of the emulator, or of the GPU that is here; DeviceError where there is none."""
    if target.kind is TargetKind.EMULATOR:
        from tilewright.search.runner.emulator_clock import VERSION  # a host never loads the emulator

        return f"{target} model {VERSION}, {GpuLimits.of(target.arch).multiprocessors} multiprocessors"
    at = properties_of(ordinal)
    return f"cuda:{at['arch']} {at['name']}, {at['multiprocessors']} multiprocessors"


def limits_of_name(name: str) -> GpuLimits:
    """Limits of a device that is known by its name only; OptionError for a name that is no GPU's."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise OptionError(f"device {name!r} names no GPU; wanted as in 'cuda:sm_90a NVIDIA H100, 132 multiprocessors'")
    return replace(GpuLimits.of(found[2]), multiprocessors=int(found[3]))


def measured_limits(target: Target, ordinal: int = 0) -> GpuLimits:
    """Of the emulator, or of the GPU that is here."""
    return GpuLimits.of(target.arch) if target.kind is TargetKind.EMULATOR else limits_of(ordinal)


def logged_device(log: TuningLog, target: Target, workloads: Collection[str]) -> str | None:
    """The device of the target's kind and architecture that a log knows most of these workloads' kernels on."""
    found = Counter(r.device for r in log.records if r.workload in workloads and r.seconds and is_for(r.device, target))
    return max(sorted(found), key=found.__getitem__) if found else None


def is_for(device: str, target: Target) -> bool:
    """Is the device of the target's kind, and does code for the target's architecture run on it?"""
    match = _NAME.fullmatch(device)
    if match is None or match[1] != target.kind.value:
        return False
    if target.arch in ("", match[2]):
        return True
    later = int("".join(filter(str.isdigit, match[2]))) >= int("".join(filter(str.isdigit, target.arch)) or 0)
    return target.kind is TargetKind.CUDA and target.arch[-1].isdigit() and later
