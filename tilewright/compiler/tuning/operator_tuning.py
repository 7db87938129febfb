"""Tuning of a model: its operators one after the other, each with its share of the budget, into dispatch tables."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tilewright.compiler.builder.codegen import host_target, limits
from tilewright.compiler.builder.fingerprint import fingerprint
from tilewright.compiler.compilation.options import CompileOptions, Deterministic
from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.compiler.tuning.dispatch_tables import Tables, tuned_table
from tilewright.compiler.tuning.ragged_demand import (
    declares_batches,
    demand_of,
    is_held_to_batches,
    seconds_to_search,
    weight_of_batches,
)
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.host.host_cpu import affinity, thread_count
from tilewright.runtime.limits import HostLimits, Limits
from tilewright.runtime.program.dispatch import DispatchTable, symbols
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.cost_model.model import CostModel
from tilewright.search.database.records import TuningLog
from tilewright.search.prior.shipped import start_of
from tilewright.search.prior.transfer import prior_from_log
from tilewright.search.protocols import Builder, Runner
from tilewright.search.runner.constant_copies import WARM, Weights
from tilewright.search.runner.gpu_environment import device_name, limits_of_name, logged_device, measured_limits
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.replay import ReplayRunner
from tilewright.search.search_strategy.outcome import Progress, Tuned
from tilewright.search.search_strategy.tune_options import Budget, TuneOptions
from tilewright.search.search_strategy.tuner import Tuner, tune
from tilewright.search.space.shapes import ShapeDemand
from tilewright.search.space.task import Task, Untuned
from tilewright.search.time_left import steady_clock

_LEAST = 4.0  # times what it takes to make the space of an operator, that a search of it gets: less would find nothing


def environment(target: Target) -> Environment:
    """This machine, or its GPU, as records name it; DeviceError for a GPU that is not here."""
    if target.kind is not TargetKind.HOST:
        return Environment(device_name(target), steady_clock(), {"compiler": fingerprint()[:12]})
    found, host = limits(target), host_target(target)
    assert isinstance(found, HostLimits)
    device = f"host {host.cpu} {found.vector_bytes * 8} bits l2={found.l2 >> 10}K l3={found.l3 >> 20}M cores={affinity()}"
    return Environment(device, steady_clock(), {"compiler": fingerprint()[:12]})


def tune_tables(model: OutlinedModel, tables: Tables, builder: Builder, runner: Runner, log: TuningLog) -> set[str]:
    """Search each operator, the largest first, and put the result in its table. The time one leaves goes to those after it.
    Returns the keys of those that there was time for.

    An operator's share of the budget grows with the root of its arithmetic times its calls: the large ones decide the latency,
    yet small ones have as many kernels to try. Where the time does not do for all, the small ones keep what runs untuned.
    """
    compilation, wanted = model.compilation, model.compilation.options
    context = MeasureContext(builder, runner, environment(compilation.target), log, cache=cache_state(model))
    options, clock = search_options(model), context.environment.clock
    started, budgeted = clock(), seconds_to_search(model)
    here_limits = measured_limits(compilation.target) if compilation.on_gpu else compilation.limits
    left = {w.key: weight_of(w, model) for w in model.workloads}
    trials, chosen = 0, set[str]()
    for workload in sorted(model.workloads, key=lambda w: -left[w.key]):
        weight = left.pop(workload.key)
        share = weight / (weight + sum(left.values()))
        opening, most = context.costs.get("opening", 0.0), wanted.trials
        seconds = None if budgeted is None else max(0.0, budgeted - (clock() - started))
        if seconds is not None and seconds <= opening:
            break  # the operators that are left keep what runs untuned
        budget = Budget(None if seconds is None else min(seconds, max(seconds * share, _LEAST * opening)),
                        None if most is None else round((most - trials) * share))
        states: list[Progress] = []

        def follow(state: Progress, states: list[Progress] = states) -> None:
            states[:] = [state]
            if wanted.progress:
                wanted.progress(state)

        task = task_of(workload, model, tables, here_limits)
        prior = prior_of(task, log, context.environment.device, wanted.prior)
        found = tune(task, context, budget, options, prior, follow)
        trials += states[-1].trials if states else 0
        tuned_table(workload, found, builder, tables)
        if found.shapes:
            chosen.add(workload.key)
    return chosen


def weights_of(model: OutlinedModel) -> Weights:
    """Where a layer of the model finds its weights on the host; warm on other targets, whose runners see to it themselves."""
    limits = model.compilation.limits
    if not isinstance(limits, HostLimits):
        return WARM
    return Weights.of(sum(model.bound[b.argument].nbytes for b in model.plan.bound), limits)


def cache_state(model: OutlinedModel) -> str | None:
    """The state of operands whose records count for the model on the host; None on a GPU, whose runners have one state."""
    return weights_of(model).name if isinstance(model.compilation.limits, HostLimits) else None


def known_to_log(model: OutlinedModel, log: TuningLog) -> set[str]:
    """Keys of the operators of which a log has times, of this machine or of a GPU of the target's kind."""
    here = logged_environment(model, log)
    return set() if here is None else {w.key for w in model.workloads if any(r.seconds for r in log.of(w.key, here.device))}


