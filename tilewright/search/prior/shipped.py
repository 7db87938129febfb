"""The cost models that ship with the package, one a kernel family: a search starts from what they know of other operators.

They are trained by `python -m tools.bench prior` or `tilewright logs train` and corrected by what a search measures on its own.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from tilewright.search.cost_model.model import CostModel

SUFFIX = ".model"


def shipped(family: str) -> CostModel | None:
    """The model of a family; None where none ships."""
    file = files(__package__).joinpath(family + SUFFIX)
    return CostModel.decode(file.read_bytes(), f"the shipped model of {family}") if file.is_file() else None


def prior_in(folder: Path, family: str) -> CostModel | None:
    """The model of a family in a folder that `tilewright logs train` wrote; None where it holds none."""
    file = folder / (family + SUFFIX)
    return CostModel.decode(file.read_bytes(), str(file)) if file.is_file() else None
