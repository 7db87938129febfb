"""Tuning of a whole model by what pays: slots of time over operator x shape region, into dispatch tables."""

from __future__ import annotations

import time
from dataclasses import replace

from compiler.dispatch_tables import Tables, tuned_table
from compiler.outlined_model import OutlinedModel
from compiler.tuning import environment, prior_of, task_of, tune_options
from runtime.host_cpu import thread_count
from search.belief_pool import BeliefPool
from search.model_tuner import ModelBudget, ModelTuneOptions, ModelTuner
from search.operator_arms import OperatorUse, finish, operator_arms
from search.peak import measure_peak
from search.policies import Ucb, policies
from search.protocols import Builder, Runner
from search.records import TuningLog
from search.task import Budget
from search.tuner import Tuner

_KEPT = 0.25  # share of the time for verifying and certifying what was found
_REGIONS = 3


def tune_model(
    model: OutlinedModel,
    tables: Tables,
    builder: Builder,
    runner: Runner,
    log: TuningLog,
    options: ModelTuneOptions | None = None,
    regions: int = _REGIONS,
) -> ModelTuner:
    """Search all operators together and put the results in their tables; returns the tuner, with its schedule and history.

    A schedule that the log holds is gone on with. An interrupt passes through: everything measured is in the log.

    Args:
        options: default: the policy and seed of the compilation. regions: most of one operator's shapes.
    """
    started, wanted = time.monotonic(), model.compilation.options
    options = options or ModelTuneOptions(policies()[wanted.policy or Ucb.name], seed=wanted.seed)
    uses = operator_uses(model, tables, builder, runner, log)
    arms = operator_arms(uses, measure_peak(thread_count(wanted.threads)), time.perf_counter, regions)
    for arm in arms:
        arm.warm_up()
    taken = sum(u.tuner.measurer.trials for u in uses)
    seconds = None if wanted.seconds is None else max(0.0, (1 - _KEPT) * wanted.seconds - (time.monotonic() - started))
    trials = None if wanted.trials is None else max(0, round((1 - _KEPT) * wanted.trials) - taken)
    pool = BeliefPool(options.beliefs, clock=time.perf_counter)
    budget = ModelBudget(seconds, trials, wanted.until_regret)
    progress = wanted.progress or (lambda state: None)
    tuner = ModelTuner(arms, budget, time.perf_counter, options, log, pool, progress)
    tuner.resume()
    progress(tuner.state())
    tuner.run()
    tuned = finish(uses, None if wanted.seconds is None else max(0.0, wanted.seconds - (time.monotonic() - started)))
    for workload in model.workloads:
        tuned_table(workload, tuned[workload.key], builder, tables)
    return tuner


def operator_uses(model: OutlinedModel, tables: Tables, builder: Builder, runner: Runner, log: TuningLog) -> list[OperatorUse]:
    """A search of each operator that can be stepped."""
    compilation, found = model.compilation, []
    here, options = environment(compilation.target), tune_options(compilation.options, compilation.target)
    for workload in model.workloads:
        task = task_of(workload, model, tables)
        prior = prior_of(task, log, here.device) if compilation.options.prior else None
        tuner = Tuner(task, builder, runner, Budget(), here, replace(options, first=0), log, prior)
        found.append(OperatorUse(tuner, len(model.uses[workload.key])))
    return found
