"""What command-line text means: dims, constants, inputs, targets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import typer

from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Dim

Array = npt.NDArray[Any]
_DIM = re.compile(r"(?:(?P<name>[^@=]+)@)?(?P<place>[^@=]+)=(?P<lo>\d+)(?::(?P<hi>\d+)(?::(?P<multiple>\d+))?)?")
DIM_HELP = "Range of a dim: T=1:128, T@arg0.1=1:128, arg0.1=1:128, with :multiple at the end if need be. Repeatable."


@dataclass(frozen=True)
class DimArguments:
    """`ranges`: T=1:128; `values`: T=64."""

    ranges: dict[str, Dim]
    values: dict[str, int]

    def as_ranges(self) -> dict[str, Dim]:
        """The ranges; a dim given only as a value is that one value."""
        return {**{n: Dim(v, v) for n, v in self.values.items()}, **self.ranges}


def parse_dims(texts: Iterable[str] | None) -> DimArguments:
    """Read --dim options: `[NAME@]PLACE[,PLACE]=LO:HI[:MULTIPLE]`, `NAME=LO:HI[:MULTIPLE]` or `NAME=VALUE`."""
    ranges: dict[str, Dim] = {}
    values: dict[str, int] = {}
    for text in texts or ():
        m = _DIM.fullmatch(text.strip())
        if m is None:
            raise typer.BadParameter(f"{text!r}: wanted NAME=LO:HI, NAME@argN.AXIS=LO:HI or argN.AXIS=LO:HI, with "
                                     ":MULTIPLE at the end if need be, or NAME=VALUE", param_hint="--dim")
        name, at = (m["name"], tuple(m["place"].split(","))) if m["name"] else (m["place"], None)
        known: Mapping[str, object] = values if m["hi"] is None else ranges
        if name in known:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--dim")
        if m["hi"] is None:
            if at:
                raise typer.BadParameter(f"{text!r}: a place needs a range, LO:HI", param_hint="--dim")
            values[name] = int(m["lo"])
        else:
            try:
                ranges[name] = Dim(int(m["lo"]), int(m["hi"]), int(m["multiple"] or 1), at=at)
            except OptionError as error:
                raise typer.BadParameter(f"{text!r}: {error}", param_hint="--dim") from error
    return DimArguments(ranges, values)


def load_constants(path: Path | None) -> dict[str, Array]:
    """Arrays by argument name from a .npz or .safetensors file."""
    if path is None:
        return {}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        arrays: dict[str, Array] = load_file(path)
        return arrays
    raise typer.BadParameter(f"{path}: wanted a .npz or .safetensors file", param_hint="--constants")


def load_inputs(texts: Iterable[str] | None) -> dict[str, Array]:
    """Arrays by argument name from `--input arg0=x.npy` options; a number stands for a scalar: `arg3=0.5`."""
    found: dict[str, Array] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r}: wanted argN=FILE.npy or argN=NUMBER", param_hint="--input")
        found[name] = np.load(value, allow_pickle=False) if value.endswith(".npy") else _number(text, value)
    return found


def _number(text: str, value: str) -> Array:
    for kind in (int, float):
        try:
            return np.asarray(kind(value))
        except ValueError:
            continue
    raise typer.BadParameter(f"{text!r}: wanted a .npy file or a number", param_hint="--input")
