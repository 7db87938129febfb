"""import_onnx: an ONNX model as a graph of `tw.ops`, with its dims by name and its weights as constants."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from tilewright.compiler import ops
from tilewright.compiler.frontends.imported import ImportedModel
from tilewright.compiler.frontends.onnx import operators as operators  # fills the table
from tilewright.compiler.frontends.onnx.initializers import array_of
from tilewright.compiler.frontends.onnx.input_dims import InputDims, input_dims
from tilewright.compiler.frontends.onnx.model_file import ModelFile, OnnxModel, read_onnx
from tilewright.compiler.frontends.onnx.node_builder import NodeBuilder
from tilewright.compiler.frontends.onnx.unify import DimsEqual, closed
from tilewright.compiler.frontends.onnx.values import Known, Value
from tilewright.compiler.ops.promotion import Promotion
from tilewright.runtime.errors import DTypeError, IngestError
from tilewright.runtime.shape import Dim, Expr
from tilewright.runtime.tensor import DType
from tilewright.runtime.wording import ranges_to_paste

_LOG = logging.getLogger("tilewright")
DimRange = Dim | tuple[int, int]


@dataclass(frozen=True)
class OnnxGraph:
    """A model as a graph. dims: ranges of all. notes: what was renamed or made equal, as sentences.

    consumed: the given dims and constants that the graph does not name.
    """

    graph: ops.Graph
    dims: Mapping[str, Dim]
    notes: tuple[str, ...]
    consumed: frozenset[str]


def import_onnx(
    model: OnnxModel, dims: Mapping[str, DimRange] | None = None, constants: Mapping[str, Any] | None = None
) -> ImportedModel:
    """An ONNX model as linalg text with its constants and dims; see `onnx_graph`."""
    made = onnx_graph(model, dims, constants)
    for note in made.notes:
        _LOG.info("%s", note)
    return ImportedModel(made.graph.module_text(), made.dims, made.graph.constants, consumed=made.consumed)


def onnx_graph(
    model: OnnxModel, dims: Mapping[str, DimRange] | None = None, constants: Mapping[str, Any] | None = None
) -> OnnxGraph:
    """Read a model and build its graph.

    Args:
        model: a path, the bytes of a file, or a ModelProto.
        dims: name -> range. Names are the model's dim_params; an extent without one is called after its input, `x_0`. A range of
            one value makes the dim static.
        constants: input name -> array, bound now: shapes, axes and the like that the model takes as inputs. Other names are left.
    Raises:
        IngestError: the file is damaged, or the model cannot be compiled; names the node, what was wanted and the remedy.
    """
    file = read_onnx(model)
    held, given = {t.name for t in file.proto.graph.initializer}, constants or {}
    inputs = [v for v in file.proto.graph.input if v.name not in held]
    bound = {v.name: Known.of(np.asarray(given[v.name])) for v in inputs if v.name in given}
    inputs = [v for v in inputs if v.name not in bound]
    _want_tensors(inputs, file)
    found = input_dims(inputs, dims or {})
    ranges, static = _ranges(found, dims or {})
    made = _built(_Reading(file, inputs, bound, found), ranges, static)
    return replace(made, consumed=frozenset(bound) | {n for n in dims or {} if n not in made.dims})


@dataclass(frozen=True)
class _Reading:
    """What stays the same when an import starts again."""

    file: ModelFile
    inputs: Sequence[onnx.ValueInfoProto]
    bound: Mapping[str, Known]
    found: InputDims


def _built(reading: _Reading, ranges: Mapping[str, Dim], static: Mapping[str, Expr]) -> OnnxGraph:
    values, notes = dict(static), list(reading.found.notes)
    while True:
        extents = reading.found.substitute(values)
        try:
            return _attempt(reading, extents, ranges, notes)
        except DimsEqual as equal:
            values = closed(values, equal.name, equal.value)
            if equal.name not in reading.found.unnamed:
                notes.append(f"{equal.reason} needs {equal.name} = {equal.value}, which every call is checked for")


def _attempt(
    reading: _Reading, extents: Mapping[str, tuple[Expr, ...]], ranges: Mapping[str, Dim], notes: Sequence[str]
) -> OnnxGraph:
    file, main = reading.file, reading.file.proto.graph
    used = sorted({s for dims in extents.values() for d in dims for s in d.symbols})
    _want_ranges(used, ranges, reading, extents)
    graph = ops.Graph(promotion=Promotion.STRICT, ranges={n: (ranges[n].lo, ranges[n].hi) for n in used})
    builder = NodeBuilder(graph, file, frozenset(reading.found.unnamed))
    values: dict[str, Value] = dict(reading.bound)
    names: list[str] = []
    for value in reading.inputs:
        names.append(_plain_name(value.name, names))
        values[value.name] = graph.input(names[-1], extents[value.name], _element(value))
    for tensor in main.initializer:
        if tensor.name in values:
            raise IngestError(f"{file.name} gives the value {tensor.name!r} twice: names are given once. Export the model again")
        values[tensor.name] = Known.of(array_of(tensor, file))
    builder.run(main.node, values, dict(file.opsets))
    results: list[str] = []
    for value in main.output:
        if value.name not in values:
            raise IngestError(f"{file.name}: the output {value.name!r} is made by no node. Export the model again")
        results.append(_plain_name(value.name, results))
        graph.output(builder.tensor(values[value.name], value.name), name=results[-1])
    return OnnxGraph(graph, {n: ranges[n] for n in used}, tuple(notes), frozenset())


def _want_tensors(inputs: Sequence[onnx.ValueInfoProto], file: ModelFile) -> None:
    seen: set[str] = set()
    for value in inputs:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise IngestError(
                f"input {value.name!r} is a {(kind or 'value without a type').removesuffix('_type')}; only tensors "
                "are compiled: give every tensor an input of its own"
            )
        if value.name in seen:
            raise IngestError(f"{file.name} has two inputs {value.name!r}. Export the model again")
        seen.add(value.name)


def _element(value: onnx.ValueInfoProto) -> DType:
    number = value.type.tensor_type.elem_type
    try:
        return DType.of(onnx.helper.tensor_dtype_to_np_dtype(number))
    except (KeyError, DTypeError):
        kinds = {v: k for k, v in onnx.TensorProto.DataType.items()}
        raise IngestError(
            f"input {value.name!r} is of element type {kinds.get(number, number)}, which is not compiled; use one of "
            f"{', '.join(d.numpy.name for d in DType)}"
        ) from None


def _plain_name(name: str, taken: Sequence[str]) -> str:
    plain = re.sub(r"[^\w.-]", "_", name) or "input"
    while plain in taken:
        plain += "_"
    return plain


def _ranges(found: InputDims, given: Mapping[str, DimRange]) -> tuple[dict[str, Dim], dict[str, Expr]]:
    """Ranges of dims by their names here; and what dims are replaced by: a number where there is one value, a name given `at`."""
    ranges: dict[str, Dim] = {}
    replaced: dict[str, Expr] = {}
    for text, value in given.items():
        dim = value if isinstance(value, Dim) else Dim(*value)
        name = found.names.get(text) or _at(found, text) or text
        ranges[name] = replace(dim, at=None)
        for place in dim.at or ():
            symbol = _at(found, place)
            if symbol is None:
                raise IngestError(
                    f"dimension {text} is declared at {place!r}, which is no dynamic axis of an input; write the "
                    "input and the axis, such as 'x.0'"
                )
            replaced |= {} if symbol == name else {symbol: Expr.dim(name)}
        if dim.lo == dim.hi:
            replaced[name] = Expr.of(dim.lo)
    dims = [d.substitute(replaced) for extents in found.extents.values() for d in extents]
    known = {s for d in dims for s in d.symbols} | replaced.keys()
    if over := sorted(ranges.keys() - known):
        raise IngestError(f"{', '.join(over)} is no dim of the model; its dims are {', '.join(sorted(known)) or 'all static'}")
    return ranges, {n: e.substitute(replaced) for n, e in replaced.items()}


def _at(found: InputDims, place: str) -> str | None:
    """The dim of a place such as "x.0" or "arg1.0", when there is one by itself."""
    name, _, axis = place.rpartition(".")
    numbered = {f"arg{i}": n for i, n in enumerate(found.extents)}
    extents = found.extents.get(name) or found.extents.get(numbered.get(name, ""), ())
    return extents[int(axis)].symbol if axis.isdecimal() and int(axis) < len(extents) else None


def _want_ranges(
    used: Sequence[str], ranges: Mapping[str, Dim], reading: _Reading, extents: Mapping[str, tuple[Expr, ...]]
) -> None:
    missing = [n for n in used if n not in ranges]
    if not missing:
        return
    lines = []
    for name in used:
        at = [f"axis {a} of {i}" for i, dims in extents.items() for a, d in enumerate(dims) if d == Expr.dim(name)]
        lines.append(f"  {name:12} {', '.join(at[:4]) + (', ...' if len(at) > 4 else '')} range {ranges.get(name, 'not given')}")
    paste = ranges_to_paste((n, ranges[n].lo, ranges[n].hi) if n in ranges else (n, 1, 128) for n in used)
    raise IngestError(f"no range is given for {', '.join(missing)}. The dims of {reading.file.name} are:\n" + "\n".join(lines)
                      + "\npaste and edit: " + paste)
