"""Assemble: an outlined model and the dispatch tables of its operators become a Program with all its code."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from tilewright.compiler.builder.assemble_kernel import assembled
from tilewright.compiler.builder.build import BuiltKernel
from tilewright.compiler.builder.codegen import compile_object, cuda_table_object, host_target, runtime_object
from tilewright.compiler.builder.llvm_bridge import to_llvm22
from tilewright.compiler.builder.lowering import to_llvm_text
from tilewright.compiler.compilation.options import Activations, CompileOptions, Deterministic, Graphs, OutOfRange, Precision
from tilewright.compiler.compilation.outlined_model import Cut, OutlinedModel
from tilewright.compiler.constants.stored_constants import stored_constants
from tilewright.compiler.host.call_path import call_path_ir
from tilewright.compiler.host.decision_tree import layout_of
from tilewright.compiler.host.entry_launches import with_settled
from tilewright.compiler.host.host_program import HostProgram
from tilewright.compiler.host.plan_steps import PlannedCall
from tilewright.compiler.host.prelude_ptx import prelude_kernel, prelude_ptx
from tilewright.compiler.host.reached_kernels import with_reached
from tilewright.compiler.host.stored_steps import model_work, stored_tree
from tilewright.compiler.host.strips import EACH
from tilewright.compiler.tuning.dispatch_tables import Tables
from tilewright.compiler.tuning.table_work import with_work
from tilewright.passes.mlir import ir, new_context
from tilewright.runtime.cuda.cuda_table import cuda_table_ir
from tilewright.runtime.errors import IngestError
from tilewright.runtime.host.thread_pool import runtime_object_ir
from tilewright.runtime.program.artifact import Bundle, Memory
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Node
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.program import Argument, Asked, Call, Constant, Program, StripSpan
from tilewright.runtime.program.seal import seal_ir, stored_program
from tilewright.runtime.program.steps import shown
from tilewright.runtime.program.structure import Structure
from tilewright.runtime.target import Target, TargetKind

# Lines of a function from which code around the kernels is optimised to such a level: LLVM's time grows faster than a function.
# Between the two the code is no larger for it; what calls hundreds of kernels spends its time in them.
LEVELS = ((10_000, 0), (2_000, 1), (0, 3))


def assemble(model: OutlinedModel, tables: Tables, like: Bundle | None = None) -> Bundle:
    """Emit and compile the host program. tables: of the model's workloads. like: a bundle of the same model, whose constants,
    names of results, and nesting of arguments and results are taken over; the model's own constants are blank then."""
    compilation, ingested, plan, options = model.compilation, model.ingested, model.plan, model.compilation.options
    near, gpu = compilation.host, compilation.on_gpu
    arch = host_target(near).arch
    if gpu:
        settled = with_settled(plan, tables.tables)
        tables = dataclasses.replace(tables, tables=with_reached(plan, settled, ingested.ranges().bounds()))
    number = {t.workload: i for i, t in enumerate(tables.tables)}
    table_of = [number[c.workload.key] for c in plan.calls]
    workloads = {w.key: w for w in model.workloads}
    worked = tuple(with_work(t, workloads[t.workload], compilation.limits) for t in tables.tables)
    with new_context(), ir.Location.unknown():
        emitter = HostProgram(plan, [d.name for d in ingested.dims], tables.tables, table_of, ingested.checks, gpu, arch)
        text = to_llvm_text(emitter.emit())
        arena = str(emitter.arena())
        strips = tuple(StripSpan(tuple(s.cuts), str(s.rows), s.size, s.least, EACH if s.size > 1 else 0, round(s.gain, 4))
                       for s in emitter.strips)
    objects = dict.fromkeys(k.object for t in tables.tables for k in t.kernels)
    code = {digest: tables.code[digest] for digest in objects}
    llvm_ir = {digest: tables.llvm_ir[digest] for digest in objects}
    prelude = _prelude(emitter, compilation.target, code) if emitter.block_tables else None
    runtime = ""
    if compilation.target.kind is TargetKind.CUDA:
        runtime = _add(cuda_table_object(near), cuda_table_ir(), code, llvm_ir)
    elif not gpu:
        runtime = _add(runtime_object(near), runtime_object_ir(arch), code, llvm_ir)
    constants, memory = _constants(model) if like is None else (like.program.constants, like.constants)
    kept = [i for i, _ in enumerate(ingested.inputs) if i not in model.bound]
    hidden = len(plan.ragged) + len([s for s in plan.sums if any(a.name == s for a in ingested.inputs)])
    visible = kept[: len(kept) - hidden]  # offsets of ragged dims and sums of lengths come last and belong to no structure
    inputs = tuple(ingested.inputs[i] for i in kept)
    named = ingested.outputs if like is None else like.program.outputs  # the text of a saved model does not name its results
    outputs = named if plan.ragged else tuple(
        replace(o, name=a.name, dtype=a.dtype) for o, a in zip(plan.outputs, named, strict=True))
    tree = stored_tree(plan, gpu)
    shared = {call: number for number, step in enumerate(plan.launches()) if len(step.calls) > 1 for call in step.calls}
    outer = plan.ragged[0].dim.over if plan.ragged else ""
    program = Program(
        target=str(compilation.target),
        features=host_target(near).features,
        dims=ingested.dims,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        tables=worked,
        calls=tuple(_call(c, t, tables.tables[t], shared.get(n, -1), outer)
                    for n, (t, c) in enumerate(zip(table_of, plan.calls, strict=True))),
        checks=ingested.checks,
        arena=arena,
        host_object="",
        runtime_object=runtime,
        source=ingested.text,
        dispatch_source="\n".join([*(dispatch_text(t) for t in tables.tables), *shown(tree)]),
        donated=model.donated,
        out_of_range=OutOfRange(options.out_of_range).value,
        certificates=tuple(tables.certificates),
        refused=dict(tables.refused),
        precision=_precision(options),
        input_structure=_input_structure(compilation.imported.input_structure, visible, inputs[: len(visible)])
        if like is None else like.program.input_structure,
        output_structure=_output_structure(compilation.imported.output_structure, len(outputs))
        if like is None else like.program.output_structure,
        tree=tree,
        graphs=Graphs(options.graphs).value,
        graph_memory=int(options.graph_memory),
        ragged=tuple(o.dim for o in plan.ragged),
        asked=asked_of(options, model.cut),
        prelude=prelude,
        strips=strips,
        strided=tuple(s.number for s in plan.strided),
        copied=dict(plan.copied),
    )
    program = msgspec.json.decode(stored_program(program), type=Program)  # as it will be read, which its seal is of
    text += seal_ir("host", program)
    program = replace(program, host_object=_add(_host_code(text, near), text, code, llvm_ir))
    if gpu:
        return Bundle(program, code, memory, llvm_ir)
    binder = call_path_ir(program, model_work(plan), arch)
    if binder:
        binder += seal_ir("binder", program)
        program = replace(program, binder_object=_add(_host_code(binder, near), binder, code, llvm_ir))
    return Bundle(program, code, memory, llvm_ir)


