"""Operators that write where they read, of a program that shows it to nobody: they are built as those that make a new tensor.

`torch.export` takes in-place operators out by tracing the whole program again, which takes as long as the export. Most are like
`x.relu_()` and `x += y` of an activation: no view of it exists and nobody reads it afterwards by its old name.
"""

from __future__ import annotations

import torch

from tilewright.compiler.frontends.torch.context import operator_name

# What always gives a tensor of its own. Schemas tell less: dropout in eval mode, and casts to the type that there is, give their
# input as it is.
_FRESH = """
    add addmm avg_pool2d batch_norm bmm cat conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    convolution div elu embedding exp gelu group_norm hardsigmoid hardswish hardtanh instance_norm layer_norm leaky_relu
    linear matmul max_pool2d mm mul neg pow relu relu6 rsqrt sigmoid silu softmax sqrt sub tanh
    """


def functional_name(node: torch.fx.Node) -> str | None:
    """The operator that makes what the node writes as a new tensor; None where somebody else could see it being written, or where
    it is no in-place operator with such a twin."""
    op, source = node.target, node.args[0] if node.args else None
    if not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable:
        return None
    if not isinstance(source, torch.fx.Node) or not _is_fresh(source):
        return None
    written = [n for n, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    space, _, name = op._schema.name.partition("::")
    if written != [0] or space != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    twin = getattr(getattr(torch.ops.aten, name[:-1], None), op._overloadname, None)
    seen = any(node < user or not _reads(user) for user in source.users if user is not node)
    return None if twin is None or seen or not _keeps_type(node) else operator_name(twin)


def _is_fresh(node: torch.fx.Node) -> bool:
    """Is the node's tensor its own, and neither an input nor a view?"""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return makes_its_own(node.target) or functional_name(node) is not None


def makes_its_own(op: torch._ops.OpOverload) -> bool:
    space, _, name = op._schema.name.partition("::")
    return space == "aten" and name in _FRESH.split()


def _reads(node: torch.fx.Node) -> bool:
    """Does the node keep no view of what it reads?"""
    return isinstance(node.target, torch._ops.OpOverload) and makes_its_own(node.target)


def _keeps_type(node: torch.fx.Node) -> bool:
    """An in-place operator gives the type of what it writes, its twin that of all arguments together."""
    values = [a.meta.get("val") for a in node.all_input_nodes]
    types = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    found = node.meta.get("val")
    return isinstance(found, torch.Tensor) and types == {found.dtype}
