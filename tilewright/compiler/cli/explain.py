"""`tilewright explain`: what a compiled model does at a shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tilewright.compiler.cli.arguments import parse_dims
from tilewright.compiler.cli.batches import batch_of
from tilewright.compiler.cli.compile import describe
from tilewright.compiler.cli.compile_arguments import Constants, Function, Json, Target
from tilewright.compiler.cli.model_files import ANY_MODEL_HELP, CompileChoice, bound_arrays, compiled
from tilewright.compiler.cli.output import Output, dims_text, known
from tilewright.compiler.cli.sampling import check_dims
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.runtime.program.program import Program


def explain_command(
    file: Annotated[Path, typer.Argument(help=ANY_MODEL_HELP, exists=True, dir_okay=False)],
    dim: Annotated[
        list[str] | None,
        typer.Option(help="Value of a dim: T=57; lengths of a batch: S=5,90; ranges, T=1:128, for a model that is not compiled "
                          "yet. Repeatable."),
    ] = None,
    constants: Constants = None,
    target: Target = "host",
    function: Function = None,
    dispatch: Annotated[bool, typer.Option("--dispatch", help="Print the source of the dispatch function.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Print the MLIR that was compiled.")] = False,
    partition: Annotated[bool, typer.Option("--partition", help="Print how the model is cut into kernels, and why so.")] = False,
    json: Json = False,
) -> None:
    """Show the operators of a model and, with --dim, the kernels and memory of one shape."""
    out, arguments = Output(json), parse_dims(dim)
    fn = compiled(out, file, arguments, CompileChoice(target, function, bound_arrays(constants, file, arguments))).fn
    program = fn.program
    if dispatch:
        out.event("dispatch", source=fn.dispatch_source())
        out.text(fn.dispatch_source())
    if source:
        out.event("source", mlir=program.source)
        out.text(program.source)
    if partition:
        from tilewright.compiler.builder.codegen import limits
        from tilewright.compiler.cli.partition_tables import print_partitions
        from tilewright.compiler.compilation.compilation import full_target
        from tilewright.compiler.compilation.partitions import partitions_of

        print_partitions(out, partitions_of(program.source, limits(full_target(program.target), None), program.asked), program)
    if dispatch or source or partition:
        return
    describe(out, program)
    values = arguments.values
    if not values and not arguments.batches and program.dims:
        return
    dims: dict[str, Any] = batch_of(program, arguments) if program.ragged else dict(check_dims(program, values))
    explanation, memory = fn.explain(**dims), fn.memory(**dims)
    for call in explanation.calls:
        figures = {"predicted": known(call.predicted, call.predicted), "measured": known(call.measured, call.measured)}
        out.event("call", **(msgspec.structs.asdict(call) | figures))
    out.event("memory", **msgspec.structs.asdict(memory))
    work = ("useful", "executed", "padding") if explanation.batch else ()
    rows = [(c.call, c.workload, c.config, c.units, c.threads or "all", dims_text(c.dims),
             *((f"{c.useful:,}", f"{c.executed:,}", f"{c.padding:.1%}") if work else ()), c.why) for c in explanation.calls]
    shown = explanation.dims if program.ragged else dims
    out.table(f"Calls at {dims_text(shown)}", ("call", "operator", "kernel", "units", "threads", "dims", *work, "why"), rows)
    note = tiles_left_out(program)
    if note:
        out.event("note", text=note)
        out.text(note)
    out.text(f"arena {memory.arena} bytes, constants {memory.constants} bytes, results {memory.outputs} bytes")


def tiles_left_out(program: Program) -> str:
    """What `deterministic="batch"` does to products that tiles (AMX) multiply elsewhere; empty where the model has none."""
    texts = {k.config for t in program.tables for k in t.kernels if k.family == HostMatmulConfig.family}
    configs = [c for c in map(parse_config, texts) if isinstance(c, HostMatmulConfig)]
    if program.asked.deterministic != "batch" or not any(c.ordered and c.side > 1 for c in configs):
        return ""
    return ("deterministic=batch: products of bf16 and of bytes are made of words of two and of four, also where the CPU has "
            "tiles (AMX), whose sums have another order; deterministic=shape uses those")
