"""Whether a node is written as its operator wants: how many inputs, which attributes, of which types."""

from __future__ import annotations

import inspect
from typing import Any

import onnx

from tilewright.compiler.frontends.onnx.context import Context, Operator
from tilewright.compiler.frontends.registry import Lowering

_REMEDY = "The model does not follow ONNX: export it again"
# extents that the weights tell as well, precision of intermediate results, which is f32 or more, and what randomness would need
_WITHOUT_EFFECT = ("hidden_size", "precision", "ratio", "seed", "stash_type")
_Schema = onnx.defs.OpSchema


def _schema_of(context: Context) -> Any:
    """The operator's onnx.defs.OpSchema, None where ONNX has none."""
    node = context.node
    try:
        return onnx.defs.get_schema(node.op_type, context.opset, "" if node.domain == "ai.onnx" else node.domain)
    except onnx.defs.SchemaError:
        return None


def check_signature(context: Context) -> None:
    """IngestError for a node that does not fit its operator's schema; one without a schema passes."""
    node, schema = context.node, _schema_of(context)
    if schema is None:
        return
    count = len(node.input)
    context.require(
        schema.min_input <= count <= schema.max_input,
        f"it has {count} inputs; wanted {schema.min_input} to {schema.max_input}",
        _REMEDY,
    )
    for given, formal in zip(node.input, schema.inputs, strict=False):
        context.require(
            bool(given) or formal.option != _Schema.FormalParameterOption.Single, f"its input {formal.name} is missing", _REMEDY
        )
    context.require(
        schema.min_output <= len(node.output) <= schema.max_output,
        f"it has {len(node.output)} results; wanted {schema.min_output} to {schema.max_output}",
        _REMEDY,
    )
    given_names = {a.name for a in node.attribute}
    for attribute in node.attribute:
        formal_attribute = schema.attributes.get(attribute.name)
        if formal_attribute is not None:
            context.require(
                int(attribute.type) == int(formal_attribute.type.value),
                f"its attribute {attribute.name} is of another type than {formal_attribute.type.name}",
                _REMEDY,
            )
    for name, formal_attribute in schema.attributes.items():
        context.require(name in given_names or not formal_attribute.required, f"its attribute {name} is missing", _REMEDY)


def check_read(context: Context) -> None:
    """IngestError when the operator's function has not asked for an attribute that the node gives and that is not the default."""
    node, schema = context.node, _schema_of(context)
    if schema is None:
        return
    for attribute in node.attribute:
        if attribute.name in context.read or attribute.name in _WITHOUT_EFFECT:
            continue
        formal = schema.attributes.get(attribute.name)
        same = formal is not None and formal.default_value.SerializeToString() == attribute.SerializeToString()
        context.require(same, f"its attribute {attribute.name} is not compiled", "Export the model without it")


def check_call(context: Context, lowering: Lowering, count: int) -> None:
    """IngestError when the operator's function does not take this many inputs."""
    function = lowering.function if isinstance(lowering, Operator) else lowering
    try:
        inspect.signature(function).bind(context, *range(count))
    except TypeError as error:
        raise context.refused(f"it has {count} inputs: {error}", _REMEDY) from None
