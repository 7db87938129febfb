"""Tuning of a whole model by what pays: slots of time over operator x shape bucket, into dispatch tables."""

from __future__ import annotations

import time
from dataclasses import replace

from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.compiler.tuning.dispatch_tables import Tables, tuned_table
from tilewright.compiler.tuning.operator_tuning import environment, prior_of, task_of, tune_options
from tilewright.runtime.host.host_cpu import thread_count
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import Builder, Runner
from tilewright.search.runner.measurer import MeasureContext
from tilewright.search.search_strategy.tune_options import Budget
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.task_scheduler.belief_pool import BeliefPool
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions, ModelTuner
from tilewright.search.task_scheduler.operator_arms import OperatorUse, finish, operator_arms
from tilewright.search.task_scheduler.peak import measure_peak
from tilewright.search.task_scheduler.policies import Ucb, policies

_KEPT = 0.25  # share of the time for verifying and certifying what was found
_BUCKETS = 3


def tune_model(
    model: OutlinedModel,
    tables: Tables,
    builder: Builder,
    runner: Runner,
    log: TuningLog,
    options: ModelTuneOptions | None = None,
    buckets: int = _BUCKETS,
) -> ModelTuner:
    """Search all operators together and put the results in their tables; returns the tuner, with its schedule and history.

    A schedule that the log holds is gone on with. An interrupt passes through: everything measured is in the log.

    Args:
        options: default: the policy and seed of the compilation. buckets: most of one operator's shapes.
    """
    started, wanted = time.monotonic(), model.compilation.options
    options = options or ModelTuneOptions(policies()[wanted.policy or Ucb.name], seed=wanted.seed)
    uses = operator_uses(model, tables, builder, runner, log)
    arms = operator_arms(uses, measure_peak(thread_count(wanted.threads)), time.perf_counter, buckets)
    for arm in arms:
        arm.warm_up()
    taken = sum(u.tuner.ledger.trials for u in uses)
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
        tuner = Tuner(task, MeasureContext(builder, runner, here, log), Budget(), replace(options, first=0), prior)
        found.append(OperatorUse(tuner, len(model.uses[workload.key])))
    return found
