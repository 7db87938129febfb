"""What PTX may ask for: versions and targets that are known, and sizes that a GPU can hold (PTX ISA, sections 5 and 11)."""

from __future__ import annotations

import re

from tilewright.runtime.limits import GpuLimits

NEWEST = (9, 9)
"""The ISA's last version whose texts are read; a later one may mean other things by the same words."""
ARCHITECTURES = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
_TARGET = re.compile(r"sm_(\d+)([af]?)")
_TARGET_OPTIONS = ("debug", "texmode_unified", "texmode_independent", "map_f64_to_f32")
MOST_REGISTERS = 1 << 18  # declared in a function: virtual ones, of which compilers take one for each result
MOST_ALIGNMENT = 1 << 12
MOST_LOCAL = 512 << 10  # bytes of local memory of a thread
MOST_PARAMETERS = 32764  # bytes of a kernel
MOST_VARIABLE = 1 << 40  # bytes; what memory holds is less, and asked when one is placed
DEEPEST = 64  # braces within braces


def why_not_version(text: str) -> str | None:
    """Why a .version is not read, or None."""
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text)
    if found is None:
        return f"{text!r} is no version; wanted one such as 8.0"
    newest = ".".join(map(str, NEWEST))
    return f"version {text} is later than {newest}, the last that is known" if (int(found[1]), int(found[2])) > NEWEST else None


def why_not_target(text: str) -> str | None:
    """Why a .target is not known, or None."""
    found = _TARGET.fullmatch(text)
    known = text in _TARGET_OPTIONS or (found is not None and int(found[1]) in ARCHITECTURES)
    return None if known else f"target {text!r} is unknown; the last that is known is sm_{ARCHITECTURES[-1]}"


def why_not_on(targets: tuple[str, ...], arch: str) -> str | None:
    """Why a module for these targets does not run on a device, or None."""
    here = GpuLimits.of(arch).version
    for target in targets:
        found = _TARGET.fullmatch(target)
        if found is not None and (int(found[1]) > here or (found[2] == "a" and target != arch)):
            return f"the module is for {target}, which {arch} does not run"
    return None
