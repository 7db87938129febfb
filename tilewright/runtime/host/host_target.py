"""HostTarget: the CPU that LLVM generates code for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.errors import OptionError
from tilewright.runtime.host.host_cpu import cpu_features, has_feature, machine
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.target import Target, TargetKind

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS: dict[str, tuple[str, ...]] = {"x86-64": (), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4, "aarch64": ("neon",)}
_UNTOLD = {"aarch64": ("sve",)}  # what LLVM does not list where it is absent
_BY_NAME_ONLY = ("rdrnd", "rdseed", "shstk")  # no ordinary code uses them, and systems hide them


@dataclass(frozen=True)
class HostTarget:
    """What LLVM is asked for: `features` is LLVM's text "+avx2,-sse4a,...". A feature that the named CPU has as sold, and this
    one lacks (a hypervisor may mask it), is there with a minus, or LLVM would use it."""

    triple: str
    cpu: str
    features: str
    native: bool

    @property
    def arch(self) -> str:
        return self.triple.partition("-")[0]

    def required(self) -> frozenset[str]:
        """Features that a CPU must have to run the code."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))


def host_target(target: Target) -> HostTarget:
    """The CPU of a host target: `host` is the machine at hand, else a level of x86-64 or aarch64.

    Raises:
        OptionError: not a host target, or an unknown level.
    """
    if target.kind is not TargetKind.HOST:
        raise OptionError(f"target {target}: wanted host or host:<level> to generate CPU code")
    if not target.arch:
        import llvmlite.binding as llvm

        present = cpu_features()  # a load asks the system, which hides some: what code uses of avx10.1 has other names
        asked = dict.fromkeys(_UNTOLD.get(machine(), ()), False) | dict(llvm.get_host_cpu_features())
        on = sorted(name for name, have in asked.items() if have and name not in _BY_NAME_ONLY
                    and has_feature(name, present) and (not name.startswith("amx-") or may_use_tiles()))
        off = sorted(name for name, have in asked.items() if not have)
        return HostTarget(llvm.get_process_triple(), llvm.get_host_cpu_name(), _features(on, machine(), off), True)
    if target.arch not in LEVELS:
        raise OptionError(
            f"target {target}: level {target.arch!r} is unknown; wanted host or one of "
            + ", ".join(f"host:{level}" for level in LEVELS)
        )
    features = sorted(LEVELS[target.arch])
    if target.arch == "aarch64":
        return HostTarget("aarch64-unknown-linux-gnu", "generic", _features(features, "aarch64"), False)
    return HostTarget("x86_64-unknown-linux-gnu", target.arch, _features(features, "x86_64"), False)


def lowest_level(arch: str) -> HostTarget:
    """The CPU that code for every machine of an architecture is made for."""
    level = {"x86_64": "x86-64", "aarch64": "aarch64"}.get(arch, "") if sys.platform == "linux" else ""
    return host_target(Target(TargetKind.HOST, level))


def _features(on: list[str], arch: str, off: Sequence[str] = ()) -> str:
    """Without prefer-256-bit, which would split every 512-bit vector."""
    return ",".join([f"+{name}" for name in on if name != "prefer-256-bit"] + [f"-{name}" for name in off]
                    + (["-prefer-256-bit"] if arch == "x86_64" else []))
