"""`tilewright run`: run a model on given or random inputs and compare it with the reference."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from tilewright.compiler.cli.arguments import DIM_HELP, INPUT_HELP, load_inputs, parse_dims
from tilewright.compiler.cli.batches import batch_of, batches_of, without_gaps
from tilewright.compiler.cli.compile_arguments import Constants, Function, Json, Seed, Target
from tilewright.compiler.cli.model_files import ANY_MODEL_HELP, CompileChoice, bound_arrays, compiled
from tilewright.compiler.cli.output import Output, dims_text
from tilewright.compiler.cli.sampling import check_dims, dims_of, shapes_of
from tilewright.compiler.verification.random_inputs import batch_inputs, random_inputs
from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.ragged_point import lengths_of
from tilewright.runtime.tensor import DType

if TYPE_CHECKING:
    from tilewright.compiler.reference import Comparison
    from tilewright.runtime.load.function import CompiledFunction
    from tilewright.runtime.program.program import Program

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tolerance:
    """Largest ||y - ref||2 / ||ref||2 and max|y - ref| / max|ref| that count as correct."""

    norm: float
    peak: float


def tolerance_of(dtypes: Sequence[DType]) -> Tolerance:
    """What rounding to the coarsest of the element types allows: a few ulp of 16-bit types, 2e-5 of f32."""
    bounds = {DType.F8E5M2: (2e-1, 5e-1), DType.F8E4M3: (1e-1, 2.5e-1), DType.BF16: (1e-2, 4e-2),
              DType.F16: (2e-3, 8e-3), DType.F32: (2e-5, 1e-4), DType.F64: (1e-12, 1e-11)}
    for dtype, (norm, peak) in bounds.items():
        if dtype in dtypes:
            return Tolerance(norm, peak)
    return Tolerance(0.0, 0.0)


_ROUNDING = {"f32": DType.F32, "tf32": DType.F16, "f16": DType.F16, "bf16": DType.BF16, "int8": DType.BF16}


def run_command(
    file: Annotated[Path, typer.Argument(help=ANY_MODEL_HELP, exists=True, dir_okay=False)],
    dim: Annotated[
        list[str] | None, typer.Option(help=f"{DIM_HELP} T=64 picks the value to run at, S=5,90 the lengths of a batch.")
    ] = None,
    inputs: Annotated[list[str] | None, typer.Option("--input", help=INPUT_HELP)] = None,
    constants: Constants = None,
    target: Target = "host",
    function: Function = None,
    seed: Seed = 0,
    shapes: Annotated[
        int, typer.Option(min=0, help="Run at this many shapes of the range: its ends, primes, random ones.")
    ] = 0,
    check: Annotated[bool, typer.Option("--check", help="Compare with a float64 evaluation of the model.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the results: a .npz file.")] = None,
    json: Json = False,
) -> None:
    """Run a model; with --check, exit with 1 if a result is wrong."""
    out = Output(json)
    if shapes and output:
        raise typer.BadParameter("results are written for one shape: leave out --shapes", param_hint="--output")
    arguments = parse_dims(dim)
    model = compiled(out, file, arguments, CompileChoice(target, function, bound_arrays(constants, file, arguments)))
    fn, fixed = model.fn, model.constants() if check else {}
    given = load_inputs(inputs)
    program: Program = fn.program
    chosen: list[dict[str, Any]]
    if shapes:
        _refuse_values([*arguments.values, *arguments.batches])
        chosen = [*(batches_of(program, shapes, seed) if program.ragged else shapes_of(program.ranges(), shapes, seed))]
    elif program.ragged:
        chosen = [dict(lengths_of(program, batch_of(program, arguments))[1])]
    else:
        chosen = [check_dims(program, {**dims_of(program, given), **arguments.values})]
    rows, wrong = [], 0
    for number, dims in enumerate(chosen):
        drawn = seed + number, given
        arrays = batch_inputs(program, dims, *drawn) if program.ragged else random_inputs(program, dims, *drawn)
        results, seconds = _call(fn, arrays)
        errors: Sequence[Comparison | None] = _compare(program, fixed, arrays, results, dims) if check else [None] * len(results)
        row, bad = _report(out, program, dims, seconds, list(zip(results, errors, strict=True)))
        rows += row
        wrong += bad
    if output:
        arrays_by_name: dict[str, Any] = {f"out{i}": r for i, r in enumerate(results)}
        np.savez(output, **arrays_by_name)
        out.event("written", output=str(output))
    columns = ("dims", "result", "shape", "ms", *(("norm error", "max error", "verdict") if check else ()))
    out.table(str(file), columns, rows)
    if check:
        out.event("checked", shapes=len(chosen), wrong=wrong)
        out.text(f"{len(chosen)} shape{'s' * (len(chosen) != 1)} checked, {wrong} wrong")
    if wrong:
        raise typer.Exit(1)


def _refuse_values(values: Sequence[str]) -> None:
    if values:
        raise typer.BadParameter(f"--shapes picks the values of {', '.join(values)}", param_hint="--dim")


def _call(fn: CompiledFunction, arrays: Sequence[Array]) -> tuple[list[Array], float]:
    """The results as a list, and the seconds that the call took; what is nested is nested before and flat after it."""
    inputs, outputs = fn.program.input_structure, fn.program.output_structure
    arguments = list(inputs.unflatten(arrays).values()) if inputs else arrays
    start = time.perf_counter()
    results = fn(*arguments)
    seconds = time.perf_counter() - start
    if outputs:
        return outputs.flatten(results, "result"), seconds
    return list(results) if isinstance(results, tuple) else [results], seconds


def _report(
    out: Output, program: Program, dims: Mapping[str, Any], seconds: float, results: Sequence[tuple[Array, Comparison | None]]
) -> tuple[list[tuple[object, ...]], int]:
    """A table row per result, and whether one of them is wrong. results: each with its comparison, if it was compared."""
    rows: list[tuple[object, ...]] = []
    wrong = 0
    for i, (result, error) in enumerate(results):
        row = (dims_text(dims), f"out{i}", "x".join(map(str, result.shape)) or "scalar", seconds * 1e3)
        facts: dict[str, Any] = {"dims": dict(dims), "result": i, "shape": list(result.shape), "seconds": seconds,
                                 "norm_error": None, "max_error": None, "nonfinite_match": None, "ok": None}
        if error is None:
            rows.append(row)
        else:
            dtypes = [a.dtype for a in (*program.inputs, *program.outputs) if a.dims is not None]
            bound = tolerance_of([*dtypes, *([_ROUNDING[program.precision]] if DType.F32 in dtypes else [])])
            good = error.ok(bound.norm, bound.peak)
            wrong |= not good
            rows.append((*row, f"{error.norm_error:.2e}", f"{error.max_error:.2e}", "ok" if good else "WRONG"))
            facts |= {"norm_error": error.norm_error, "max_error": error.max_error, "ok": good,
                      "nonfinite_match": error.nonfinite_match}
        out.event("run", **facts)
    return rows, wrong


def _compare(
    program: Program, constants: Mapping[str, Array], arrays: Sequence[Array], results: Sequence[Array], dims: Mapping[str, Any]
) -> Sequence[Comparison]:
    """dims: at which it was called; of a ragged program the lengths of the batch."""
    from tilewright.compiler.reference import compare, evaluate, evaluate_ragged

    if not program.ragged:
        reference = evaluate(program.source, source_inputs(program, constants, arrays))
        return [compare(got, want) for got, want in zip(results, reference, strict=True)]
    own = [without_gaps(x, a, program, dims) for x, a in zip(arrays, program.inputs, strict=True)]
    found = evaluate_ragged(program.source, program.ragged[0].over, source_inputs(program, constants, own), dims)
    compact = [without_gaps(x, a, program, dims).reshape(-1) for x, a in zip(results, program.outputs, strict=True)]
    return [compare(got, want) for got, want in zip(compact, found, strict=True)]


def source_inputs(program: Program, constants: Mapping[str, Array], arrays: Sequence[Array]) -> list[Array]:
    """The arguments of the source in order: inputs of the call and constants bound at compile time, by names or positions."""
    from tilewright.compiler.frontends.source import source_arguments

    names = source_arguments(program.source)
    positions = {f"arg{i}": name for i, name in enumerate(names)}
    by_name = {name if name in names else positions.get(name, name): value for name, value in constants.items()}
    by_name |= {a.name: v for a, v in zip(program.inputs, arrays, strict=True)}
    missing = [c.name for c in program.constants if c.name not in by_name]
    if missing:
        raise OptionError(f"--check needs the constants {', '.join(missing)} that the model was compiled with: "
                          "give --constants, the .npz, .safetensors, .onnx or .pt2 file that they are from")
    return [by_name[name] for name in names]
