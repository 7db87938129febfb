"""OutlinedModel: a model after the graph passes, as its operators and the plan of its host program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import Activations, CompileOptions, Deterministic, Graphs, OutOfRange, Precision
from tilewright.compiler.compilation.ragged_model import check_independent, for_one_sequence, packed, refuse_ragged_options
from tilewright.compiler.constants.bind_constants import bind_constants, by_sequence
from tilewright.compiler.constants.check_indices import check_indices
from tilewright.compiler.constants.fold_constants import fold_constants
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.compiler.frontends.ingest import Ingested, ingest
from tilewright.compiler.host.block_tables import with_block_tables
from tilewright.compiler.host.entry_launches import extents_of, with_entries
from tilewright.compiler.host.host_plan import HostPlan, plan_of
from tilewright.compiler.host.in_place import with_in_place
from tilewright.compiler.host.launch_groups import LEAST
from tilewright.compiler.host.pack_plan import pack_plan, sequences_of
from tilewright.compiler.host.plan_steps import conditional_calls
from tilewright.compiler.host.strips import Costs, with_strips
from tilewright.passes.analysis.canonical_spec import KEY
from tilewright.passes.base import Mlir, Pass, PassPipeline
from tilewright.passes.dispatch_creation.equal_parts import share_equal_parts
from tilewright.passes.dispatch_creation.fuse import GRAPH, OPERATION, Fuse
from tilewright.passes.dispatch_creation.fuse_attention import FuseAttention
from tilewright.passes.dispatch_creation.look_up_in_attention import LookUpInAttention
from tilewright.passes.dispatch_creation.look_up_in_product import LookUpInProduct
from tilewright.passes.dispatch_creation.outline import workloads_of
from tilewright.passes.dispatch_creation.outlined import predicated
from tilewright.passes.dispatch_creation.pack_constants import PackConstants
from tilewright.passes.dispatch_creation.update_in_place import UpdateInPlace
from tilewright.passes.linalg.structured import main_of
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.partition.cost import SPEEDS, Machine
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.instruments import standard
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE
from tilewright.passes.spaces.host.host_attention import FEW
from tilewright.passes.spaces.host.host_block import DISTANT_BYTES
from tilewright.passes.spaces.host.host_window import NEAR_FACTORS
from tilewright.passes.spaces.workload import Workload
from tilewright.passes.transforms.channels_last import FEW_CHANNELS, NARROW_ROW, SHORT_ROW, ChannelsLast
from tilewright.passes.transforms.constants_along_k import ConstantsAlongK
from tilewright.passes.transforms.distribute_codes import DistributeCodes
from tilewright.passes.transforms.find_codes import FindCodes
from tilewright.passes.transforms.gathered_channels import GatheredChannels
from tilewright.passes.transforms.hoist_from_loops import ROWS_OF_A_STEP, HoistFromLoops
from tilewright.passes.transforms.integer_products import IntegerProducts
from tilewright.passes.transforms.loops_to_scans import LoopsToScans
from tilewright.passes.transforms.lower_precision import LowerPrecision
from tilewright.passes.transforms.quantise_activations import QuantiseActivations
from tilewright.passes.transforms.skip_zero_products import SkipZeroProducts
from tilewright.passes.transforms.split_reductions import SplitReductions
from tilewright.passes.transforms.taps_with_channels import TapsWithChannels
from tilewright.runtime import knobs
from tilewright.runtime.call.binder import describe
from tilewright.runtime.errors import OptionError, perhaps
from tilewright.runtime.limits import GpuLimits, HostLimits, Limits
from tilewright.runtime.program.program import Asked
from tilewright.runtime.shape import Expr, ShapeRange
from tilewright.runtime.target import TargetKind
from tilewright.runtime.wording import option


@dataclass(frozen=True)
class Cut:
    """What a partition is asked to be. way: how regions grow, as of the pass fuse. apart: pairs of operations, by the numbers of
    passes/partition, that do not share a kernel. strips: which launches are done by strips of rows, on a GPU which products are
    one kernel with the work on their rows. alone: is each call on a GPU a launch, however many are alike? measured: the time of
    the model as a share of that of the predicted partition, where a search took this one; it is no part of what is asked."""

    way: str = "cost"
    apart: tuple[tuple[int, int], ...] = ()
    strips: StripChoice = StripChoice.PREDICTED
    alone: bool = False
    measured: float | None = field(default=None, compare=False)


def cut_of(asked: Asked) -> Cut:
    """Of a compiled program."""
    return Cut(asked.way, asked.apart, StripChoice(asked.strips), measured=asked.measured)


SPEEDS_OF = "partition"  # as calibrated figures name them
SPLIT_CORES = Machine().threads


@dataclass(frozen=True)
class OutlinedModel:
    """What the graph passes made of a compilation's model.

    bound: argument number -> value bound at compile time: what the user bound, the model's own constants, what they fold to. Of a
    ragged model those that have an entry for each sequence have an axis of these in front.
    donated: (input, output) numbers whose buffers are shared. workloads: the operators, equal ones once. operations: workload key
    -> the numbers of the operations of each of its calls, of models without branches and loops. cut: what its partition was asked
    to be; graph: digest of the operations that it is of, where a log is to know it.
    """

    compilation: Compilation
    ingested: Ingested
    bound: Mapping[int, np.ndarray]
    donated: tuple[tuple[int, int], ...]
    workloads: tuple[Workload, ...]
    plan: HostPlan
    operations: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    cut: Cut = field(default_factory=Cut)
    graph: str = ""

    @property
    def ranges(self) -> ShapeRange:
        """The ranges of all dims of the model, of ragged ones those of one length, and of the counters of its loops."""
        ragged = ((o.dim.name, o.dim.dim()) for o in self.plan.ragged)
        return ShapeRange((*self.ingested.ranges().dims, *ragged, *self.plan.counters.dims))

    @cached_property
    def uses(self) -> Mapping[str, Sequence[Mapping[str, Expr]]]:
        """Workload key -> each call's local dims over the model's dims."""
        found: dict[str, list[Mapping[str, Expr]]] = {}
        for call in self.plan.calls:
            found.setdefault(call.workload.key, []).append(dict(zip(call.workload.dims, call.dims, strict=True)))
        return found


def outline(compilation: Compilation, cut: Cut | None = None) -> OutlinedModel:
    """Read the model, bind its constants, run the graph passes and plan the host program.

    Args:
        cut: what the partition is to be; None for what is predicted to be the fastest.
    Raises:
        IngestError, OptionError: the model, or what is asked of it, does not fit.
    """
    options, cut = compilation.options, cut or Cut()
    if options.graphs is Graphs.ON and compilation.target.kind is not TargetKind.CUDA:
        raise OptionError(option("graphs", "on") + f": only CUDA targets have graphs, and the target is {compilation.target}; "
                          "leave it out, or compile for cuda:sm_90a or the like")
    model = compilation.model
    source = model.text if isinstance(model, ImportedModel) else model
    everywhere = options.out_of_range is OutOfRange.FALLBACK
    ingested = ingest(source, compilation.open_dims, compilation.function, compilation.imported.dims, everywhere)
    options.check_traffic(ingested.ranges())
    ingested, bound = bind_constants(ingested, compilation.all_constants)
    each = by_sequence(ingested, bound)
    donated = donated_pairs(ingested, bound, compilation.all_donations)
    limits = compilation.limits
    callback = standard(options.callback, knobs.DUMP.get())
    whole, ragged = ingested, any(d.over for d in ingested.dims)
    if ragged:
        refuse_ragged_options(compilation)
        check_independent(whole)
        ingested = packed(whole, bound)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(for_one_sequence(whole) if ragged else whole.text)
        passes = with_cut(passes_of(options, limits), cut, options.searches or options.log is not None)
        if ragged:
            passes = [replace(p, products="") if isinstance(p, Fuse) else p for p in passes]
        elif _by_shape(options, limits):
            passes = [replace(p, by_shape=True) if isinstance(p, Fuse) else p for p in passes]
        if not ragged and cut == Cut() and not options.searches and options.log is None:
            share_equal_parts(module)
        PassPipeline(passes, callback).run(module)
        fold_constants(module, bound, each)
        if isinstance(limits, HostLimits):
            packing = PackConstants(limits.vector_bytes, limits.vector_registers, limits.bf16_pairs, limits.byte_products,
                                    limits.l3, limits.tiles or limits.bf16_tiles)
            PassPipeline([packing], callback).run(module)
        check_indices(module, bound)
        workloads, numbers, graph = workloads_of(module), _operations(module), _graph(module)
        extents = {} if ragged or cut.alone or isinstance(limits, HostLimits) else extents_of(workloads)
        alike = {name: own.key for name, own in extents.items()}
        on_host = isinstance(limits, HostLimits)
        plan = plan_of(module, workloads, donated, on_host, alike, strided=on_host and not ragged and not donated,
                       over=on_host or not ragged)
        if isinstance(limits, HostLimits) and not ragged and not donated:
            plan = with_strips(plan, Costs.of(Machine.of(speeds_of(limits)), cut.strips, limits))
        if any(len(launch.calls) > 1 for launch in plan.launches()) and extents:
            plan = with_entries(plan, {workloads[name].key: own for name, own in extents.items()})
            workloads = {str(number): c.workload for number, c in enumerate(plan.calls)}
        if ragged:
            seen = (*whole.inputs, *ingested.inputs[len(whole.inputs):])
            plan = pack_plan(plan, sequences_of(whole.dims, seen, whole.outputs, bound, each, ingested.dims))
            if isinstance(limits, GpuLimits):
                plan = with_block_tables(plan)
                workloads = {str(number): c.workload for number, c in enumerate(plan.calls)}
        on_gpu = isinstance(limits, GpuLimits)
        workloads = with_in_place(workloads, plan.in_place)
        workloads = dict(with_predicates(workloads, plan)) if on_gpu else workloads
    return OutlinedModel(compilation, ingested, bound, donated, distinct(workloads), plan, numbers, cut, graph)


def with_predicates(workloads: Mapping[str, Workload], plan: HostPlan) -> Mapping[str, Workload]:
    """The workloads, of which those that a branch or loop on data launches have kernels that go by a byte."""
    keys = {plan.calls[number].workload.key for number in conditional_calls(plan.steps)}
    return {name: predicated(w) if w.key in keys else w for name, w in workloads.items()}


def distinct(workloads: Mapping[str, Workload]) -> tuple[Workload, ...]:
    """One workload per key, in order of appearance."""
    seen: dict[str, Workload] = {}
    for w in workloads.values():
        seen.setdefault(w.key, w)
    return tuple(seen.values())


def donated_pairs(ingested: Ingested, bound: Mapping[int, np.ndarray], donate: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(input, output) numbers whose buffers are shared: the first free output of equal type and extents for each name."""
    inputs = [i for i, _ in enumerate(ingested.inputs) if i not in bound]
    taken: set[int] = set()
    pairs = []
    for name in donate:
        number = ingested.number(name)
        if number not in inputs:
            names = ", ".join(ingested.inputs[i].name for i in inputs)
            raise OptionError(f"donate names {name!r}, which is no input; name one of {names}{perhaps(name, names.split(', '))}")
        given = ingested.inputs[number]
        fits = [i for i, o in enumerate(ingested.outputs)
                if i not in taken and o.dtype == given.dtype and o.dims == given.dims and o.dims is not None]
        if not fits:
            results = ", ".join(map(describe, ingested.outputs))
            raise OptionError(f"donate names {name!r}, but wanted a result of its type and extents to take its buffer, "
                              f"{describe(given)}, and the results are {results}; leave it out")
        taken.add(fits[0])
        pairs.append((inputs.index(number), fits[0]))
    return tuple(pairs)


