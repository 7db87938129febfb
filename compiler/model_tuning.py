"""Tuning of a whole model by what pays: slots of time over operator x shape region, into dispatch tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from compiler.tables import Tables, tuned_table
from compiler.tuning import Request, environment, task_of, tune_options
from runtime.host_cpu import thread_count
from search.belief_pool import BeliefPool
from search.model_tuner import ModelBudget, ModelProgress, ModelTuneOptions, ModelTuner
from search.operator_arms import OperatorUse, finish, operator_arms
from search.peak import measure_peak
from search.protocols import Builder, Runner
from search.records import TuningLog
from search.task import Budget
from search.tuner import Tuner

_KEPT = 0.25  # share of the time for verifying and certifying what was found
_REGIONS = 3


def tune_model(
    request: Request,
    tables: Tables,
    builder: Builder,
    runner: Runner,
    log: TuningLog,
    progress: Callable[[ModelProgress], None] = lambda state: None,
    options: ModelTuneOptions | None = None,
    until_regret: float | None = None,
    regions: int = _REGIONS,
) -> ModelTuner:
    """Search all operators together and put the results in their tables; returns the tuner, with its schedule and history.

    A schedule that the log holds is gone on with. An interrupt passes through: everything measured is in the log.
    """
    started, found = time.monotonic(), environment(request.target)
    uses = []
    for workload in request.workloads:
        each = replace(tune_options(request.options, request.target), first=0)
        tuner = Tuner(task_of(workload, request, tables), builder, runner, Budget(), found, each, log)
        uses.append(OperatorUse(tuner, len(request.uses[workload.key])))
    arms = operator_arms(uses, measure_peak(thread_count(request.options.threads)), time.perf_counter, regions)
    for arm in arms:
        arm.warm_up()
    seconds = request.options.seconds
    left = None if seconds is None else max(0.0, (1 - _KEPT) * seconds - (time.monotonic() - started))
    options = options or ModelTuneOptions(seed=request.options.seed)
    budget = ModelBudget(left, request.options.trials, until_regret)
    pool = BeliefPool(options.beliefs, clock=time.perf_counter)
    model = ModelTuner(arms, budget, time.perf_counter, options, log, pool, progress)
    model.resume()
    model.run()
    rest = 10.0 if seconds is None else max(0.0, seconds - (time.monotonic() - started))
    tuned = finish(uses, rest)
    for workload in request.workloads:
        tuned_table(workload, tuned[workload.key], builder, tables)
    return model
