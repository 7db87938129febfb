"""`tilewright compress`: a model with its weights in few bits, compiled and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.compiler.cli.arguments import load_constants, parse_dims
from tilewright.compiler.cli.compile_arguments import Constants, Dims, Json, ModelFile, Target
from tilewright.compiler.cli.model_files import model_file, place_to_write
from tilewright.compiler.cli.output import Output
from tilewright.compiler.cli.values import one_of


def compress_command(
    file: ModelFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path("model.tw"),
    dim: Dims = None,
    bits: Annotated[int, typer.Option(help="Of a weight: 1, 2, 4 or 8.")] = 4,
    group: Annotated[int, typer.Option(help="Values along the sum that share a scale; 0 for one scale a row.")] = 32,
    max_error: Annotated[float, typer.Option(help="A weight stays plain where more of its norm would be lost.")] = 0.2,
    activations: Annotated[
        str,
        typer.Option(help="f32, or int8: rows that the weights meet are rounded to bytes.", autocompletion=one_of("f32", "int8")),
    ] = "f32",
    keep: Annotated[list[str] | None, typer.Option(help="A weight that stays plain, as the report calls it. Repeatable.")] = None,
    constants: Constants = None,
    target: Target = "host",
    json: Json = False,
) -> None:
    """Put the weights of a model's matrix products into few bits, say what each loses, compile the model and save it."""
    from tilewright.compiler.api import compile as compile_model
    from tilewright.compiler.compress.compress import compress

    out, ranges = Output(json), parse_dims(dim).as_ranges()
    place_to_write(output)
    with out.progress(f"compressing {file}"):
        found = compress(model_file(file), ranges, bits=bits, group=group, max_error=max_error, keep=keep or (),
                         constants=load_constants(constants) or None)
    for layer in found.layers:
        out.event("layer", name=layer.name, shape=list(layer.shape), bits=round(layer.bits, 3), error=layer.error,
                  share=layer.share, reason=layer.reason)
    out.table("Weights", ("weight", "shape", "bits", "error", "share", "kept because"),
              [(x.name, "x".join(map(str, x.shape)), f"{x.bits:.2f}", f"{x.error:.2%}", f"{x.share:.1%}", x.reason)
               for x in found.layers])
    with out.progress("compiling"):
        compile_model(found.model, ranges, target=target, options={"activations": activations}).save(output)
    size = output.stat().st_size
    out.event("saved", output=str(output), bytes=size, before=found.before, after=found.after)
    out.text(f"constants: {found.before / 1024:.0f} KiB before, {found.after / 1024:.0f} KiB after\n"
             f"{output}: {size / 1024:.0f} KiB")