def passes_of(options: CompileOptions, limits: Limits) -> list[Pass]:
    """What every model goes through before its constants are folded: recover, narrow, fuse, outline."""
    graph = graph_passes(_attention(options, limits), _integers(limits), _parts(limits), _images(options, limits),
                         _weights(options, limits), _activations(options), _in_place(limits), _runs(limits))
    together = isinstance(limits, HostLimits)
    products, arch = _products(options, limits)
    graph = [replace(p, speeds=speeds_of(limits), together=together, products=products, arch=arch) if isinstance(p, Fuse) else p
             for p in graph]
    joined = together and _activations(options) is None
    graph = [replace(p, joined=joined) if isinstance(p, DistributeCodes) else p for p in graph]
    graph = [replace(p, rounded=not together) if isinstance(p, FindCodes) else p for p in graph]
    return [*recover_passes(), *_scans(limits), *_precision(options, limits), *graph]


def _by_shape(options: CompileOptions, limits: Limits) -> bool:
    """May a partition depend on the shape? On GPUs, and on machines that have the cores which its prediction takes calls to run
    on."""
    cores = limits.cores if isinstance(limits, HostLimits) else SPLIT_CORES
    return cores >= SPLIT_CORES and options.deterministic is not Deterministic.BATCH


def speeds_of(limits: Limits) -> tuple[int, ...]:
    """What this machine was calibrated to have for predictions of partitions; nothing where it was not."""
    known = dict(limits.calibrated) if isinstance(limits, HostLimits) else {}
    found = tuple(known.get(f"{SPEEDS_OF}.{name}", 0) for name in SPEEDS)
    return found if all(found) else ()


