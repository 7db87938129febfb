"""Functions: those that the model brings and those that ONNX defines its operators by, as nodes of the graph that calls them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from tilewright.compiler.frontends.onnx.context import Context
from tilewright.compiler.frontends.onnx.values import Value, dims_of, dtype_of
from tilewright.runtime.errors import DTypeError


def local_functions(model: onnx.ModelProto) -> dict[tuple[str, str], onnx.FunctionProto]:
    """The model's own functions by domain and name."""
    return {("" if f.domain == "ai.onnx" else f.domain, f.name): f for f in model.functions}


def body_of(context: Context, inputs: Sequence[Value | None]) -> onnx.FunctionProto | None:
    """What ONNX defines this operator by, at the node's opset and types; None when it is primitive or unknown."""
    node = context.node
    try:
        schema = onnx.defs.get_schema(node.op_type, context.opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        body: onnx.FunctionProto = schema.function_body
        return body
    if not schema.has_context_dependent_function:
        return None
    known = schema.context_dependent_function_opset_versions
    version = max([v for v in known if v <= schema.since_version] or known)
    made = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), [_type(v) for v in inputs])
    return onnx.FunctionProto.FromString(made) if made else None


def _type(value: Value | None) -> bytes:
    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    try:
        number = helper.np_dtype_to_tensor_dtype(dtype_of(value).numpy)
    except DTypeError:
        number = onnx.TensorProto.UNDEFINED
    shape = [d.constant if d.constant is not None else str(d) for d in dims_of(value)]
    return bytes(helper.make_tensor_type_proto(number, shape).SerializeToString())


def inlined_nodes(call: onnx.NodeProto, body: onnx.FunctionProto, missing: set[str]) -> list[onnx.NodeProto]:
    """The nodes of a function's body with the call's attributes in place and inputs that are missing left out."""
    given = _defaults(call, body) | {a.name: a for a in body.attribute_proto} | {a.name: a for a in call.attribute}
    label = call.name or call.output[0]
    return [_inlined(node, given, missing, label) for node in body.node]


def _defaults(call: onnx.NodeProto, body: onnx.FunctionProto) -> dict[str, onnx.AttributeProto]:
    """What ONNX says an attribute is when a node leaves it out."""
    versions = {o.domain: o.version for o in body.opset_import}
    try:
        schema = onnx.defs.get_schema(call.op_type, versions.get(call.domain, onnx.defs.onnx_opset_version()), call.domain)
    except onnx.defs.SchemaError:
        return {}
    return {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}


def _inlined(node: onnx.NodeProto, given: dict[str, onnx.AttributeProto], missing: set[str], label: str) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.name = f"{label}/{node.name or node.output[0]}"
    for i, name in enumerate(made.input):
        if name in missing:
            made.input[i] = ""
    del made.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name in given:
                made.attribute.append(given[a.ref_attr_name])
                made.attribute[-1].name = a.name
            continue
        made.attribute.append(a)
        for inner in [made.attribute[-1].g] if a.type == onnx.AttributeProto.GRAPH else made.attribute[-1].graphs:
            nodes = [_inlined(n, given, missing, label) for n in inner.node]
            del inner.node[:]
            inner.node.extend(nodes)
    return made
