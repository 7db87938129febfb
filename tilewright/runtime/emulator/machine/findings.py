"""What the emulator's checks find: each finding names kernel, instruction, thread and address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tilewright.runtime.errors import DeviceError


class KernelCheck(Enum):
    """A rule that a kernel's execution must keep."""

    BOUNDS = "out-of-bounds"
    ALIGNMENT = "misaligned"
    UNINITIALISED = "uninitialised-read"
    UNSET = "register-never-written"
    NEVER_WRITTEN = "never-written"
    RACE = "shared-memory-race"
    BARRIER = "barrier-divergence"
    WARP = "warp-divergence"
    DEADLOCK = "deadlock"
    BUDGET = "runaway"
    TRAP = "trap"
    PROXY = "missing-proxy-fence"
    UNFINISHED = "used-before-complete"
    REGISTERS = "setmaxnreg"
    EARLY = "access-before-wait"


ALL_CHECKS: frozenset[KernelCheck] = frozenset(KernelCheck)
FATAL = frozenset({KernelCheck.DEADLOCK, KernelCheck.BUDGET, KernelCheck.TRAP})
"""Findings after which execution cannot go on."""


@dataclass(frozen=True)
class PtxSite:
    """An instruction of a kernel: the line in the PTX text and the text itself."""

    kernel: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.kernel}, line {self.line}: `{self.text}`"


@dataclass(frozen=True)
class Finding:
    """A broken rule. `thread` and `block` are (x, y, z); `address` is the one that the instruction used."""

    check: KernelCheck
    site: PtxSite
    message: str
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    address: int | None = None

    def __str__(self) -> str:
        where = f"block {self.block} thread {self.thread}" if self.thread is not None else ""
        address = f"address 0x{self.address:x}" if self.address is not None else ""
        place = ", ".join(part for part in (where, address) if part)
        return f"{self.check.value}: {self.site}" + (f" ({place})" if place else "") + f": {self.message}"


class EmulatorError(DeviceError):
    """The emulator refused a launch or found a broken rule. `finding` is None where no rule is concerned."""

    def __init__(self, message: str, finding: Finding | None = None) -> None:
        super().__init__(message)
        self.finding = finding


class FindingReport:
    """Findings of one or more launches. With `collect` false the first one is raised as an EmulatorError."""

    def __init__(self, checks: Iterable[KernelCheck] = ALL_CHECKS, collect: bool = False, limit: int = 100) -> None:
        self.checks = frozenset(checks)
        self.findings: list[Finding] = []
        self._collect = collect
        self._limit = limit
        self._seen: set[tuple[KernelCheck, str, int]] = set()

    def wants(self, check: KernelCheck) -> bool:
        return check in self.checks or check in FATAL

    def add(self, finding: Finding) -> None:
        """Record a finding (one per rule and instruction); raises EmulatorError unless findings are collected."""
        if not self.wants(finding.check):
            return
        key = (finding.check, finding.site.kernel, finding.site.line)
        if key not in self._seen and len(self.findings) < self._limit:
            self._seen.add(key)
            self.findings.append(finding)
        if not self._collect or finding.check in FATAL:
            raise EmulatorError(str(finding), finding)
