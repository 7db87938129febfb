"""What travels between ProcessRunner and its runner process: one JSON object a line, `op` says which."""

from __future__ import annotations

import msgspec

from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.runner.case_form import CaseForm


class Prepare(msgspec.Struct, frozen=True, tag="prepare", tag_field="op"):
    """Sent before the first run of a workload, with what its kernels must give, or of a kernel's code: what later requests
    name by key and digest."""

    workload: WorkloadForm | None = None
    digest: str = ""
    code: bytes = b""
    cases: tuple[CaseForm, ...] = ()


class Run(msgspec.Struct, frozen=True, tag="run", tag_field="op"):
    """Time a kernel at local dims. seconds: that it may take."""

    workload: str
    kernel: MicroKernel
    digest: str
    dims: dict[str, int]
    threads: int = 1
    seconds: float | None = None


class RunInTurns(msgspec.Struct, frozen=True, tag="turns", tag_field="op"):
    """Time kernels at local dims in so many rounds at least. digests, threads: of each kernel. within: bytes of a cache
    line before inputs."""

    workload: str
    kernels: tuple[MicroKernel, ...]
    digests: tuple[str, ...]
    dims: dict[str, int]
    threads: tuple[int, ...]
    rounds: int
    seconds: float | None = None
    within: int = 0


RunnerRequest = Prepare | Run | RunInTurns


class RunnerReply(msgspec.Struct, frozen=True):
    """The fields of a Measurement, or, with rounds, of Turns. lost: the process can measure nothing any more and wants to be
    replaced."""

    seconds: tuple[float, ...] = ()
    error: str = ""
    cache: str = "warm"
    lost: bool = False
    rounds: tuple[tuple[float, ...], ...] = ()
