"""Values of nodes that depend on no input: PyTorch computes them when a model is read, for operators that the table has not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.node import map_aggregate


class _InputError(Exception):
    """A node depends on an input, or would give another value each time."""


def constant_value(node: torch.fx.Node, stored: Mapping[str, torch.Tensor]) -> Any:
    """The tensor or tensors that a node gives for every input; None where they are not known, or complex.

    Args:
        stored: weights and buffers by the names of their placeholders.
    """
    try:
        with torch.no_grad():
            value = _value(node, stored)
    except _InputError:
        return None
    parts = value if isinstance(value, (tuple, list)) else [value]
    return value if all(isinstance(v, torch.Tensor) and not v.is_complex() for v in parts) else None


def _value(node: torch.fx.Node, stored: Mapping[str, torch.Tensor]) -> Any:
    if node.op == "placeholder" and node.name in stored:
        return stored[node.name]
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        raise _InputError
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise _InputError

    def one(a: Any) -> Any:
        return _value(a, stored) if isinstance(a, torch.fx.Node) else a

    return target(*map_aggregate(node.args, one), **map_aggregate(node.kwargs, one))
