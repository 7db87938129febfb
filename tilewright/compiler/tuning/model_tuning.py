"""Tuning of a whole model by what pays: slots of time over operator x shape bucket, into dispatch tables."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.compiler.compilation.options import default_policy
from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.compiler.tuning.dispatch_tables import Tables, tuned_table
from tilewright.compiler.tuning.farm_session import FarmSession
from tilewright.compiler.tuning.operator_tuning import cache_state, environment, prior_of, search_options, task_of, weight_of
from tilewright.compiler.tuning.ragged_demand import CERTIFIED_SHARE, is_held_to_batches, seconds_to_search
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.host_cpu import thread_count
from tilewright.runtime.limits import GpuLimits
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import Builder, Runner
from tilewright.search.runner.gpu_environment import limits_of_name
from tilewright.search.runner.measurer import MeasureContext
from tilewright.search.search_strategy.reckoner import LocalReckoner, MakeReckoner
from tilewright.search.search_strategy.tune_options import Budget
from tilewright.search.search_strategy.tuner import Tuner
from tilewright.search.task_scheduler.candidate_jobs import ThreadedJobs
from tilewright.search.task_scheduler.model_search import Flight, Opening, SearchPlan, search_model
from tilewright.search.task_scheduler.model_tuner import ModelBudget, ModelTuneOptions
from tilewright.search.task_scheduler.operator_arms import OperatorUse
from tilewright.search.task_scheduler.parallel_tuner import ParallelTuner
from tilewright.search.task_scheduler.peak import gpu_peak, measure_peak
from tilewright.search.task_scheduler.policies import policies


def tune_model(model: OutlinedModel, tables: Tables, builder: Builder, runner: Runner, log: TuningLog,
               farm: FarmSession | None = None) -> set[str]:
    """Search all operators together and put the results in their tables; returns the keys of those that there was time for.

    farm: where candidates are built and measured, several at once; None: one after the other. A schedule that the log holds is
    gone on with. An interrupt passes through: everything measured is in the log.
    """
    wanted = model.compilation.options
    at_once = 1 if farm is None else farm.runner.size
    at = environment(model.compilation.target) if farm is None else farm.environment
    context = MeasureContext(builder, runner, at, log, at_once=at_once, cache=cache_state(model))
    policy = policies()[wanted.policy or default_policy(farm is not None)]
    found_limits = limits_of_name(at.device) if model.compilation.on_gpu else None
    make = LocalReckoner if farm is None else farm.reckoners.of
    openings = [Opening(weight_of(w, model), partial(_open, w, model, tables, context, found_limits, make))
                for w in model.workloads]
    if found_limits is not None:
        peak = gpu_peak(found_limits)
    else:
        peak = measure_peak(thread_count(wanted.threads)) if farm is None else farm.reckoners.peak()
    plan = SearchPlan(ModelBudget(seconds_to_search(model), wanted.trials, wanted.until_regret), context.environment.clock,
                      ModelTuneOptions(policy, seed=wanted.seed, device=context.environment.device))
    plan = replace(plan, kept=CERTIFIED_SHARE) if is_held_to_batches(model) else plan
    told = wanted.progress or (lambda state: None)
    if farm is None:
        found = search_model(openings, plan, peak, log, told)
    else:
        farm.log = log
        with ThreadedJobs(builder, runner, farm.workers.actors.size, farm.runner.size) as jobs:
            flight = Flight(jobs, farm.farm.in_flight, farm.follow, farm.reckoners.beliefs)
            found = search_model(openings, plan, peak, log, told, flight)
        assert isinstance(found.tuner, ParallelTuner)
        farm.finish(found.tuner.flown)
    for workload in model.workloads:
        if workload.key in found.tuned:
            tuned_table(workload, found.tuned[workload.key], builder, tables)
    return {key for key, tuned in found.tuned.items() if tuned.shapes}


def _open(workload: Workload, model: OutlinedModel, tables: Tables, context: MeasureContext,
          limits: GpuLimits | None, make: MakeReckoner) -> OperatorUse:
    """A search of an operator that can be stepped. limits: of the GPU that measures."""
    wanted = model.compilation.options
    task, options = task_of(workload, model, tables, limits), search_options(model)
    prior = prior_of(task, context.log, context.environment.device, wanted.prior)
    if wanted.farm is not None:
        options = replace(options, threads=min(options.threads, wanted.farm.cores))
    tuner = Tuner(task, context, Budget(), replace(options, first=0), prior, wanted.progress or (lambda state: None), make)
    return OperatorUse(tuner, len(model.uses[workload.key]))
