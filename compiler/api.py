"""`compile`: from a model to a function that runs at every shape of its range."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compiler.assemble import Request, assemble, distinct, lowest_target
from compiler.bind_constants import bind_constants
from compiler.codegen import host_target, limits
from compiler.fingerprint import fingerprint
from compiler.fold_constants import fold_constants
from compiler.gpu_tuning import gpu_runner
from compiler.ingest import Ingested, ingest
from compiler.model_cache import ModelCache
from compiler.model_tuning import tune_model
from compiler.options import CompileOptions, Precision
from compiler.source import ModelIR
from compiler.tables import Numerics, Tables, default_tables
from compiler.tuning import Request as TuningRequest
from compiler.tuning import tables_from_log, tune_tables
from compiler.uses import uses_of
from compiler.worker_builder import WorkerBuilder
from passes.base import Callback, Pass, PassPipeline
from passes.fuse_attention import FuseAttention
from passes.graph_pipeline import graph_passes
from passes.instruments import standard
from passes.lower_precision import LowerPrecision
from passes.mlir import ir
from passes.outline import workloads_of
from passes.pack_constants import PackConstants
from passes.pipelines import recover_passes
from passes.spaces.gpu_attention import LONGEST_QUERY, LONGEST_VALUE
from passes.workload import Workload
from runtime import knobs
from runtime.artifact import Bundle
from runtime.cuda.device import arch_of
from runtime.devices import device_for
from runtime.errors import OptionError
from runtime.function import CompiledFunction
from runtime.limits import GpuLimits, HostLimits
from runtime.shape import Dim, ShapeRange
from runtime.target import Target, TargetKind
from search.database.records import TuningLog
from search.protocols import Builder
from search.runner.runner_process import ProcessRunner
from search.search_strategy.outcome import Progress
from search.task_scheduler.model_tuner import ModelProgress


def compile(  # noqa: A001 - the public name; written tw.compile
    model_ir: ModelIR,
    dynamic_dims: Mapping[str, Dim | tuple[int, int]] | None = None,
    target: Target | str = "host",
    options: CompileOptions | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    donate: Sequence[str] = (),
    function: str | None = None,
    callback: Callback | None = None,
    builder: Builder | None = None,
    progress: Callable[[Progress | ModelProgress], None] | None = None,
) -> CompiledFunction:
    """Compile a model once for all shapes of its range.

    Args:
        model_ir: linalg-level MLIR as text, a path, an `ir.Module`, or what `tw.ops` built.
        dynamic_dims: dim name -> Dim or (lo, hi); a name is one of `tw.dims` in the model, or a place such as "arg0.1".
        target: "host", or "host:<level>" such as "host:x86-64-v3"; "cuda" for the GPU that is here, "cuda:sm_90a" for one that
            need not be; "emulator:sm_90a".
        options: see CompileOptions.
        constants: argument name ("arg1") -> array, bound now and stored with the function.
        donate: arguments ("arg1") whose buffer a result of equal type and extents may take.
        function: which function of the module, when it has several public ones.
        callback: called before and after every pass (passes/base.py); a compile with a callback is never cached.
        builder: builds kernels; default: worker processes.
        progress: told how a search goes, where `options` ask for one.
    Returns:
        A CompiledFunction; calling it never needs the compiler again.
    Raises:
        IngestError, OptionError, BuildError: each says what was wanted, what came and what to do.
    """
    options = options or CompileOptions()
    target = Target.parse(target) if isinstance(target, str) else target
    if target == Target(TargetKind.CUDA):
        target = Target(TargetKind.CUDA, arch_of(0))
    if target.kind is not TargetKind.HOST and not target.arch:
        raise OptionError(f"target {target}: name the architecture, as in {target}:sm_90a or {target}:sm_80")
    cache = None if callback or builder or options.log or knobs.DUMP.get() else ModelCache()
    key = None if cache is None else cache_key(model_ir, dynamic_dims or {}, target, options, constants or {}, donate, function)
    bundle = cache.get(key) if cache is not None and key is not None else None
    if bundle is None:
        bundle = compile_bundle(model_ir, dynamic_dims or {}, target, options, constants or {}, donate, function, callback,
                                builder, progress)
        if cache is not None and key is not None:
            cache.put(key, bundle)
    device = device_for(bundle.program, bundle.code)
    return CompiledFunction(bundle.program, bundle.code, bundle.constants, device, llvm_ir=bundle.llvm_ir,
                            threads=options.threads)


def compile_bundle(model_ir: ModelIR, dynamic_dims: Mapping[str, Dim | tuple[int, int]], target: Target, options: CompileOptions,
                   constants: Mapping[str, Any], donate: Sequence[str], function: str | None, callback: Callback | None,
                   builder: Builder | None, progress: Callable[[Progress | ModelProgress], None] | None = None) -> Bundle:
    """The table of contents of a compile."""
    ingested = ingest(model_ir, dynamic_dims, function)
    options.check_traffic(shape_range(ingested))
    ingested, bound = bind_constants(ingested, constants)
    donated = donated_pairs(ingested, bound, donate)
    searching = bool(options.seconds or options.trials)
    with ExitStack() as stack:
        if builder is None:
            builder = workers = stack.enter_context(WorkerBuilder(target, inspect=searching))
            if searching:
                workers.warm()  # they start while the passes run
        outlined, workloads = outline_model(ingested.text, bound, limits(target), options, callback)
        made = distinct(list(workloads.values()))
        search = TuningRequest(made, uses_of(outlined, workloads), shape_range(ingested), target, options)
        tables = make_tables(search, builder, progress)
    request = Request(target, donated, options.out_of_range.value, ingested.text, options.precision.value)
    return assemble(outlined, workloads, tables, ingested, bound, request)


def make_tables(search: TuningRequest, builder: Builder, progress: Callable[[Progress | ModelProgress], None] | None) -> Tables:
    """The defaults of each family; over them what the log knows; over that what a search finds, where one is asked for."""
    host, log = search.target.kind is TargetKind.HOST, TuningLog(search.options.log)
    found, numerics = limits(search.target, search.options.threads), Numerics.of(search.options)
    if not (search.options.seconds or search.options.trials):
        tables = default_tables(search.workloads, found, builder, numerics)
        if len(log):
            tables_from_log(search, tables, builder, log)
        return tables
    with ExitStack() as stack:
        native = stack.enter_context(ProcessRunner())
        if host:
            native.start()  # while kernels are built
        tables = default_tables(search.workloads, found, builder, numerics)
        runner = native if host else stack.enter_context(gpu_runner(search, tables))
        follow = progress or (lambda state: None)
        if search.options.policy is not None and host:
            tune_model(search, tables, builder, runner, log, follow)
        else:
            tune_tables(search, tables, builder, runner, log, follow)
    return tables


def outline_model(text: str, bound: dict[int, np.ndarray], found: HostLimits | GpuLimits, options: CompileOptions,
                  callback: Callback | None = None) -> tuple[str, dict[str, Workload]]:
    """Recover, fuse, outline, fold and lay out constants: the outlined module's text and its workloads by function name."""
    callback = standard(callback, knobs.DUMP.get())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        narrowing = precision_passes(options.precision, found)
        graph = [*recover_passes(), *narrowing, *graph_passes(attention_of(options.precision, found))]
        PassPipeline(graph, callback).run(module)
        fold_constants(module, bound)
        if isinstance(found, HostLimits):
            PassPipeline([PackConstants(found.vector_bytes, found.vector_registers, found.bf16_pairs)], callback).run(module)
        return str(module), workloads_of(module)


