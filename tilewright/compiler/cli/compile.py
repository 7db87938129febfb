"""`tilewright compile`: MLIR to a saved model."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.arguments import DIM_HELP, load_constants, parse_dims
from tilewright.compiler.cli.output import JSON_HELP, Output
from tilewright.compiler.cli.tune_view import TuneView

if TYPE_CHECKING:
    from tilewright.runtime.program.program import Program


def compile_command(
    file: Annotated[Path, typer.Argument(help="The model: a .mlir file.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path("model.tw"),
    dim: Annotated[list[str] | None, typer.Option(help=DIM_HELP)] = None,
    constants: Annotated[
        Path | None, typer.Option(help="Arguments to bind now, by name: a .npz or .safetensors file.", exists=True)
    ] = None,
    target: Annotated[str, typer.Option(help="host, host:x86-64-v3, ...; `tilewright targets` lists them.")] = "host",
    function: Annotated[str | None, typer.Option(help="The function to compile, where there are several.")] = None,
    donate: Annotated[list[str] | None, typer.Option(help="An argument whose buffer a result may reuse.")] = None,
    threads: Annotated[int | None, typer.Option(help="Most threads that a call uses.")] = None,
    precision: Annotated[str, typer.Option(help="f32; tf32, bf16 or f16 for the contractions of f32 models.")] = "f32",
    deterministic: Annotated[str, typer.Option(help="shape, or batch: same bits for a row in any batch.")] = "shape",
    winograd: Annotated[bool, typer.Option(help="3x3 convolutions on the host may go through Winograd's transforms.")] = True,
    out_of_range: Annotated[str, typer.Option(help="error, or fallback: run shapes outside the range.")] = "error",
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Tuning log (JSON Lines): what it knows of this machine is used.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Search for so long; the measurements go to --log.")] = None,
    trials: Annotated[int | None, typer.Option(help="Search with so many measurements.")] = None,
    print_ir_after_all: Annotated[
        bool, typer.Option("--print-ir-after-all", help="Print the module after each pass, on standard error.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Compile a model for a range of shapes and save it."""
    from tilewright.compiler.api import compile as compile_model
    from tilewright.compiler.compilation.options import CompileOptions

    out = Output(json)
    callback = None
    if print_ir_after_all:
        from tilewright.passes.pipeline.instruments import PrintAfterAll

        callback = PrintAfterAll()
    view = TuneView(out) if seconds or trials else None
    options = CompileOptions(
        threads=threads, precision=precision, deterministic=deterministic, winograd=winograd, out_of_range=out_of_range,
        seed=seed, log=log, seconds=seconds, trials=trials, callback=callback, progress=view.update if view else None,
    )  # fmt: skip
    start = time.perf_counter()
    with view or out.progress(f"compiling {file}"):
        fn = compile_model(
            file,
            parse_dims(dim).as_ranges(),
            target=target,
            options=options,
            constants=load_constants(constants) or None,
            donate=tuple(donate or ()),
            function=function,
        )
        fn.save(output)
    seconds = time.perf_counter() - start
    describe(out, fn.program)
    size = output.stat().st_size
    out.event("saved", output=str(output), bytes=size, seconds=round(seconds, 3))
    out.text(f"{output}: {size / 1024:.0f} KiB in {seconds:.1f} s")


def describe(out: Output, program: Program) -> None:
    """The dims of a program and its operators, as a table or as JSON Lines."""
    for d in program.dims:
        out.event("dim", name=d.name, lo=d.lo, hi=d.hi, multiple_of=d.multiple_of, at=list(d.at))
    if program.dims:
        dims = [(d.name, str(d.dim()), " ".join(d.at)) for d in program.dims]
        out.table("Dims", ("dim", "range", "read from"), dims)
    calls = Counter(c.table for c in program.calls)
    rows = []
    for number, table in enumerate(program.tables):
        configs = [k.config for k in table.kernels]
        out.event("operator", name=table.name, calls=calls[number], workload=table.workload, kernels=configs)
        rows.append((table.name, calls[number], len(configs), "\n".join(configs)))
    out.table(f"Operators for {program.target}", ("operator", "calls", "kernels", "configurations"), rows)
    for name, reason in program.refused.items():
        out.event("refused", name=name, reason=reason)
        out.text(f"{name}: on a family of lower preference, since {reason}")
