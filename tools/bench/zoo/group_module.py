"""A group as a torch module: its operators as torch.fx nodes, weights drawn from a seed. Needs torch."""

from __future__ import annotations

import ast
import operator
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tilewright.runtime.shape import Expr
from tools.bench.zoo.group_table import Group, Value

DTYPES: Mapping[str, Any] = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
_SIZES: Mapping[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv, "mod": operator.mod, "min": torch.sym_min, "max": torch.sym_max,
}  # fmt: skip


def module(group: Group, weights: Mapping[str, torch.Tensor] | None = None, packets: bool = False) -> torch.fx.GraphModule:
    """The module of a group in eval mode.

    Args:
        weights: in place of those that are drawn.
        packets: operators are named without their overload, which TorchScript takes.
    """
    root = torch.nn.Module()
    for name, text in group.weights.items():
        value = weights[name] if weights else torch.from_numpy(draw(Value.parse(text), {}, f"{group.name}:{name}"))
        root.register_buffer(name, value)
    made = _Builder(group, packets).graph()
    made.lint()
    return torch.fx.GraphModule(root, made).eval()


def draw(value: Value, shape: Mapping[str, int], seed: str) -> np.ndarray[Any, Any]:
    """Values of an input or a weight."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    extents = tuple(d.evaluate(shape) for d in value.dims)
    if value.below is not None:
        return rng.integers(0, max(value.below.evaluate(shape), 1), extents).astype(DTYPES[value.dtype])
    drawn = rng.standard_normal(extents, dtype=np.float32) * np.float32(value.deviation) + np.float32(value.mean)
    return np.asarray(abs(drawn) + np.float32(0.1) if value.positive else drawn).astype(DTYPES[value.dtype])


class _Builder:
    def __init__(self, group: Group, packets: bool) -> None:
        self._group, self._packets = group, packets
        self._graph = torch.fx.Graph()
        self._known: dict[str, Any] = {}
        self._sizes: dict[str, Any] = {}

    def graph(self) -> torch.fx.Graph:
        for name in self._group.inputs:
            self._known[name] = self._graph.placeholder(name, torch.Tensor)
        for name in self._group.weights:
            self._known[name] = self._graph.get_attr(name)
        for name, value in self._group.values().items():
            for axis, extent in enumerate(value.dims):
                if extent.linear and extent.linear[0] not in self._sizes:
                    self._sizes[extent.linear[0]] = self._dim(name, axis, extent.linear)
        for line in self._group.code:
            assign = ast.parse(line).body[0]
            assert isinstance(assign, ast.Assign) and isinstance(assign.targets[0], ast.Name)
            self._known[assign.targets[0].id] = self._call(assign.value)
        results = tuple(self._known[n] for n in self._group.outputs)
        self._graph.output(results if len(results) > 1 else results[0])
        self._graph.eliminate_dead_code()
        return self._graph

    def _dim(self, name: str, axis: int, linear: tuple[str, int, int]) -> Any:
        """A dim read off an input's extent, factor * dim + offset."""
        size = self._graph.call_method("size", (self._known[name], axis))
        if linear[2]:
            size = self._graph.call_function(operator.sub, (size, linear[2]))
        return self._graph.call_function(operator.floordiv, (size, linear[1])) if linear[1] > 1 else size

    def _call(self, call: ast.expr) -> Any:
        assert isinstance(call, ast.Call)
        args = tuple(self._value(a) for a in call.args)
        kwargs = {str(k.arg): self._value(k.value) for k in call.keywords}
        name = ast.unparse(call.func)
        if name == "getitem":
            return self._graph.call_function(operator.getitem, args)
        found: Any = torch.ops
        for part in name.split(".")[: 2 if self._packets else 3]:
            found = getattr(found, part)
        return self._graph.call_function(found, args, kwargs)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(e) for e in node.elts]
        if isinstance(node, ast.Name) and node.id in self._known:
            return self._known[node.id]
        text = ast.unparse(node)
        if text in ("inf", "-inf", "nan"):
            return float(text)
        if text.startswith("torch."):
            return getattr(torch, text.removeprefix("torch."))
        if isinstance(node, ast.Set):
            return self._size(Expr.parse(ast.unparse(node.elts[0])))
        return ast.literal_eval(node)

    def _size(self, size: Expr) -> Any:
        """Nodes that compute a size; an int where it is constant."""
        total: Any = None
        for factors, coefficient in size.terms:
            product: Any = None
            for atom in factors:
                value = self._sizes[atom.name] if atom.op == "dim" else self._node(_SIZES[atom.op], *map(self._size, atom.args))
                product = value if product is None else self._node(operator.mul, product, value)
            if product is None or coefficient != 1:
                product = coefficient if product is None else self._node(operator.mul, product, coefficient)
            total = product if total is None else self._node(operator.add, total, product)
        return 0 if total is None else total

    def _node(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._graph.call_function(function, args)
