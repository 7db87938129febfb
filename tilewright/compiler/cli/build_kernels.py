"""`tilewright build-kernels`: candidate kernels of a model in one file, to be measured where the GPU is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tilewright.compiler.cli.arguments import load_constants, parse_dims
from tilewright.compiler.cli.compile_arguments import Constants, Dims, Function, Json, MaxRegret, ModelFile, Precision, Seed
from tilewright.compiler.cli.model_files import model_file, place_to_write
from tilewright.compiler.cli.output import Output


def build_kernels_command(
    file: ModelFile,
    target: Annotated[str, typer.Option(help="cuda:sm_90a, cuda:sm_80, ...: the GPU that will measure.")] = "cuda:sm_90a",
    output: Annotated[Path, typer.Option("-o", "--output", help="The archive to write.")] = Path("kernels.tw"),
    dim: Dims = None,
    constants: Constants = None,
    function: Function = None,
    precision: Precision = "f32",
    kernels: Annotated[int, typer.Option(help="Most candidates of an operator.")] = 64,
    max_regret: MaxRegret = 0.05,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Build the kernels that promise most over a model's range, with what they must compute, for `tilewright measure`."""
    from tilewright.compiler.compilation.compilation import Compilation, full_target
    from tilewright.compiler.compilation.options import CompileOptions
    from tilewright.compiler.isolation.isolated import tried_apart
    from tilewright.compiler.tuning.archive_kernels import archive_kernels

    out = Output(json)
    place_to_write(output)
    start = time.perf_counter()

    def told(name: str, built: int, failed: int) -> None:
        out.event("operator", name=name, kernels=built, failed=failed)
        out.text(f"{name}: {built} kernels" + (f", {failed} could not be built" if failed else ""))

    options = CompileOptions(precision=precision, max_regret=max_regret, seed=seed)
    with out.progress(f"building kernels of {file}"):
        compilation = Compilation(model_file(file), parse_dims(dim).as_ranges(), full_target(target), options,
                                  load_constants(constants), function=function)
        tried_apart(compilation)
        archive_kernels(compilation, output, kernels, told)
    size, seconds = output.stat().st_size, time.perf_counter() - start
    out.event("saved", output=str(output), bytes=size, seconds=round(seconds, 3))
    out.text(f"{output}: {size / 1024:.0f} KiB in {seconds:.1f} s")