def _prelude(emitter: HostProgram, target: Target, code: dict[str, bytes]) -> MicroKernel:
    """The kernel that fills the block tables of a ragged program, and its code with that of the others."""
    text = prelude_ptx(emitter.block_tables, emitter.dims, emitter.sequence_checks).encode()
    kernel = replace(prelude_kernel(emitter.block_tables, emitter.dims), object=hashlib.sha256(text).hexdigest())
    made = assembled(BuiltKernel(kernel, text, ""), target)
    code[made.kernel.object] = made.code
    return made.kernel


def asked_of(options: CompileOptions, cut: Cut) -> Asked:
    """What a program keeps of the options, and of its partition."""
    return Asked(Deterministic(options.deterministic).value, options.winograd, options.threads, options.max_regret,
                 options.max_kernels, Precision(options.precision).value, Activations(options.activations).value,
                 cut.way, cut.apart, cut.strips.value, cut.measured)


def _constants(model: OutlinedModel) -> tuple[tuple[Constant, ...], Mapping[str, Memory]]:
    """The constants that the plan reads, laid out, and their memory by digest."""
    return stored_constants(model.plan.bound, model.bound, [a.name for a in model.ingested.inputs])


def _input_structure(given: Structure | None, kept: Sequence[int], inputs: Sequence[Argument]) -> Structure | None:
    """Over the program's inputs, which are the arguments `kept`; None where it says no more than they do."""
    if given is None:
        return None
    own = given.renumbered({old: new for new, old in enumerate(kept)})
    lost = [inputs[i].name for i in sorted(set(range(len(inputs))) - set(own.numbers()))]
    if lost:
        raise IngestError(f"the input structure {given.describe()} has no leaf for the arguments {', '.join(lost)}; add one, or "
                          "bind them as constants")
    return None if own.is_flat([a.name for a in inputs]) else own


def _output_structure(given: Structure | None, count: int) -> Structure | None:
    return None if given is None or given.is_plain_result(count) else given


def _call(planned: PlannedCall, number: int, table: DispatchTable, launch: int, outer: str) -> Call:
    """outer: the dim that counts sequences, where some are ragged."""
    over = outer if planned.segments is not None else ""
    layout = {name: str(e) for name, e in layout_of(planned, table).items()}
    return Call(number, tuple(map(str, planned.dims)), layout, launch, over)


def _host_code(text: str, near: Target) -> bytes:
    """Object code of what runs around the kernels, such as 200 arguments that are looked at."""
    longest = max(function.count("\n") for function in text.split("\n}\n"))
    return compile_object(text, near, next(level for lines, level in LEVELS if longest >= lines))


def _precision(options: CompileOptions) -> str:
    """What a check against the model should expect."""
    if options.precision is Precision.F32 and options.activations is Activations.INT8:
        return Activations.INT8.value
    return Precision(options.precision).value


def _add(code: bytes, text: str, codes: dict[str, bytes], texts: dict[str, str]) -> str:
    digest = hashlib.sha256(code).hexdigest()
    codes[digest], texts[digest] = code, to_llvm22(text)
    return digest


def dispatch_text(table: DispatchTable) -> str:
    """The decision tree of a table as readable pseudo-code."""
    lines = [f"{table.name}({', '.join(table.dims)}):"]

    def show(node: Node, depth: int) -> None:
        pad = "  " * depth
        if isinstance(node, Leaf):
            kernel = table.kernels[node.kernel]
            units = kernel.grid[0] if kernel.grid[1:] == ("1", "1") else " x ".join(kernel.grid)
            threads = f" on at most {node.threads} threads" if node.threads else ""
            lines.append(f"{pad}{kernel.config}: {units} units{threads}")
            return
        lines.append(f"{pad}if {node.expr} <= {node.bound}:")
        show(node.below, depth + 1)
        lines.append(f"{pad}else:")
        show(node.above, depth + 1)

    show(table.root, 1)
    return "\n".join(lines)