def tables_from_log(model: OutlinedModel, tables: Tables, builder: Builder, log: TuningLog, known: Collection[str]) -> None:
    """Put what a log says in the tables of the operators that it knows; nothing is measured.

    known: their keys. The others keep their tables.
    """
    compilation, here = model.compilation, logged_environment(model, log)
    if here is None:
        return
    options = search_options(model)
    limits = limits_of_name(here.device) if compilation.on_gpu else compilation.limits
    for workload in model.workloads:
        if workload.key in known:
            state = cache_state(model)
            measured = any(r.cache == state for r in log.of(workload.key, here.device) if r.seconds)
            context = MeasureContext(builder, ReplayRunner(()), here, log, cache=state if measured else None)
            task = task_of(workload, model, tables, limits)
            found = best_known(task, context, options, prior_of(task, log, here.device, model.compilation.options.prior))
            tuned_table(workload, found, builder, tables)


def logged_environment(model: OutlinedModel, log: TuningLog) -> Environment | None:
    """The device whose records of a log count: this machine; of a GPU target the one that the log knows most of, since it may be
    elsewhere. None where the log knows none."""
    target = model.compilation.target
    if target.kind is TargetKind.HOST:
        return environment(target)
    device = logged_device(log, target, {w.key for w in model.workloads})
    return None if device is None else Environment(device, time.time, {"compiler": fingerprint()[:12]})


def prior_of(task: Task, log: TuningLog, device: str, wanted: bool | Path | str) -> CostModel | None:
    """What a search starts from: models of the folder that is wanted, or what ships with the package; for a GPU what the log
    knows of others."""
    if wanted is False:
        return None
    return start_of(task.families, None if wanted is True else Path(wanted)) or prior_from_log(log, task.families, device)


def best_known(task: Task, context: MeasureContext, options: TuneOptions, prior: CostModel | None = None) -> Tuned:
    """The dispatch that the records of the context's log support, by what a search of it would start from: so it is the one that
    the search which took them ended with."""
    tuner = Tuner(task, context, Budget(trials=0), options, prior)
    tuner.ledger.learn()
    return tuner.best()


def task_of(workload: Workload, model: OutlinedModel, tables: Tables, found: Limits | None = None) -> Task:
    """The families are those of the rules that made the table, its preferred one first.

    found: limits, where they are not the target's."""
    table = next(t for t in tables.tables if t.workload == workload.key)
    families = tables.families.get(workload.key) or tuple(dict.fromkeys(k.family for k in table.kernels))
    options = model.compilation.options
    traffic = [(dict(dims), weight) for dims, weight in options.traffic]
    demand = ShapeDemand(model.ranges, model.uses[workload.key], traffic)
    if not traffic and declares_batches(model):
        local, held = demand_of(workload, model, 2 * options.seed)
        demand = replace(demand, local=local, held=held)
    task = Task.of(workload, found or model.compilation.limits, families, demand, options.seed)
    incumbent = _incumbent(table) if tables.incumbent else None
    return replace(task, ordered=options.deterministic is Deterministic.BATCH, incumbent=incumbent)


def _incumbent(table: DispatchTable) -> Untuned | None:
    """What a table dispatches to; None where that depends on more than the dims."""
    if not symbols(table.root) <= set(table.dims):
        return None
    return tuple(parse_config(k.config) for k in table.kernels), table.root


def search_options(model: OutlinedModel) -> TuneOptions:
    """Of a model's operators. Where the whole model is held against the untuned one, less of the time goes to that of single
    operators, and more to their certificates."""
    found = tune_options(model.compilation.options, model.compilation.target)
    return replace(found, verify=0.05, certify=0.4, rivals=2) if is_held_to_batches(model) else found


def tune_options(options: CompileOptions, target: Target) -> TuneOptions:
    """A GPU takes a launch as a whole: threads are a matter of its kernels."""
    threads = thread_count(options.threads) if target.kind is TargetKind.HOST else 1
    most = 1 if options.deterministic is Deterministic.BATCH else options.max_kernels
    return TuneOptions(max_regret=options.max_regret, max_kernels=most, threads=threads, seed=options.seed)


def weight_of(workload: Workload, model: OutlinedModel) -> float:
    """Root of the arithmetic and bytes of all calls at a middling shape, or for the declared batches."""
    if declares_batches(model):
        return weight_of_batches(workload, model)
    middle = {name: dim.values(3)[len(dim.values(3)) // 2] for name, dim in model.ranges.dims}
    total = 0.0
    for use in model.uses[workload.key]:
        local = {name: expr.evaluate(middle) for name, expr in use.items()}
        total += workload.flops.evaluate(local) + 8 * workload.bytes.evaluate(local)
    return math.sqrt(max(total, 1.0))