def precision_passes(precision: Precision | str, found: HostLimits | GpuLimits) -> list[Pass]:
    """What makes the contractions of an f32 model read narrower operands. tf32 is a matter of the kernels alone."""
    gpu = isinstance(found, GpuLimits)
    if precision is Precision.TF32 and not gpu:
        raise OptionError('precision="tf32": host targets have no tf32; wanted "f32", "bf16" or "f16"')
    return [] if precision in (Precision.F32, Precision.TF32) else [LowerPrecision(Precision(precision).value, gpu)]


def attention_of(precision: Precision | str, found: HostLimits | GpuLimits) -> FuseAttention:
    """Which attentions become one kernel: on a GPU those that tensor cores multiply."""
    if isinstance(found, HostLimits):
        return FuseAttention()
    operands = "f16,bf16,f32" if precision is Precision.TF32 else "f16,bf16"
    return FuseAttention(operands, LONGEST_QUERY, LONGEST_VALUE)


def shape_range(ingested: Ingested) -> ShapeRange:
    """The range of all dims of a model."""
    return ShapeRange(tuple((d.name, d.dim()) for d in ingested.dims))


def donated_pairs(ingested: Ingested, bound: Mapping[int, np.ndarray], donate: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(input, output) numbers whose buffers are shared: the first free output of equal type and extents for each name."""
    inputs = [a for i, a in enumerate(ingested.inputs) if i not in bound]
    names = [a.name for a in inputs]
    taken: set[int] = set()
    pairs = []
    for name in donate:
        if name not in names:
            raise OptionError(f"donate names {name!r}, which is no input; inputs: {', '.join(names)}")
        given = inputs[names.index(name)]
        fits = [i for i, o in enumerate(ingested.outputs)
                if i not in taken and o.dtype == given.dtype and o.dims == given.dims and o.dims is not None]
        if not fits:
            raise OptionError(f"donate names {name!r}, but no result has its type {given.dtype.value} and extents {given.dims}")
        taken.add(fits[0])
        pairs.append((names.index(name), fits[0]))
    return tuple(pairs)


def cpu_of(target: Target) -> tuple[str, str]:
    """CPU and features that the native code of a target is made for."""
    host = host_target(target if target.kind is TargetKind.HOST else lowest_target())
    return host.cpu, host.features


def cache_key(model_ir: ModelIR, dynamic_dims: Mapping[str, Dim | tuple[int, int]], target: Target, options: CompileOptions,
              constants: Mapping[str, Any], donate: Sequence[str], function: str | None) -> str:
    """sha256 over everything that decides what is compiled."""
    if isinstance(model_ir, str | Path) and "\n" not in str(model_ir) and Path(model_ir).is_file():
        model = Path(model_ir).read_text()
    else:
        model = model_ir.module_text() if hasattr(model_ir, "module_text") else str(model_ir)
    digest = hashlib.sha256()
    dims = {n: replace(d) if isinstance(d, Dim) else Dim(*d) for n, d in dynamic_dims.items()}
    asked = replace(options, threads=None, log=None)
    parts = [fingerprint(), model, repr(sorted(dims.items())), str(target), *cpu_of(target),
             repr(limits(target, options.threads)), repr(asked), repr(tuple(donate)), repr(function)]
    for part in parts:
        digest.update(hashlib.sha256(part.encode()).digest())
    for name in sorted(constants):
        array = np.ascontiguousarray(constants[name])
        digest.update(f"{name}:{array.dtype}:{array.shape}".encode())
        digest.update(hashlib.sha256(array.tobytes()).digest())
    return digest.hexdigest()



