"""Measuring an archive of kernels: the same search, over the kernels that were built elsewhere. Needs no MLIR and no llvmlite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.spaces.family_registry import config_text, current_text, parse_config
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.limits import GpuLimits
from tilewright.search.archive.kernel_archive import ArchiveOperator, KernelArchive
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import BuildResult, Runner
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.verification import Case
from tilewright.search.search_strategy.outcome import Progress, Tuned
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import tune
from tilewright.search.space.task import Task


class ArchiveBuilder:
    """A Builder that looks kernels up."""

    def __init__(self, archive: KernelArchive) -> None:
        self.archive = archive
        self._kernels = {(o.workload.key, current_text(k.config)): k for o in archive for k in o.kernels}
        self._failed = {(o.workload.key, current_text(config)): why for o in archive for config, why in o.failed.items()}

    def build(self, candidates: Sequence[tuple[Workload, TileConfig]], seconds: float | None = None) -> list[BuildResult]:
        return [self._find(w.key, config_text(c)) for w, c in candidates]

    def _find(self, workload: str, config: str) -> BuildResult:
        kernel = self._kernels.get((workload, config))
        if kernel is None:
            why = self._failed.get((workload, config), f"{config} is not in {self.archive.path}")
            return BuildResult(None, error=why)
        try:
            return BuildResult(kernel, self.archive.code(kernel))
        except ArtifactError as error:
            return BuildResult(None, error=str(error))


@dataclass(frozen=True)
class MeasurePlan:
    """How to measure. limits: of the device that is here. seconds, trials: of all operators together."""

    limits: GpuLimits
    environment: Environment
    seconds: float | None = None
    trials: int | None = None
    prior: Callable[[Task], CostModel | None] = lambda task: None


def measure_archive(archive: KernelArchive, plan: MeasurePlan, runner: Runner, log: TuningLog,
                    progress: Callable[[Progress], None] = lambda state: None) -> dict[str, Tuned]:
    """Search each operator among its kernels; workload name -> what was found. All is in the log.

    The time that an operator leaves goes to those after it.
    """
    context = MeasureContext(ArchiveBuilder(archive), runner, plan.environment, log)
    clock, spent = plan.environment.clock, 0
    started = clock()
    found: dict[str, Tuned] = {}
    operators = list(archive)
    for number, operator in enumerate(operators):
        share = operator.share / sum(o.share for o in operators[number:])
        left = None if plan.seconds is None else max(0.0, plan.seconds - (clock() - started)) * share
        budget = Budget(left, None if plan.trials is None else max(1, round((plan.trials - spent) * share)))
        states: dict[str, int] = {}

        def follow(state: Progress, states: dict[str, int] = states) -> None:
            states["trials"] = state.trials
            progress(state)

        task, m = task_of(operator, plan.limits), archive.manifest
        options = TuneOptions(max_regret=m.max_regret, max_kernels=m.max_kernels, seed=m.seed)
        found[operator.workload.name] = tune(task, context, budget, options, plan.prior(task), follow)
        spent += states.get("trials", 0)
    return found


def task_of(operator: ArchiveOperator, limits: GpuLimits) -> Task:
    """The search over the kernels of an operator."""
    configs = tuple(parse_config(k.config) for k in operator.kernels)
    return Task(operator.workload.workload(), limits, operator.families, operator.points, operator.held_out, configs)


def cases_of(archive: KernelArchive) -> Mapping[str, Sequence[Case]]:
    """Workload key -> what its kernels must give."""
    return {o.workload.key: archive.cases(o) for o in archive}
