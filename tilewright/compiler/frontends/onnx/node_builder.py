"""Building the nodes of a graph in order: known values folded, operators looked up, functions inlined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.context import Context, Operator
from tilewright.compiler.frontends.onnx.fold import folded
from tilewright.compiler.frontends.onnx.functions import body_of, inlined_nodes, local_functions
from tilewright.compiler.frontends.onnx.initializers import array_of
from tilewright.compiler.frontends.onnx.model_file import NEWEST, OLDEST, ModelFile, opsets_of
from tilewright.compiler.frontends.onnx.node_order import in_order
from tilewright.compiler.frontends.onnx.refusals import refuse_known
from tilewright.compiler.frontends.onnx.signatures import check_call, check_read, check_signature
from tilewright.compiler.frontends.onnx.subgraphs import CONTROL, Subgraphs
from tilewright.compiler.frontends.onnx.values import Known, Value, tensor_of
from tilewright.compiler.frontends.registry import Lowering, lowerings
from tilewright.runtime.errors import DTypeError, IngestError, OptionError, ShapeError
from tilewright.runtime.wording import option

_MOST_NODES = 100_000
_MOST_ELEMENTS = 1 << 44
_DEEPEST = 32
_READ_IN_BOTH_FORMS = ("Clip", "Dropout", "ReduceSum", "Split", "Squeeze", "Unsqueeze")


@dataclass
class NodeBuilder:
    """Appends the nodes of a model to a graph."""

    graph: ops.Graph
    file: ModelFile
    unnamed: frozenset[str]
    _tensors: dict[int, ops.Tensor] = field(default_factory=dict)
    _kept: list[Known] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _functions: Mapping[tuple[str, str], onnx.FunctionProto] = field(default_factory=dict)
    _built: int = 0
    _depth: int = 0

    def __post_init__(self) -> None:
        self._functions = local_functions(self.file.proto)

    def run(self, nodes: Sequence[onnx.NodeProto], values: dict[str, Value], opsets: Mapping[str, int]) -> None:
        """Build nodes; their results are added to `values`."""
        for node in in_order(nodes, values):
            inputs = [values[n] if n else None for n in node.input]
            while inputs and inputs[-1] is None:
                inputs.pop()
            results = self._results(node, inputs, values, opsets)
            for name, result in zip(node.output, results, strict=False):
                if name:
                    values[name] = result

    def tensor(self, value: Value, name: str | None = None) -> ops.Tensor:
        """A value as a tensor; a known one becomes a constant once."""
        if isinstance(value, ops.Tensor):
            return value
        if id(value) not in self._tensors:
            self._kept.append(value)  # so that no other value takes its identity
            self._tensors[id(value)] = tensor_of(self.graph, value, self._constant_name(name))
        return self._tensors[id(value)]

    def _constant_name(self, name: str | None) -> str | None:
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name or "")
        plain = f"{plain or 'constant'}.{len(self._kept) - 1}"
        return plain if plain.isascii() else None

    def _results(
        self, node: onnx.NodeProto, inputs: list[Value | None], values: dict[str, Value], opsets: Mapping[str, int]
    ) -> Sequence[Value]:
        self._built += 1
        if self._built > _MOST_NODES:
            raise IngestError(
                f"{self.file.name} has more than {_MOST_NODES} nodes once its functions are inlined. Export a smaller model"
            )
        domain = "" if node.domain == "ai.onnx" else node.domain
        context = self._context(node, domain, opsets)
        local = self._functions.get((domain, node.op_type))
        if local is None:
            check_signature(context)
        if domain == "" and node.op_type in CONTROL:
            return Subgraphs(context, values, partial(self._body, context, values, opsets)).results(inputs)
        found = folded(context, inputs)
        if found is not None:
            return found
        refuse_known(context)
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        lowering = lowerings("onnx").get(name)
        if local is None and lowering is not None:
            made = self._lowered(context, lowering, inputs)
            if made is not None:
                return made
        body = local if local is not None else body_of(context, inputs)
        if body is None:
            raise context.refused(
                "this operator is not known",
                f'Add it with tw.frontends.register("onnx", "{name}"), or export the model without it',
            )
        return self._inlined(context, body, inputs, opsets)

    def _context(self, node: onnx.NodeProto, domain: str, opsets: Mapping[str, int]) -> Context:
        shown = f"{domain}.{node.op_type}" if domain else node.op_type
        label = f"node {node.name!r} ({shown})" if node.name else f"the node {shown} that makes {', '.join(node.output)!r}"
        version = opsets.get(domain, 1 if domain else NEWEST)
        if domain == "" and version < OLDEST:
            _refuse_old(node, version, label)
        return Context(self.graph, node, version, label, self.unnamed, lambda t: array_of(t, self.file), self.tensor)

    def _lowered(self, context: Context, lowering: Lowering, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """Results of the operator's function; None when it leaves the node to the operator's definition."""
        check_call(context, lowering, len(inputs))
        given: list[Any] = []
        for i, value in enumerate(inputs):
            known = isinstance(lowering, Operator) and (
                i in lowering.known or (i in lowering.either and isinstance(value, Known))
            )
            if known and isinstance(value, ops.Tensor):
                raise context.refused(
                    f"its input {i} ({context.node.input[i]!r}) is computed from data, and decides a shape",
                    "Shapes that depend on data are not compiled: make it a constant of the model or, for an input of the model, "
                    "bind it now with " + option("constants"))
            given.append(value if known or value is None else self._argument(context, value, i))
        try:
            results = lowering(context, *given)
        except (ShapeError, DTypeError, OptionError) as error:
            raise context.refused(str(error).rstrip("."), "Correct the model, or rewrite this operator before export") from error
        if results is NotImplemented:
            return None
        if isinstance(lowering, Operator):
            check_read(context)
        made: list[Value] = list(results) if isinstance(results, list | tuple) else [results]
        for result in made:
            self._bounded(context, result)
        return made

    def _bounded(self, context: Context, value: Value) -> None:
        """Refuse a result that no memory holds."""
        largest = math.prod(max(self.graph.bounds(d)[1], 1) for d in value.dims) if isinstance(value, ops.Tensor) else 0
        if largest > _MOST_ELEMENTS:
            raise context.refused(
                f"its result may have {largest:.0e} elements", "Give the dims smaller ranges, or correct the model"
            )

    def _argument(self, context: Context, value: Value, number: int) -> ops.Tensor:
        try:
            return self.tensor(value, context.node.input[number])
        except DTypeError as error:
            raise context.refused(f"its input {context.node.input[number]!r}: {error}", "Cast it before export") from error

    def _inlined(
        self, context: Context, body: onnx.FunctionProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
    ) -> Sequence[Value]:
        with self._deeper(context):
            inner: dict[str, Value] = {n: v for n, v in zip(body.input, inputs, strict=False) if v is not None}
            missing = {n for n in body.input if n not in inner}
            nodes = inlined_nodes(context.node, body, missing)
            self.run(nodes, inner, {**opsets, **opsets_of(list(body.opset_import))})
            return _taken(context, body.output, inner)

    @contextmanager
    def _body(
        self, context: Context, values: Mapping[str, Value], opsets: Mapping[str, int], graph: onnx.GraphProto,
        given: Mapping[str, Value]
    ) -> Iterator[list[Value]]:
        """The results of a subgraph; constants that are made inside are not seen outside, but for those that are arguments."""
        kept = dict(self._tensors)
        with self._deeper(context):
            inner = {**values, **given, **{t.name: Known.of(array_of(t, self.file)) for t in graph.initializer}}
            self.run(graph.node, inner, opsets)
            for result in graph.output:
                if result.name not in inner:
                    raise context.refused(f"its subgraph does not make {result.name!r}", "Export the model again")
            yield [inner[o.name] for o in graph.output]
        self._tensors = kept | {k: t for k, t in self._tensors.items() if t.ssa.startswith("%arg")}

    def _deeper(self, context: Context) -> _Depth:
        if self._depth >= _DEEPEST:
            raise context.refused(
                f"functions and branches are nested more than {_DEEPEST} deep",
                "A function may not call itself: export the model without it",
            )
        return _Depth(self)


@dataclass
class _Depth:
    builder: NodeBuilder

    def __enter__(self) -> None:
        self.builder._depth += 1

    def __exit__(self, *_: object) -> None:
        self.builder._depth -= 1


def _taken(context: Context, names: Iterable[str], values: Mapping[str, Value]) -> list[Value]:
    found = []
    for wanted, name in zip(context.node.output, names, strict=False):
        if wanted and name not in values:
            raise context.refused(f"its function does not make {name!r}", "Export the model again")
        found.append(values.get(name, Known.of(np.zeros(0, np.float32))))
    return found


def _refuse_old(node: onnx.NodeProto, version: int, label: str) -> None:
    """Operators of an old opset are taken where inputs, attributes and defaults have only been added since, or are read here."""
    try:
        then, now = (onnx.defs.get_schema(node.op_type, v) for v in (version, OLDEST))
    except onnx.defs.SchemaError:
        return
    inputs, attributes = [i.name for i in now.inputs], _defaults(now)
    kept = [i.name for i in then.inputs] == inputs[: len(then.inputs)] and _defaults(then).items() <= attributes.items()
    if not kept and node.op_type not in _READ_IN_BOTH_FORMS:
        raise IngestError(
            f"{label}: the model is of opset {version}, where this operator was another; wanted {OLDEST} to {NEWEST}. "
            f"Convert the model with onnx.version_converter.convert_version(model, {OLDEST})"
        )


def _defaults(schema: onnx.defs.OpSchema) -> dict[str, bytes]:
    return {n: a.default_value.SerializeToString() for n, a in schema.attributes.items()}
