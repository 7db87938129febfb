"""Registers for kernels that ptxas gives too few: it aims at a number of blocks of a multiprocessor and spills what is over.

A kernel that asks for no number of blocks gets the largest one with which nothing is spilled; one that spills with all registers
that a thread can have stays as it is. Both are said in its PTX, so that drivers that compile it do as ptxas did.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.compiler.builder.ptxas import EntryReport, PtxasReport, assemble_ptx
from tilewright.runtime.limits import GpuLimits

_UNIT = 8  # registers of a thread are given out in so many


def relieved(ptx: str, arch: str, report: PtxasReport) -> tuple[str, PtxasReport]:
    """The text, and what ptxas says of it, with fewer blocks for kernels that spill. report: of the text as it is."""
    limits = GpuLimits.of(arch)
    for name, entry in report.entries.items():
        threads = _free_threads(ptx, name)
        if entry.spills and threads is not None:
            trials = _Trials(ptx, arch, name)
            blocks = _most_blocks(_resident(entry, threads, limits), trials.spills)
            if blocks:
                ptx, report = trials.made[blocks]
    return ptx, report


@dataclass
class _Trials:
    """A text with numbers of blocks for one of its kernels. made: by this number."""

    ptx: str
    arch: str
    name: str
    made: dict[int, tuple[str, PtxasReport]] = field(default_factory=dict)

    def spills(self, blocks: int) -> bool:
        bounded = _bounded(self.ptx, self.name, blocks)
        self.made[blocks] = bounded, assemble_ptx(bounded, self.arch)
        return bool(self.made[blocks][1].entries[self.name].spills)


def _resident(entry: EntryReport, threads: int, limits: GpuLimits) -> int:
    """Blocks that the registers of a multiprocessor hold."""
    each = math.ceil(max(entry.registers, 1) / _UNIT) * _UNIT
    return limits.registers // (each * threads)


def _most_blocks(above: int, spills: Callable[[int], bool]) -> int:
    """The largest number below `above` with which nothing is spilled, where fewer blocks spill no more; 0 where there is none."""
    if above <= 1 or spills(1):
        return 0
    low, high = 1, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spills(middle) else (middle, high)
    return low


def _free_threads(ptx: str, name: str) -> int | None:
    """Threads of a block of a kernel that bounds no registers; None of any other."""
    directives = _directives(ptx, name)
    threads = re.search(r"\.reqntid ([\d, ]+)", directives)
    if threads is None or ".minnctapersm" in directives or ".maxnreg" in directives:
        return None
    return math.prod(map(int, threads[1].split(",")))


def _directives(ptx: str, name: str) -> str:
    """What stands between the parameters of a kernel and its body."""
    found = re.search(_head(name), ptx)
    return found[2] if found else ""


def _bounded(ptx: str, name: str, blocks: int) -> str:
    return re.sub(_head(name), lambda found: f"{found[1]}{found[2].rstrip()}\n.minnctapersm {blocks}\n", ptx, count=1)


def _head(name: str) -> str:
    return rf"(\.entry {re.escape(name)}\([^)]*\))([^{{]*)(?={{)"
