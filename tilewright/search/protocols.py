"""Builder and Runner: what the search needs of a compiler and of a device. Implementations are injected.

A candidate that cannot be built or run is data (an error text in the result), never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.kernel import MicroKernel


@dataclass(frozen=True)
class BuildResult:
    """A built kernel with its object code, or the reason why there is none. seconds: time the build took.

    late: it was given up, since the time it had was over; that says nothing of the candidate.
    """

    kernel: MicroKernel | None
    code: bytes = b""
    llvm_ir: str = ""
    error: str = ""
    seconds: float = 0.0
    late: bool = False


@dataclass(frozen=True)
class Measurement:
    """Times of one kernel at one shape, in seconds a launch, best first; `error` says why there are none.

    cache: the state of the operands before each launch, "warm": as the launch before left them. late: it was stopped, since the
    time it had was over; that says nothing of the kernel. runner: which of several took it.
    """

    seconds: tuple[float, ...] = ()
    error: str = ""
    cache: str = "warm"
    late: bool = False
    runner: str = ""


@dataclass(frozen=True)
class Turns:
    """Several kernels at one shape, timed in turns. rounds: of each the seconds of a launch of every kernel; error, cache and
    late as of a Measurement."""

    rounds: tuple[tuple[float, ...], ...] = ()
    error: str = ""
    cache: str = "warm"
    late: bool = False


class Builder(Protocol):
    """Builds kernels, in parallel if it can; results come in the order of the candidates.

    seconds: that all may take, None: as long as they need. What is not built by then is given up and comes as `late`.
    """

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]: ...


class Runner(Protocol):
    """Runs built kernels at local dims on some threads and times them.

    seconds: that it may take, None: as long as it needs. A measurement that is not over by then is `late`.
    """

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement: ...


@dataclass(frozen=True)
class KernelAt:
    """A built kernel at a shape, (name, extent) of each local dim, on some threads."""

    kernel: MicroKernel
    code: bytes
    dims: tuple[tuple[str, int], ...]
    threads: int = 1


@runtime_checkable
class RunnerOfMany(Protocol):
    """A Runner that several threads may call, and that takes several measurements at once: one after the other, on one device."""

    def run_all(self, workload: Workload, asked: Sequence[KernelAt], seconds: float | None = None) -> list[Measurement]: ...


@runtime_checkable
class RunnerInTurns(Protocol):
    """A Runner that times kernels at one shape beside each other: so many rounds at least, in which each has a turn so short that
    all have the speed which the machine just has. within: bytes of a cache line before inputs that are no constants, which begin
    one elsewhere."""

    def run_in_turns(self, workload: Workload, asked: Sequence[KernelAt], rounds: int, seconds: float | None = None,
                     within: int = 0) -> Turns: ...
