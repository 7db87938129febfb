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
from tilewright.compiler.compress.scopes import ASSIGNS, SCOPES


def compress_command(
    file: ModelFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact to write.")] = Path("model.tw"),
    dim: Dims = None,
    bits: Annotated[int, typer.Option(help="Of a weight: 1 to 8.")] = 4,
    group: Annotated[int, typer.Option(help="Values along the sum that share a scale; 0 for one scale a row.")] = 32,
    pool: Annotated[
        int | None, typer.Option(help="Weights become indices of so many vectors of 8 values, 2 to 256, in place of codes.")
    ] = None,
    pool_scope: Annotated[
        str, typer.Option(help="One pool for the network, or one a layer.", autocompletion=one_of(*SCOPES))
    ] = SCOPES[0],
    assign: Annotated[
        str, typer.Option(help="Vectors are compared by distance, by cosine with a scale an output, or by distance weighted by "
                               "the activations of --samples.", autocompletion=one_of(*ASSIGNS))
    ] = ASSIGNS[0],
    activation_bits: Annotated[
        str | None, typer.Option(help="With --pool: activations are rounded to 1 to 8 bits, or to as many as a dim of this name.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the k-means that makes pools.")] = 0,
    max_error: Annotated[
        float | None,
        typer.Option(help="A weight stays plain where more of its norm would be lost; default 0.2, of pools 0.8."),
    ] = None,
    activations: Annotated[
        str,
        typer.Option(help="f32, or int8: rows that the weights meet are rounded to bytes.", autocompletion=one_of("f32", "int8")),
    ] = "f32",
    keep: Annotated[list[str] | None, typer.Option(help="A weight that stays plain, as the report calls it. Repeatable.")] = None,
    samples: Annotated[
        Path | None, typer.Option(help=".npz of the arguments of a call, by name; errors are weighted by the activations there.")
    ] = None,
    constants: Constants = None,
    target: Target = "host",
    json: Json = False,
) -> None:
    """Put the weights of a model's products into few bits or a pool of vectors, say what each loses, compile and save the
    model."""
    from tilewright.compiler.api import compile as compile_model
    from tilewright.compiler.compress.compress import compress

    out, ranges = Output(json), parse_dims(dim).as_ranges()
    place_to_write(output)
    given = () if samples is None else (load_constants(samples, "--samples"),)
    with out.progress(f"compressing {file}"):
        found = compress(model_file(file), ranges, bits=bits, group=group, pool=pool, pool_scope=pool_scope, assign=assign,
                         seed=seed, activation_bits=_bits(activation_bits),
                         max_error=max_error, keep=keep or (), samples=given, constants=load_constants(constants) or None)
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


def _bits(text: str | None) -> int | str | None:
    """A number, or the name of a dim."""
    return int(text) if text is not None and text.isdecimal() else text
