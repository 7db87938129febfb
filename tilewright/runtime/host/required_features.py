"""Which CPU features a program needs that this machine lacks."""

from __future__ import annotations

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.host.host_cpu import cpu_features, has_feature, machine
from tilewright.runtime.host.host_target import LEVELS, host_target
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.target import Target, TargetKind

_TILES = "amx-tile"
_MACHINES = {62: "x86_64", 183: "aarch64"}  # ELF e_machine


def missing_features(required: str) -> tuple[str, ...]:
    """Features that `required` names and this machine lacks.

    Args:
        required: LLVM's feature text such as "+avx2,-avx512f,+fma" (only + counts), or a level such as "x86-64-v3".
    """
    wanted = [name for text in required.split(",") if text.strip() for name in _expand(text.strip())]
    present = cpu_features()
    missing = [name for name in wanted if not has_feature(name, present)]
    if missing:  # the system may hide or rename a feature; LLVM asks the CPU itself
        found = _llvm_features()
        missing = [name for name in missing if name not in found]
    if _TILES in wanted and not may_use_tiles():
        missing.append(_TILES)
    return tuple(dict.fromkeys(missing))


def check_measurable(target: Target) -> None:
    """DeviceError for a host target whose code cannot be measured here."""
    if target.kind is not TargetKind.HOST or not target.arch:
        return
    wanted = host_target(target)
    lacking = missing_features(wanted.features) if wanted.arch == machine() else (wanted.arch,)
    if lacking:
        raise DeviceError(f"target {target}: a search measures kernels on this machine, which lacks {', '.join(lacking)}; search "
                          "on one that has it, or compile without a search")


def foreign_machine(code: bytes) -> str | None:
    """The architecture that an ELF object is for when it is not this machine's, else None."""
    if code[:4] != b"\x7fELF":
        return None
    number = int.from_bytes(code[18:20], "little")
    name = _MACHINES.get(number, f"ELF machine {number}")
    return None if name == machine() else name


def _expand(text: str) -> tuple[str, ...]:
    if text in LEVELS:
        return LEVELS[text]
    return (text[1:],) if text.startswith("+") else () if text.startswith("-") else (text,)


def _llvm_features() -> frozenset[str]:
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return frozenset()
    return frozenset(name for name, is_present in llvm.get_host_cpu_features().items() if is_present)
