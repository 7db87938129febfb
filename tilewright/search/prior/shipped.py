"""The cost models that ship with the package, one a kernel family: a search starts from what they know of other operators.

They are trained by `python -m tools.bench prior` or `tilewright logs train` and corrected by what a search measures on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from tilewright.passes.spaces.family_registry import family_of
from tilewright.search.cost_model.model import CostModel, FamilyModels

SUFFIX = ".model"


def shipped(family: str) -> CostModel | None:
    """The model of a family; None where none ships."""
    file = files(__package__).joinpath(family + SUFFIX)
    return CostModel.decode(file.read_bytes(), f"the shipped model of {family}") if file.is_file() else None


def prior_in(folder: Path, family: str) -> CostModel | None:
    """The model of a family in a folder that `tilewright logs train` wrote; None where it holds none."""
    file = folder / (family + SUFFIX)
    return CostModel.decode(file.read_bytes(), str(file)) if file.is_file() else None


def start_of(families: Sequence[str], folder: Path | None) -> CostModel | None:
    """What a search among kernels of these families starts from: a model of the folder or, where it holds none, of the package;
    None where there is none for the first.

    On GPUs each family's kernels are predicted by its own model. Those of a host are of logs of several machines, and what they
    say is not compared across families: all are predicted by the first's.
    """
    found = {family: model for family in families
             if (model := (prior_in(folder, family) if folder else None) or shipped(family)) is not None}
    first = found.get(families[0])
    return FamilyModels(found) if first is not None and len(found) > 1 and family_of(families[0]).gpu else first
