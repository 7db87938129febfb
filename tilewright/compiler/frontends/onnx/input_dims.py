"""The dims of a model's inputs: dim_param as names and expressions, names for extents that have none."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from tilewright.runtime.errors import IngestError, OptionError
from tilewright.runtime.shape import Expr

_RESERVED = ("threads", "min", "max", "mod", "floordiv", "ceildiv")


@dataclass
class InputDims:
    """Extents of every input over the names of dims.

    names: dim_param as the model writes it -> the name it has here. unnamed: names made for extents without one.
    notes: what was renamed, as sentences. taken: all names.
    """

    extents: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set, repr=False)

    def substitute(self, values: Mapping[str, Expr]) -> dict[str, tuple[Expr, ...]]:
        """The extents with some dims replaced by what they were found to equal."""
        return {name: tuple(d.substitute(values) for d in dims) for name, dims in self.extents.items()}


def input_dims(inputs: Sequence[onnx.ValueInfoProto], wanted: Iterable[str] = ()) -> InputDims:
    """Names and extents.

    Args:
        wanted: names that a range is given for. One of which an axis has a multiple, as in "2*h", is a dim then.
    Raises:
        IngestError: an input without a shape, or with a negative extent.
    """
    texts = _texts(inputs)
    alone = {t for t in texts if _is_name(t)}
    alone |= {n for n in wanted if _is_name(n) and any(_is_form_of(t, n) for t in texts)}
    found = InputDims(taken=set(alone))
    for text in texts:
        if _expression(text, alone) is None:
            found.names[text] = _name(text, found)
    for value in inputs:
        shape = value.type.tensor_type.shape
        found.extents[value.name] = tuple(_extent(value.name, a, d, found) for a, d in enumerate(shape.dim))
    return found


def _texts(inputs: Sequence[onnx.ValueInfoProto]) -> list[str]:
    found = []
    for value in inputs:
        if not value.type.tensor_type.HasField("shape"):
            raise IngestError(f"input {value.name!r} has no shape: export the model with ranked inputs")
        found += [d.dim_param.strip() for d in value.type.tensor_type.shape.dim if d.dim_param.strip()]
    return list(dict.fromkeys(found))


def _is_name(text: str) -> bool:
    return (
        text.isidentifier() and not keyword.iskeyword(text) and text not in _RESERVED and not re.fullmatch(r"arg\d+(_\d+)?", text)
    )


def _expression(text: str, alone: set[str]) -> Expr | None:
    """The text as an expression of dims that some axis has by itself, else None."""
    try:
        expr = Expr.parse(text)
    except (OptionError, ValueError, RecursionError):
        return None
    return expr if expr.symbols and expr.symbols <= alone else None


def _is_form_of(text: str, name: str) -> bool:
    """Is it a linear form of this dim alone?"""
    form = _expression(text, {name})
    return form is not None and form.linear is not None


def _name(text: str, found: InputDims) -> str:
    """An identifier for a dim_param that is none."""
    plain = re.sub(r"\W+", "_", text).strip("_") or "dim"
    name = plain if _is_name(plain) else f"dim_{plain}"
    while name in found.taken:
        name += "_"
    found.taken.add(name)
    found.notes.append(f"the dim {text!r} is called {name} here")
    return name


def _extent(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, found: InputDims) -> Expr:
    text = dim.dim_param.strip()
    if text in found.names:
        return Expr.dim(found.names[text])
    if text:
        return Expr.parse(text)
    if not dim.HasField("dim_value") or dim.dim_value == -1:
        made = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{axis}"
        made = made if _is_name(made) else f"dim_{made}"
        while made in found.taken:
            made += "_"
        found.taken.add(made)
        found.unnamed.add(made)
        return Expr.dim(made)
    if dim.dim_value < 0:
        raise IngestError(f"axis {axis} of input {name!r} has the extent {dim.dim_value}: wanted 0 or more, or a dim_param")
    return Expr.of(dim.dim_value)