def with_cut(passes: Sequence[Pass], cut: Cut, digest: bool = False) -> list[Pass]:
    """The passes, of which the partition is cut so and says which operations calls are of. digest: and what graph was cut."""
    apart = tuple(number for pair in cut.apart for number in pair)
    return [replace(p, partition=cut.way, apart=apart, numbers=True, digest=digest, strips=cut.strips.value)
            if isinstance(p, Fuse) else p for p in passes]


def _graph(module: ir.Module) -> str:
    """The digest of the graph that was cut; "" where branches and loops have graphs too."""
    [main, *others] = [f for f in main_of(module) if KEY not in f.attributes]
    return "" if others or GRAPH not in main.attributes else ir.StringAttr(main.attributes[GRAPH]).value


def _operations(module: ir.Module) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Workload key -> the numbers of the operations of each of its calls; nothing where branches and loops have functions too."""
    [main, *others] = [f for f in main_of(module) if KEY not in f.attributes]
    keys = {ir.StringAttr(f.attributes["sym_name"]).value: ir.StringAttr(f.attributes[KEY]).value
            for f in functions(module) if KEY in f.attributes}
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for op in operations(main.regions[0].blocks[0]) if not others else ():
        if OPERATION in op.attributes:
            key = keys[str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)]
            found[key] = (*found.get(key, ()), tuple(map(integer, ir.ArrayAttr(op.attributes[OPERATION]))))
    return found


def _scans(limits: Limits) -> list[Pass]:
    """Loops that work element by element on what they carry become kernels; the others do less. A product of some rows fills the
    registers of a host, not the multiprocessors of a GPU, whose launches are the same at each step."""
    rows = ROWS_OF_A_STEP * limits.vector_bytes // 32 if isinstance(limits, HostLimits) else 0
    return [LoopsToScans(), HoistFromLoops(rows=rows), *([SkipZeroProducts()] if rows else []), Mlir("canonicalize,cse")]


def _in_place(limits: Limits) -> UpdateInPlace:
    """Each run of a part is a launch on a GPU, beside one that makes all of a tensor anew."""
    return UpdateInPlace() if isinstance(limits, HostLimits) else UpdateInPlace(runs=8)


def _precision(options: CompileOptions, limits: Limits) -> list[Pass]:
    """What makes the contractions of an f32 model read narrower operands. tf32 is a matter of the kernels alone."""
    gpu = isinstance(limits, GpuLimits)
    if options.precision is Precision.TF32 and not gpu:
        raise OptionError('precision="tf32": host targets have no tf32; wanted "f32", "bf16" or "f16"')
    narrow = options.precision not in (Precision.F32, Precision.TF32)
    return [LowerPrecision(Precision(options.precision).value, gpu)] if narrow else []


def _activations(options: CompileOptions) -> QuantiseActivations | None:
    return QuantiseActivations() if options.activations is Activations.INT8 else None


def _integers(limits: Limits) -> IntegerProducts | None:
    """How bytes are multiplied, on a host that has instructions for it."""
    if not isinstance(limits, HostLimits) or limits.byte_products < 2:
        return None
    return IntegerProducts(apart=limits.byte_products > 2)


def _parts(limits: Limits) -> SplitReductions | None:
    """Reductions along rows are done in parts; a GPU takes more and smaller ones, to have some for each multiprocessor that wait
    for memory in turns, and those of attention, which it fuses for some types only. Tensors that the cache of a core has beside
    three others of their size are whole there, where cores have some of them each."""
    if isinstance(limits, HostLimits):
        return SplitReductions(alone=64, many=max(16, 4 * limits.cores), near=limits.l2 // 16)
    return SplitReductions(
        elements=2048, rows=4, parts=512, shares=True, alike=LEAST)


def _images(options: CompileOptions, limits: Limits) -> ChannelsLast:
    """On the host, images of few pixels a row run over channels, as sequences do that gain by it, and those of few channels over
    pixels, as volumes of few filters or channels do; groups begin channels last only where that saves multiplications, of
    twice as many filters where copies go through a distant cache (xeon6-avx512.md)."""
    if not isinstance(limits, HostLimits):
        return ChannelsLast()
    groups = 0 if not options.winograd else 2 if limits.l3 >= DISTANT_BYTES else 1
    return ChannelsLast(narrow=NARROW_ROW, few=FEW_CHANNELS, short=SHORT_ROW, volumes=NEAR_FACTORS, pairs=limits.bf16_pairs,
                        winograd=options.winograd, groups=groups)


def _runs(limits: Limits) -> list[Pass]:
    """On the host, whose vectors and words run along memory."""
    return [TapsWithChannels(pairs=limits.bf16_pairs), GatheredChannels()] if isinstance(limits, HostLimits) else []


def _weights(options: CompileOptions, limits: Limits) -> ConstantsAlongK | None:
    """On sm_90a, constants of elements that are not of two bytes, which warpgroups read along k only."""
    if not isinstance(limits, GpuLimits) or limits.arch != "sm_90a":
        return None
    return ConstantsAlongK("f8E4M3FN,f8E5M2,i8" + (",f32" if options.precision is Precision.TF32 else ""))


def _products(options: CompileOptions, limits: Limits) -> tuple[str, str]:
    """Element types of products that kernels hold with the work on their rows, and the architecture of the GPU."""
    if isinstance(limits, HostLimits):
        return "", ""
    return ("f16,bf16,f32" if options.precision is Precision.TF32 else "f16,bf16"), limits.arch


def _attention(options: CompileOptions, limits: Limits) -> list[Pass]:
    """Which attentions become one kernel: on a GPU those that tensor cores multiply, with lookups. A host's look up keys of few
    queries."""
    if isinstance(limits, HostLimits):
        return [FuseAttention(), LookUpInAttention(FEW), LookUpInProduct()]
    return [FuseAttention(_products(options, limits)[0], LONGEST_QUERY, LONGEST_VALUE, lookups=True)]
