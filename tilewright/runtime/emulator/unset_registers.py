"""Registers that are read before anything wrote them.

Which ones may be is found once, from the flow of control (live registers at the entry of the kernel); of those alone each write
is noted for each thread and each read is checked, so that a kernel that sets what it reads runs as fast as without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from tilewright.runtime.emulator.alu.build_context import LaneSource
from tilewright.runtime.emulator.machine.findings import KernelCheck, PtxSite
from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.machine import Machine
from tilewright.runtime.limits import WARP

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RegisterUse:
    """Registers that an instruction, or several that run as one, reads and writes, by name.

    guard: the predicate register that says which lanes do, which all of them read; predicate: its value.
    """

    site: PtxSite
    reads: frozenset[str]
    writes: frozenset[str]
    guard: str = ""
    predicate: LaneSource | None = None

    def checked(self, machine: Machine) -> None:
        """Find reads of what was not written, and note what is."""
        registers, lanes = machine.unit(WrittenRegisters), machine.active()
        if self.guard:
            self._check(machine, self.guard, lanes)
        if self.predicate is not None:
            lanes = lanes & self.predicate(machine)
        for name in sorted(self.reads):
            self._check(machine, name, lanes)
        for name in self.writes:
            registers.of(name)[lanes] = True

    def _check(self, machine: Machine, name: str, lanes: Array) -> None:
        unset = lanes & ~machine.unit(WrittenRegisters).of(name)
        if unset.any():
            message = f"{name.partition('@')[0]} is read, and nothing has written it"
            machine.found(KernelCheck.UNSET, self.site, message, int(np.argmax(unset)))


@dataclass
class Flow:
    """Uses of a segment in order, and the segments that may follow it."""

    uses: list[RegisterUse] = field(default_factory=list)
    following: tuple[int, ...] = ()


class WrittenRegisters:
    """Which lanes of a batch have written each of the registers that may be read before."""

    def __init__(self, blocks: int, geometry: Geometry) -> None:
        self._lanes = blocks * geometry.warps * WARP
        self._flags: dict[str, Array] = {}

    def of(self, name: str) -> Array:
        if name not in self._flags:
            self._flags[name] = np.zeros(self._lanes, dtype=bool)
        return self._flags[name]


def read_before_written(flows: Sequence[Flow]) -> frozenset[str]:
    """Registers that some way from the beginning to a read does not write."""
    exposed, written = [], []
    for flow in flows:
        reads, writes = set[str](), set[str]()
        for use in flow.uses:
            reads |= (use.reads | {use.guard} - {""}) - writes
            if not use.guard:
                writes |= use.writes
        exposed.append(reads)
        written.append(writes)
    before: list[list[int]] = [[] for _ in flows]
    for i, flow in enumerate(flows):
        for following in flow.following:
            before[following].append(i)
    live = [set(reads) for reads in exposed]
    left = [(i, frozenset(reads)) for i, reads in enumerate(exposed) if reads]
    while left:
        i, more = left.pop()
        for earlier in before[i]:
            new = more - written[earlier] - live[earlier]
            if new:
                live[earlier] |= new
                left.append((earlier, new))
    return frozenset(live[0]) if live else frozenset()


def watched(run: Callable[[Machine], Answer], use: RegisterUse, suspects: frozenset[str]) -> Callable[[Machine], Answer]:
    """An instruction that checks and notes the registers in doubt; as it is where it uses none of them."""
    guard = use.guard if use.guard in suspects else ""
    doubtful = replace(use, reads=use.reads & suspects, writes=use.writes & suspects, guard=guard)
    if not doubtful.reads and not doubtful.writes and not doubtful.guard:
        return run

    def checked(machine: Machine) -> Answer:
        if machine.wants(KernelCheck.UNSET):
            doubtful.checked(machine)
        return run(machine)

    return checked
