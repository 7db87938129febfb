"""What the CPU at hand is: cores the process may use, features, caches. Needs no LLVM."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tilewright.runtime import knobs
from tilewright.runtime.host.cgroup import cpu_limit
from tilewright.runtime.host.tile_permission import may_use_tiles
from tilewright.runtime.limits import HostLimits

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SIBLINGS = Path("/sys/devices/system/cpu/smt/active")
_CPUINFO = Path("/proc/cpuinfo")
_LLVM_NAMES = {
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
    "amx_complex": "amx-complex",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_vp2intersect": "avx512vp2intersect",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "lahf_lm": "sahf",
    "asimd": "neon",
    "pclmulqdq": "pclmul",
    "sha_ni": "sha",
    "3dnowprefetch": "prfchw",
    "rdrand": "rdrnd",
}

_IMPLIED_BY = {"crc32": "sse4.2", "64bit": "lm", "x87": "fpu", "shstk": "user_shstk", "evex512": "avx512f"}


def machine() -> str:
    """Architecture of this process in LLVM's words: x86_64, aarch64."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())


def affinity() -> int:
    """Cores that this process may run on, as far as its control groups give it time for them: whole cores, at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return cores if limit is None else max(1, min(cores, int(limit)))


def thread_count(option: int | None = None) -> int:
    """Threads of a call: the least of the option, the knob TILEWRIGHT_THREADS and the affinity, as they are now."""
    return max(1, min(n for n in (option, knobs.THREADS.get(), affinity()) if n is not None))


def cpu_features() -> frozenset[str]:
    """Feature names as LLVM spells them, from /proc/cpuinfo; from LLVM where there is none."""
    fields = _cpu_fields()
    for name in ("flags", "Features"):
        if name in fields:
            return frozenset(_LLVM_NAMES.get(f, f) for f in fields[name].split())
    import llvmlite.binding as llvm

    return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


def has_feature(name: str, present: frozenset[str]) -> bool:
    """Is a feature that LLVM names among those of `cpu_features`, by its name or by one that brings it?"""
    return name in present or _IMPLIED_BY.get(name) in present


def _cpu_fields() -> dict[str, str]:
    """What /proc/cpuinfo says of the first core; empty where there is none."""
    try:
        first = _CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _multiply_adds(width: int) -> int:
    """Vectors of so many bytes that this CPU multiplies and adds a cycle. Zen 4 (AMD's family 25) passes 64 bytes through in two
    halves (AMD, Software Optimization Guide for Zen 4)."""
    fields = _cpu_fields()
    halves = width == 64 and fields.get("vendor_id") == "AuthenticAMD" and fields.get("cpu family") == "25"
    return 1 if halves else 2


def host_limits(features: Iterable[str], arch: str, native: bool = True) -> HostLimits:
    """Limits of a CPU with these features; caches and cores are this machine's, or typical ones when not `native`."""
    have = frozenset(features)
    if arch == "aarch64":
        width, registers = 16, 32
    elif "avx512f" in have:
        width, registers = 64, 32
    else:
        width, registers = (32 if "avx" in have else 16), 16
    pairs = "avx512bf16" in have
    products = 4 if {"avx512vnni", "avx512vl"} <= have else 2 if "avx2" in have and (width < 64 or "avx512bw" in have) else 1
    bytes_permuted = {"avx512vbmi", "avx512bw"} <= have
    typical = HostLimits(width, registers, bf16_pairs=pairs, permutes="avx2" in have, byte_permutes=bytes_permuted,
                         byte_products=products, tiles={"amx-tile", "amx-int8"} <= have,
                         bf16_tiles=pairs and {"amx-tile", "amx-bf16"} <= have)
    if not native:
        return typical
    sizes = cache_sizes()
    l1, l2, l3 = sizes.get(1, typical.l1), sizes.get(2, typical.l2), sizes.get(3, typical.l3)
    return replace(typical, l1=l1, l2=l2, l3=l3, cores=affinity(), multiply_adds=_multiply_adds(width),
                   tiles=typical.tiles and may_use_tiles(), bf16_tiles=typical.bf16_tiles and may_use_tiles())


def has_siblings() -> bool:
    """Are cores, as Linux counts them, threads that share a core with another one? A guest is not told."""
    return _SIBLINGS.is_file() and _SIBLINGS.read_text().strip() == "1"


def cache_sizes() -> dict[int, int]:
    """Bytes of the data caches by level, as far as the system tells."""
    sizes: dict[int, int] = {}
    try:
        for folder in _CACHES.glob("index*"):
            if (folder / "type").read_text().strip() in ("Data", "Unified"):
                sizes[int((folder / "level").read_text())] = _kib((folder / "size").read_text().strip())
    except (OSError, ValueError):
        return {}
    return {level: size for level, size in sizes.items() if size > 0}


def _kib(text: str) -> int:
    scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
    return int(text.rstrip("KM")) * scale
