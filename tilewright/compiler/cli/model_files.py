"""The model that a command is given: a file in one of the forms that are read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.compiler.cli.arguments import DimArguments, load_constants
from tilewright.compiler.cli.output import Output
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    from tilewright.compiler.frontends.imported import ImportedModel
    from tilewright.runtime.load.function import CompiledFunction
    from tilewright.runtime.shape import Dim

MODEL_HELP = "The model: .mlir, .onnx (extra `onnx`), or .pt2 of torch.export.save (extra `torch`)."
ANY_MODEL_HELP = "A saved model (.tw), or one to compile first: .mlir, .onnx or .pt2."
IMPORTED = (".onnx", ".pt2")
COMPILED = ".tw"


def model_file(path: Path) -> Path:
    """The path of a model that can be compiled, as far as its beginning tells.

    Raises:
        IngestError: it is compiled already, or something else.
    """
    if path.suffix not in IMPORTED:
        from tilewright.compiler.frontends.unreadable import check_content

        check_content(path)
    return path


def place_to_write(path: Path) -> Path:
    """The path of a file to be written, before anything is worked out for it.

    Raises:
        OptionError: its folder is missing, or it is itself a folder.
    """
    if path.is_dir():
        raise OptionError(f"--output {path} is a folder; wanted a file")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"--output {path}: there is no folder {path.parent}; create it first")
    return path


def imported(path: Path, dims: Mapping[str, Dim]) -> ImportedModel | Path:
    """What its front end makes of a model that has one; else the path of one that can be compiled, as `model_file` gives it."""
    if path.suffix not in IMPORTED:
        return model_file(path)
    from tilewright.compiler.frontends.import_model import import_model
    from tilewright.compiler.frontends.imported import ExampleInputs

    return import_model(path, dims, ExampleInputs())


def model_text(path: Path, dims: Mapping[str, Dim]) -> str:
    """The MLIR of a model; IngestError where it is none."""
    from tilewright.compiler.frontends.unreadable import file_text

    model = imported(path, dims)
    return file_text(model) if isinstance(model, Path) else model.text


def bound_arrays(path: Path | None, file: Path, dims: DimArguments) -> dict[str, Any]:
    """Arrays by argument name: of a .npz or .safetensors file, or the weights of a model.

    file: the model they are for, which tells its dims when it is compiled. dims: else.
    """
    if path is None or path.suffix not in IMPORTED:
        return load_constants(path)
    ranges = dims.as_ranges()
    if file.suffix == COMPILED:
        from tilewright.runtime.load.function import load

        ranges = dict(load(file).program.ranges().dims)
    model = imported(path, ranges)
    return {} if isinstance(model, Path) else dict(model.constants)


@dataclass(frozen=True)
class CompileChoice:
    """How a model that is not compiled yet is compiled on the way. constants: arrays by argument name."""

    target: str = "host"
    function: str | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedModel:
    """A model that can be called, and where the values of its constants are from, as far as they are known here.

    given: arrays by argument name. source: the file of a model with weights of its own, and the ranges it is imported with.
    """

    fn: CompiledFunction
    given: Mapping[str, Any]
    source: Path | None = None
    ranges: Mapping[str, Dim] = field(default_factory=dict)

    def constants(self) -> dict[str, Any]:
        """The values, by argument name."""
        model = None if self.source is None else imported(self.source, self.ranges)
        return {**(model.constants if model is not None and not isinstance(model, Path) else {}), **self.given}


def compiled(out: Output, path: Path, dims: DimArguments, choice: CompileChoice) -> LoadedModel:
    """A saved model as it is; any other model compiled for these dims."""
    if path.suffix == COMPILED:
        from tilewright.runtime.load.function import load

        if dims.ranges or choice.function or choice.target != "host":
            raise typer.BadParameter(f"{path} is compiled: --dim takes NAME=VALUE, and nothing is left to choose")
        return LoadedModel(load(path), choice.constants)
    from tilewright.compiler.api import compile as compile_model

    start = time.perf_counter()
    ranges = dims.as_ranges()
    with out.progress(f"compiling {path}"):
        fn = compile_model(model_file(path), ranges, target=choice.target, options={"isolate": True},
                           constants=choice.constants or None, function=choice.function)
    seconds = time.perf_counter() - start
    out.event("compiled", seconds=round(seconds, 3), operators=len(fn.program.tables))
    out.text(f"compiled {path} in {seconds:.1f} s: {len(fn.program.tables)} operators")
    return LoadedModel(fn, choice.constants, path, ranges)
