"""From a compilation to its bundle: from the cache of whole compiles, or compiled here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from tilewright.compiler.assemble import assemble
from tilewright.compiler.builder.kernel_shelf import shelf_of
from tilewright.compiler.builder.model_cache import ModelCache
from tilewright.compiler.builder.worker_builder import WorkerBuilder
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.constants.stored_constants import StoredConstants
from tilewright.compiler.tuning.choose_tables import choose_tables
from tilewright.compiler.tuning.cut_refused import built_with_cuts
from tilewright.compiler.tuning.farm_session import farm_session
from tilewright.compiler.tuning.ragged_demand import is_held_to_batches
from tilewright.compiler.verification.keep_what_gains import kept
from tilewright.compiler.verification.partition_arms import known_cut, measured_cut
from tilewright.passes.base import Callback
from tilewright.passes.partition.rules import users_rules
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.runtime import knobs
from tilewright.runtime.log import LOG, timed
from tilewright.runtime.program.artifact import Bundle


def bundle_of(compilation: Compilation, watch: Callback | None = None) -> Bundle:
    """The bundle of a compilation, kept in the cache unless it is watched, dumped or logged by its user, or cut by
    rules of his.

    watch: called before and after every graph pass where the model is compiled; unlike a callback of the options, it says nothing
    against the cache.
    """
    options = compilation.options
    watched = replace(compilation, options=replace(options, callback=watch)) if watch else compilation
    if options.callback or options.builder or options.farm or options.log or knobs.DUMP.get() or users_rules():
        return in_memory(compile_bundle(watched))
    cache, key = ModelCache(), compilation.key()
    found = cache.get(key)
    if found is not None:
        LOG.info("taken from the cache, key %s", key[:12])
        return found
    bundle, timed_out = _compiled(watched)
    if timed_out and not options.searches:  # what a search found is kept all the same
        LOG.warning("not kept in the cache, since kernels were not built in time: %s", "; ".join(timed_out))
        return in_memory(bundle)
    return _kept(bundle, cache, key)


def _kept(bundle: Bundle, cache: ModelCache, key: str) -> Bundle:
    """The bundle as the cache maps it, so that its constants take no memory of their own; without a cache, in memory."""
    return cache.put(key, bundle) or in_memory(bundle)


def in_memory(bundle: Bundle) -> Bundle:
    """The bundle with memory of its own for its constants."""
    assert isinstance(bundle.constants, StoredConstants)
    return replace(bundle, constants=bundle.constants.in_memory())


def compile_bundle(compilation: Compilation) -> Bundle:
    """The table of contents of a compile."""
    return _compiled(compilation)[0]


def _compiled(compilation: Compilation) -> tuple[Bundle, Sequence[str]]:
    """The bundle, and why kernels were refused that workers of this process did not build in time."""
    options = compilation.options
    with ExitStack() as stack:
        session, shelf = None, shelf_of(options.log)
        workers: WorkerBuilder | None = None
        if options.farm is not None and options.searches:
            told = options.progress or (lambda state: None)
            session = stack.enter_context(farm_session(options.farm, compilation.target, shelf, told))
            workers = session.builder
        elif options.builder is None:
            workers = stack.enter_context(WorkerBuilder(compilation.target, inspect=options.searches, shelf=shelf))
            if options.searches:
                workers.warm()  # they start while the passes run
        builder = options.builder if workers is None else workers
        assert builder is not None
        if options.searches:
            model, untuned = measured_cut(compilation, builder)
            with timed("kernels"):
                tables = choose_tables(model, builder, session, untuned)
        else:
            model, tables = built_with_cuts(compilation, partial(choose_tables, builder=builder))
            model, tables = known_cut(model, tables, partial(choose_tables, builder=builder))
        if workers is not None and options.searches:
            of_key = {w.key: w for w in model.workloads}
            workers.publish([(of_key[key], parse_config(config)) for key, config in tables.used])
    with timed("host program"):
        bundle = kept(model, tables, compilation.seconds_left) if is_held_to_batches(model) else assemble(model, tables)
    return bundle, [] if workers is None else workers.timed_out
