"""Thresholds that `tilewright calibrate` measured on this machine, one file a CPU in the cache folder."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from tilewright.compiler.builder.cache import Cache
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.log import LOG
from tilewright.runtime.program.replace_file import replaced

_SCHEMA = 1


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """cpu: as host_target names it. values: "family.name" -> threshold. when: seconds since 1970. threads: most of a call."""

    cpu: str
    values: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]]
    when: float = 0.0
    seconds: float = 0.0
    threads: int = 1
    schema: Annotated[int, msgspec.Meta(ge=_SCHEMA, le=_SCHEMA)] = _SCHEMA


def calibration_path(cpu: str, limits: HostLimits) -> Path:
    """Where the file of a CPU is: machines of one model with other caches or cores have their own."""
    plain = replace(limits, calibrated=(), threads=0)
    return Cache().folder / "calibration" / f"{hashlib.sha256(f'{cpu} {plain!r}'.encode()).hexdigest()[:24]}.json"


def calibrated_limits(cpu: str, limits: HostLimits) -> HostLimits:
    """The limits with what this machine was calibrated to have; as they are where it was not, or the file cannot be read."""
    path = calibration_path(cpu, limits)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return limits
    except (OSError, msgspec.DecodeError) as error:
        LOG.warning("%s is not read: %s; run `tilewright calibrate` again, or --forget it", path, error)
        return limits
    return replace(limits, calibrated=tuple(sorted(found.values.items()))) if found.cpu == cpu else limits


def store_calibration(found: Calibration, limits: HostLimits) -> Path:
    """Write the file of a CPU; OSError where the folder cannot be written."""
    path = calibration_path(found.cpu, limits)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replaced(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return path
