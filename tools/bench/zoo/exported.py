"""Exported models of a set: .pt2 files, or a Python file whose MODELS makes modules; exports are kept in a folder.

A Python file has MODELS: name -> function without arguments, which gives a mapping of `model` (a torch.nn.Module), `dims` (name
-> (lo, hi) or (lo, hi, multiple)), `dyn` (of every input: axis -> name of a dim), `example` (name -> value of the dim to export
at) and `inputs` (a function from such values to the inputs).
"""

from __future__ import annotations

import fnmatch
import logging
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tilewright.compiler.frontends.torch.exported import export_module
from tilewright.runtime.errors import TilewrightError

_LOG = logging.getLogger(__name__)


def programs(source: Path, wanted: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Name and ExportedProgram without in-place operators of each model of a .py or .pt2 file that fits the pattern."""
    import torch

    if source.suffix == ".pt2":
        yield source.stem, torch.export.load(source)
        return
    models = runpy.run_path(str(source))["MODELS"]
    for name, make in models.items():
        if not any(fnmatch.fnmatchcase(name, p) for p in wanted.split(",")):
            continue
        kept = folder / f"{name}.pt2"
        if not kept.exists():
            try:
                torch.export.save(exported(make()), kept)
            except (TilewrightError, RuntimeError, ValueError) as error:
                _LOG.warning("%s is left out: %s", name, str(error).splitlines()[0])
                continue
        yield name, torch.export.load(kept)


def exported(given: Mapping[str, Any]) -> Any:
    """A model of the mapping above as the front end exports it, in functional form, composite operators whole."""
    import torch

    torch.manual_seed(0)
    dims = {name: _dim(name, *bounds) for name, bounds in given["dims"].items()}
    shapes = tuple({axis: dims[name] for axis, name in axes.items()} for axes in given["dyn"])
    return exported_module(given["model"].eval(), tuple(given["inputs"](given["example"])), shapes)


def exported_module(model: Any, example: tuple[Any, ...], dynamic_shapes: Any) -> Any:
    """A module likewise."""
    return export_module(model, example, {}, dynamic_shapes, {}).run_decompositions({})


def _dim(name: str, lo: int, hi: int, multiple: int = 1) -> Any:
    from torch.export import Dim

    root = Dim(name, min=max(lo // multiple, 1), max=hi // multiple)
    return multiple * root if multiple > 1 else root
