"""What command-line text means: dims, constants, inputs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import typer

from tilewright.compiler.verification.random_inputs import Array, Given, RandomValues
from tilewright.runtime.errors import OptionError
from tilewright.runtime.ragged_dim import Ragged
from tilewright.runtime.shape import Dim

_DIM = re.compile(r"(?:(?P<name>[^@=]+)@)?(?P<place>[^@=]+)=(?P<ragged>ragged:)?(?P<lo>\d+)"
                  r"(?::(?P<hi>\d+)(?::(?P<multiple>\d+))?)?(?::(?P<over>[A-Za-z_][\w.]*))?(?::align=(?P<align>\d+))?")
_BY_NUMBER = re.compile(r"(?:(?P<name>[^@=]+)@)?(?P<place>[^@=]+)=ragged:of=(?P<of>[^:=]+):(?P<over>[A-Za-z_][\w.]*)"
                        r"(?::align=(?P<align>\d+))?")
_BATCH = re.compile(r"(?P<name>[^@=,]+)=(?P<lengths>\d+(?:,\d+)+)")
DIM_HELP = ("Range of a dim: T=1:128, by the name that the model or its exporter gave it; x.1=1:128 by its place; T@x.1=1:128 "
            "for both; with :multiple at the end if need be; S=ragged:1:512:B where each of B sequences has a length of its own, "
            "S=ragged:1:512:B:align=8 where each begins at a multiple of 8 rows, S=ragged:of=i+1:i where lengths follow from the "
            "number i. Repeatable.")
INPUT_HELP = "x=x.npy, n=0.5, or ids=random:0:30000 for values in a range; the other inputs are random. Repeatable."


@dataclass(frozen=True)
class DimArguments:
    """`ranges`: T=1:128; `values`: T=64; `batches`: S=5,90, the length of each sequence."""

    ranges: dict[str, Dim]
    values: dict[str, int]
    batches: dict[str, list[int]] = field(default_factory=dict)

    def as_ranges(self) -> dict[str, Dim]:
        """The ranges; a dim given only as a value is that one value."""
        return {**{n: Dim(v, v) for n, v in self.values.items()}, **self.ranges}


def parse_dims(texts: Iterable[str] | None) -> DimArguments:
    """Read --dim options: `[NAME@]PLACE[,PLACE]=LO:HI[:MULTIPLE]`, `NAME=LO:HI[:MULTIPLE]`, either with
    `ragged:LO:HI[:MULTIPLE]:OUTER[:align=ROWS]` or `ragged:of=EXPRESSION:OUTER[:align=ROWS]` as the range, `NAME=VALUE`, or
    `NAME=LENGTH,LENGTH` for the sequences of a batch."""
    ranges: dict[str, Dim] = {}
    values: dict[str, int] = {}
    batches: dict[str, list[int]] = {}
    for text in texts or ():
        if (batch := _BATCH.fullmatch(text.strip())) is not None:
            if batch["name"] in (batches | values):
                raise typer.BadParameter(f"{batch['name']!r} is given twice", param_hint="--dim")
            batches[batch["name"]] = [int(n) for n in batch["lengths"].split(",")]
            continue
        m = _DIM.fullmatch(text.strip()) or _BY_NUMBER.fullmatch(text.strip())
        given = m.groupdict() if m is not None else {}
        is_ragged = bool(given.get("ragged") or given.get("of"))
        if m is None or is_ragged != bool(m["over"]) or (given.get("ragged") and not m["hi"]) or (m["align"] and not is_ragged):
            raise typer.BadParameter(f"{text!r}: wanted NAME=LO:HI, NAME@ARGUMENT.AXIS=LO:HI or ARGUMENT.AXIS=LO:HI, with "
                                     ":MULTIPLE at the end if need be, NAME=ragged:LO:HI:OUTER or NAME=ragged:of=LENGTH:OUTER "
                                     "with :align=ROWS at the end if need be, or NAME=VALUE", param_hint="--dim")
        name, at = (m["name"], tuple(m["place"].split(","))) if m["name"] else (m["place"], None)
        is_value = not is_ragged and m["hi"] is None
        known: Mapping[str, object] = values if is_value else ranges
        if name in known:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--dim")
        if is_value:
            if at:
                raise typer.BadParameter(f"{text!r}: a place needs a range, LO:HI", param_hint="--dim")
            values[name] = int(m["lo"])
        elif "of" in given:
            ranges[name] = _by_number(text, given, at)
        else:
            dim = _range(text, int(m["lo"]), int(m["hi"]), int(m["multiple"] or 1), at)
            ranges[name] = _ragged(text, dim, given) if is_ragged else dim
    return DimArguments(ranges, values, batches)


def _ragged(text: str, dim: Dim, given: Mapping[str, str | None]) -> Ragged:
    try:
        return Ragged(dim, over=given["over"] or "", align=int(given["align"] or 1))
    except OptionError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--dim") from error


def _by_number(text: str, given: Mapping[str, str | None], at: tuple[str, ...] | None) -> Ragged:
    try:
        return Ragged(over=given["over"] or "", of=given["of"] or "", at=at, align=int(given["align"] or 1))
    except (OptionError, ValueError) as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--dim") from error


def _range(text: str, lo: int, hi: int, multiple: int, at: tuple[str, ...] | None) -> Dim:
    if lo > hi:
        raise typer.BadParameter(f"{text!r}: the range is empty; wanted LO <= HI", param_hint="--dim")
    if multiple < 1 or hi // multiple * multiple < lo:
        raise typer.BadParameter(f"{text!r}: no value from {lo} to {hi} is a multiple of {multiple}", param_hint="--dim")
    return Dim(lo, hi, multiple, at=at)


def load_constants(path: Path | None, option: str = "--constants") -> dict[str, Array]:
    """Arrays by argument name from a .npz or .safetensors file. option: that names it."""
    if path is None:
        return {}
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise typer.BadParameter(f"{path} is damaged, no .npz file, or holds more than numbers",
                                     param_hint=option) from error
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            arrays: dict[str, Array] = load_file(path)
        except SafetensorError as error:
            raise typer.BadParameter(f"{path} is damaged or no .safetensors file: {error}", param_hint=option) from error
        return arrays
    raise typer.BadParameter(f"{path}: wanted a .npz or .safetensors file", param_hint=option)


def load_inputs(texts: Iterable[str] | None) -> dict[str, Given]:
    """What --input options give, by argument name: `x=x.npy`, a number for a scalar, `n=0.5`, or `ids=random:0:30000`."""
    found: dict[str, Given] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r}: wanted NAME=FILE.npy, NAME=NUMBER or NAME=random:LO:HI", param_hint="--input")
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--input")
        if value.startswith("random:"):
            found[name] = _random(text, value)
        else:
            found[name] = _array(text, Path(value)) if value.endswith(".npy") else _number(text, value)
    return found


def _array(text: str, path: Path) -> Array:
    if not path.is_file():
        raise typer.BadParameter(f"{text!r}: there is no file {str(path)!r}", param_hint="--input")
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise typer.BadParameter(f"{text!r}: {path} is damaged, no .npy file, or holds more than numbers",
                                 param_hint="--input") from error


def _random(text: str, value: str) -> RandomValues:
    try:
        lo, hi = map(float, value.split(":")[1:])
    except ValueError:
        raise typer.BadParameter(f"{text!r}: wanted NAME=random:LO:HI, as in ids=random:0:30000", param_hint="--input") from None
    if not -np.inf < lo <= hi < np.inf:
        raise typer.BadParameter(f"{text!r}: the range is empty; wanted LO <= HI", param_hint="--input")
    return RandomValues(lo, hi)


def _number(text: str, value: str) -> Array:
    for kind in (int, float):
        try:
            return np.asarray(kind(value))
        except ValueError:
            continue
    raise typer.BadParameter(f"{text!r}: wanted a .npy file, a number or random:LO:HI", param_hint="--input")
