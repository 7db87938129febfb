"""`tilewright opt`: run passes over MLIR and print the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.arguments import parse_dims
from tilewright.compiler.cli.model_files import model_text
from tilewright.runtime.errors import IngestError, OptionError

if TYPE_CHECKING:
    from tilewright.passes.base import Pass
    from tilewright.passes.mlir import ir


def opt_command(
    file: Annotated[str, typer.Argument(help="A model: .mlir, .onnx or .pt2; - for MLIR on standard input.")],
    passes: Annotated[
        list[str] | None,
        typer.Option("--pass", help='Passes, in order: "name{option=value ...},name,...". Repeatable.'),
    ] = None,
    pipeline: Annotated[str | None, typer.Option(help="recover or graph: run this pipeline before the passes.")] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(help="Bind a dim first: T@arg0.1=1:128, arg0.1=1:128[:multiple]. Repeatable."),
    ] = None,
    print_ir_after_all: Annotated[
        bool, typer.Option("--print-ir-after-all", help="Print the module after each pass, on standard error.")
    ] = False,
    emit: Annotated[
        str | None, typer.Option(help="llvm or ptx: print the module, by then in the LLVM dialect, as LLVM IR or as PTX.")
    ] = None,
    target: Annotated[str, typer.Option(help="The target of --emit ptx.")] = "cuda:sm_80",
    timing: Annotated[bool, typer.Option("--timing", help="Print the time of each pass, on standard error.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the result here.")] = None,
) -> None:
    """Run passes over MLIR and print the result."""
    from tilewright.passes.base import PassPipeline
    from tilewright.passes.mlir import new_context
    from tilewright.passes.pipeline.instruments import PassTiming, PrintAfterAll, chain, standard
    from tilewright.runtime import knobs

    text = _standard_input() if file == "-" else model_text(Path(file), parse_dims(dim).as_ranges())
    steps = [*_pipeline(pipeline), *_passes(passes or [])]
    clock = PassTiming() if timing else None
    with new_context():
        module = _bind(text, dim) if dim else _parse(text, file)
        callback = chain(clock, PrintAfterAll() if print_ir_after_all else None)
        try:
            PassPipeline(steps, standard(callback, knobs.DUMP.get())).run(module)
        finally:
            if clock:
                print(clock.report(), file=sys.stderr)
        result = _emitted(module, emit, target)
        if output:
            output.write_text(f"{result}\n")
        else:
            print(result)


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise IngestError(f"standard input is no MLIR: byte {error.start} is no text in UTF-8; wanted the text of a "
                          "module") from error


def _emitted(module: ir.Module, form: str | None, target: str) -> str:
    if form is None:
        return str(module)
    if form not in ("llvm", "ptx"):
        raise OptionError(f"--emit {form!r}: wanted llvm or ptx")
    from tilewright.compiler.builder.lowering import translate
    from tilewright.compiler.builder.ptx import to_ptx
    from tilewright.runtime.target import Target

    text = translate(module)
    return text if form == "llvm" else to_ptx(text, Target.parse(target).arch)


def _parse(text: str, file: str) -> ir.Module:
    from tilewright.compiler.frontends.source import parse_text
    from tilewright.passes.mlir import ir

    return parse_text(text, ir.Context.current, file)


def _bind(text: str, dims: list[str]) -> ir.Module:
    from tilewright.compiler.frontends.ingest import ingest
    from tilewright.passes.mlir import ir

    return ir.Module.parse(ingest(text, parse_dims(dims).as_ranges()).text)


def _passes(texts: list[str]) -> list[Pass]:
    from tilewright.passes.pipeline.pass_registry import passes_from_text

    return [step for text in texts for step in passes_from_text(text)]


def _pipeline(name: str | None) -> list[Pass]:
    if name is None:
        return []
    from tilewright.passes.pipeline.graph_pipeline import graph_passes
    from tilewright.passes.pipeline.pipelines import recover_passes

    known = {"recover": recover_passes, "graph": graph_passes}
    if name not in known:
        raise OptionError(f"there is no pipeline {name!r}; the pipelines are {', '.join(known)}")
    return list(known[name]())
