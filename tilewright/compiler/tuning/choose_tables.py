"""The dispatch tables of a model: defaults of the families; over them what a log knows, or what a search finds."""

from __future__ import annotations

from contextlib import ExitStack

from tilewright.compiler.compilation.outlined_model import OutlinedModel
from tilewright.compiler.tuning.dispatch_tables import Tables, untuned_tables
from tilewright.compiler.tuning.farm_session import FarmSession
from tilewright.compiler.tuning.gpu_tuning import expectations, gpu_runner
from tilewright.compiler.tuning.model_tuning import tune_model
from tilewright.compiler.tuning.operator_tuning import known_to_log, tables_from_log, tune_tables, weights_of
from tilewright.search.database.stored_log import open_log
from tilewright.search.libraries import load_libraries
from tilewright.search.protocols import Builder
from tilewright.search.runner.runner_process import HostProcess


def choose_tables(model: OutlinedModel, builder: Builder, farm: FarmSession | None = None, made: Tables | None = None) -> Tables:
    """Tables of all operators, with their code.

    Args:
        farm: where a search measures; None: on this machine.
        made: the untuned tables, which are made here where they are not given.

    Raises:
        BuildError: no family could build an operator. DeviceError: a search for a GPU that is not here.
        LogError: a log that cannot be read, or, for a search, not written.
    """
    compilation, options = model.compilation, model.compilation.options
    log = open_log(options.log, writes=options.searches)
    tables = made or untuned_tables(model, builder)
    if not options.searches:
        if len(log):
            tables_from_log(model, tables, builder, log, known_to_log(model, log))
        return tables
    with ExitStack() as stack:
        stack.callback(log.finish)
        if farm is not None:
            known = known_to_log(model, log)
            if compilation.on_gpu:
                farm.runner.cases = expectations(model, tables)
            else:
                farm.runner.arguments = (weights_of(model).argument(),)
            chosen = tune_model(model, tables, builder, farm.runner, log, farm)
            tables_from_log(model, tables, builder, log, known - chosen)
            return tables
        native = stack.enter_context(HostProcess(arguments=(weights_of(model).argument(),)))
        if not compilation.on_gpu:
            native.start()
        load_libraries()
        runner = stack.enter_context(gpu_runner(model, tables)) if compilation.on_gpu else native
        known = known_to_log(model, log)
        search = tune_model if options.policy is not None and not compilation.on_gpu else tune_tables
        chosen = search(model, tables, builder, runner, log)
    tables_from_log(model, tables, builder, log, known - chosen)  # what earlier runs found does not go for want of time
    return tables
