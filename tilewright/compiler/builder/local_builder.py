"""LocalBuilder: builds candidates one after the other in this process; for tests and debugging."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from tilewright.compiler.builder.assemble_kernel import assembled
from tilewright.compiler.builder.build import build_kernel, kernel_symbol
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import BuildError, OptionError
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.protocols import BuildResult


class LocalBuilder:
    """A Builder without isolation: a crash of the code generator takes the process with it."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        end = math.inf if seconds is None else time.perf_counter() + seconds
        return [self._build(w, c) if time.perf_counter() < end else BuildResult(None, late=True) for w, c in candidates]

    def _build(self, workload: Workload, config: TileConfig) -> BuildResult:
        start = time.perf_counter()
        try:
            built = build_kernel(workload.ir, workload.key, kernel_symbol(workload, config), config_text(config), self.target)
            if self.target.kind is TargetKind.CUDA:
                built = assembled(built, self.target)
        except (BuildError, OptionError) as error:
            return BuildResult(None, error=str(error), seconds=time.perf_counter() - start)
        return BuildResult(built.kernel, built.code, built.llvm_ir, seconds=time.perf_counter() - start)
