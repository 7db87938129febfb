"""Builders and Runners without a machine: answers from a tuning log or from a formula, for tests and for studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.passes.spaces.family_registry import config_text, parse_config
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.records import TuningRecord, latest
from tilewright.search.protocols import BuildResult, Measurement

Surface = Callable[[TileConfig, Mapping[str, int], int], float]


class ReplayBuilder:
    """Builds nothing: a kernel that only carries its configuration. `errors`: configuration text -> why it cannot be built."""

    def __init__(self, errors: Mapping[str, str] | None = None) -> None:
        self.errors = dict(errors or {})

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        return [self._build(w, config_text(c), c.family) for w, c in candidates]

    def _build(self, workload: Workload, text: str, family: str) -> BuildResult:
        if text in self.errors:
            return BuildResult(None, error=self.errors[text])
        kernel = MicroKernel("kernel", workload.key, family, text, (), ("1", "1", "1"), object=text)
        return BuildResult(kernel, text.encode())


class ReplayRunner:
    """Answers from the records of a log; what was never measured is an error. The order of calls does not matter."""

    def __init__(self, records: Sequence[TuningRecord]) -> None:
        self._known = {(r.workload, *key): r for w in {r.workload for r in records}
                       for key, r in latest(r for r in records if r.workload == w).items()}

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        record = self._known.get((workload.key, kernel.config, tuple(dims.items()), threads))
        if record is None:
            return Measurement(error=f"the log has no {kernel.config} at {dict(dims)} on {threads} threads")
        return Measurement(record.seconds, record.error, record.cache)


class SurfaceRunner:
    """Times from a formula of configuration, dims and threads; `advance` is told each time, for a clock that follows."""

    def __init__(self, surface: Surface, advance: Callable[[float], None] = lambda seconds: None) -> None:
        self.surface, self.advance = surface, advance
        self.runs = 0

    def run(self, workload: Workload, kernel: MicroKernel, code: bytes, dims: Mapping[str, int], threads: int = 1,
            seconds: float | None = None) -> Measurement:
        self.runs += 1
        seconds = self.surface(parse_config(kernel.config), dims, threads)
        self.advance(seconds)
        return Measurement((seconds,))
