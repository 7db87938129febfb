"""The model that a command is given: a file in one of the forms that are read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.compiler.cli.arguments import DimArguments
from tilewright.compiler.cli.output import Output
from tilewright.runtime.errors import IngestError

if TYPE_CHECKING:
    from tilewright.runtime.load.function import CompiledFunction

MODEL_HELP = "The model: .mlir, .onnx (extra `onnx`), or .pt2 of torch.export.save (extra `torch`)."
ANY_MODEL_HELP = "A saved model (.tw), or one to compile first: .mlir, .onnx or .pt2."
IMPORTED = (".onnx", ".pt2")
COMPILED = ".tw"
_OTHER = {
    ".pt": "weights or a module of torch, which Python alone can load: export it, torch.export.save(torch.export.export(...), "
           "\"model.pt2\")",
    ".jsonl": "a tuning log: give it with --log",
    ".npz": "arrays: give them with --constants",
    ".safetensors": "weights: give them with --constants, beside the model",
    ".py": "Python code: a script compiles its models with tilewright.compile",
}
_OTHER[".pth"] = _OTHER[".pt"]


def model_file(path: Path) -> Path:
    """The path of a model that can be compiled.

    Raises:
        IngestError: it is compiled already, it is something else, or its text is not UTF-8.
    """
    if path.suffix == COMPILED:
        raise IngestError(f"{path} is compiled already; wanted .mlir, .onnx or .pt2. `tilewright run` and `explain` take it")
    if path.suffix in _OTHER:
        raise IngestError(f"{path}: wanted .mlir, .onnx or .pt2; this is {_OTHER[path.suffix]}")
    if path.suffix not in IMPORTED:
        model_text(path)
    return path


def model_text(path: Path) -> str:
    """The text of a file of MLIR; IngestError where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IngestError(f"{path} is not MLIR: byte {error.start} is no text in UTF-8; wanted .mlir, .onnx or .pt2, which their "
                          "names tell") from error


@dataclass(frozen=True)
class CompileChoice:
    """How a model that is not compiled yet is compiled on the way. constants: arrays by argument name."""

    target: str = "host"
    function: str | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)


def compiled(out: Output, path: Path, dims: DimArguments, choice: CompileChoice) -> CompiledFunction:
    """A saved model as it is; any other model compiled for these dims."""
    if path.suffix == COMPILED:
        from tilewright.runtime.load.function import load

        if dims.ranges or choice.function or choice.target != "host":
            raise typer.BadParameter(f"{path} is compiled: --dim takes NAME=VALUE, and nothing is left to choose")
        return load(path)
    from tilewright.compiler.api import compile as compile_model

    start = time.perf_counter()
    with out.progress(f"compiling {path}"):
        fn = compile_model(model_file(path), dims.as_ranges(), target=choice.target, constants=choice.constants or None,
                           function=choice.function)
    seconds = time.perf_counter() - start
    out.event("compiled", seconds=round(seconds, 3), operators=len(fn.program.tables))
    out.text(f"compiled {path} in {seconds:.1f} s: {len(fn.program.tables)} operators")
    return fn
