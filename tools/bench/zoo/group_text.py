"""Nodes of an exported program as a group of the table: sizes over dims of its own, values by canonical names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from tilewright.runtime.shape import Expr, combine
from tools.bench.zoo.cut import BATCH_NORM, Cut, state, tensor
from tools.bench.zoo.group_table import Group, spread

_DTYPES = {torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool"}
_SAME = ("aten.dropout.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default")
_COPY = "aten.clone.default"  # what dropout becomes
_INDEXED = {"aten.embedding.default": (0, 1), "aten.gather.default": (0, 2), "aten.index_select.default": (0, 2)}
_CONVERSION = "aten._to_copy.default"  # written as aten.to, as BATCH_NORM is as aten.batch_norm: all systems know these
_MOST = 1 << 21  # elements of an input; larger shapes are not measured
_UNBOUNDED, _WIDE = 128, 8  # largest extent, or that many times the least, where a program states no bound
_LIMIT = 1 << 14  # a larger bound is none


class UncutError(Exception):
    """Why nodes cannot stand alone."""


class GroupText:
    """The text of some nodes, with what they read that nobody else computes."""

    def __init__(self, cut: Cut, nodes: Sequence[Node], results: Sequence[Node]) -> None:
        self._cut, self._results = cut, [itself(n) for n in results]
        self._names: dict[Node, str] = {}
        self._order: list[Node] = []
        self._inputs: list[Node] = []
        self._weights: list[Node] = []
        self._own = set(nodes)
        for node in nodes:
            self._collect(node)

    def group(self, name: str = "") -> Group:
        """The group; UncutError where its sizes do not follow from its inputs."""
        if not self._inputs:
            raise UncutError("it reads no input")
        for letter, nodes in (("x", self._inputs), ("w", self._weights), ("v", self._order)):
            self._names.update({n: f"{letter}{i}" for i, n in enumerate(nodes)})
        extents = [self._extents(n) for n in self._inputs]
        ranges = self._rename(sorted({e for dims in extents for e in dims if e.constant is None}, key=str))
        if not ranges:
            raise UncutError("no extent of its inputs is free")
        code = tuple(f"{self._names[n]} = {_operator(n)}({self._arguments(n)})" for n in self._order)
        inputs = {self._names[n]: self._input(n) for n in self._inputs}
        weights = {self._names[n]: self._weight(n) for n in self._weights}
        outputs = tuple(self._names[n] for n in self._results)
        return Group(name, ranges, inputs, weights, code, outputs, (), self._points(ranges))

    def names(self) -> Mapping[str, str]:
        """The placeholder of each weight."""
        return {self._names[n]: n.name for n in self._weights}

    def _collect(self, node: Node) -> None:
        node = itself(node)
        if node in self._order or node in self._inputs or node in self._weights:
            return
        if node in self._cut.weights:
            self._weights.append(node)
        elif node in self._cut.users or (node not in self._own and not self._cut.is_free(node)):
            if not isinstance(tensor(node), torch.Tensor):
                raise UncutError(f"{node} is no tensor")
            self._inputs.append(node)
        else:
            for operand in node.all_input_nodes:
                if isinstance(operand.meta.get("val"), (torch.Tensor, tuple, list)):
                    self._collect(operand)
            self._order.append(node)

    # -- sizes

    def _extents(self, node: Node) -> list[Expr]:
        return [self._cut.sizes.expr(d) for d in tensor(node).shape]

    def _rename(self, sizes: Sequence[Expr]) -> dict[str, tuple[int, int]]:
        """Own dims for the extents of the inputs, D0, D1 ...: a dim of the model that can be read off an extent, or an extent
        that a model's dim decides in another way. Their ranges."""
        old = {n: (float(d.lo), float(d.hi if d.hi <= _LIMIT else max(_UNBOUNDED, d.lo * _WIDE)))
               for n, d in self._cut.dims.ranges.items()}
        self._dims: dict[str, Expr] = {}
        self._atoms: dict[Expr, Expr] = {}
        ranges: dict[str, tuple[int, int]] = {}

        def name(lo: float, hi: float) -> Expr:
            ranges[f"D{len(ranges)}"] = (max(int(lo), 1), max(int(hi), 1))
            return Expr.dim(f"D{len(ranges) - 1}")

        for size in sizes:
            if size.linear and size.linear[0] not in self._dims:
                self._dims[size.linear[0]] = name(*old[size.linear[0]])
        for size in sizes:
            if self._known(size):
                continue
            rest = [(f, c) for f, c in size.terms if f]
            offset = Expr.of(sum(c for f, c in size.terms if not f))
            if len(rest) == 1 and len(rest[0][0]) == 1:
                atom = Expr(((rest[0][0], 1),))
                shift = offset if rest[0][1] == 1 else Expr.of(0)
                self._atoms[atom] = name(*(atom + shift).bounds(old)) - shift
            else:
                self._atoms[size] = name(*size.bounds(old))
        return ranges

    def _known(self, size: Expr) -> bool:
        try:
            self._size(size)
        except UncutError:
            return False
        return True

    def _size(self, value: Any) -> Expr:
        def apply(op: str, a: Expr, b: Expr) -> Expr:
            made = combine(op, a, b)
            return self._atoms.get(made, made)

        size = value if isinstance(value, Expr) else self._cut.sizes.expr(value)
        size = size.fold(Expr.of, Expr.dim, apply)
        for whole, own in self._atoms.items():
            if size.symbols & whole.symbols and (size // whole) * whole == size:
                size = (size // whole) * own
        names = {f"D{i}" for i in range(len(self._dims) + len(self._atoms))}
        if unknown := size.symbols - self._dims.keys() - names:
            raise UncutError(f"the size {size} needs {', '.join(sorted(unknown))}, which no input has")
        return size.substitute(self._dims)

    def _points(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], ...]:
        """Shapes over the ranges, the large ones halved until the inputs are of a size that calls take well."""
        found: list[dict[str, int]] = []
        for point in spread(ranges):
            while max(math.prod(self._size(d).evaluate(point) for d in tensor(n).shape) for n in self._inputs) > _MOST:
                largest = max(point, key=lambda n: point[n] / ranges[n][0])
                point[largest] = max(point[largest] // 2, ranges[largest][0])
            if point not in found:
                found.append(point)
        return tuple(found)

    # -- values

    def _shape(self, node: Node) -> str:
        dtype = tensor(node).dtype
        if dtype not in _DTYPES:
            raise UncutError(f"{node} is {dtype}")
        return f"{_DTYPES[dtype]}[{', '.join(str(self._size(d)) for d in tensor(node).shape)}]"

    def _input(self, node: Node) -> str:
        text = self._shape(node)
        return text if text.startswith("f32") else f"{text} < {self._below(node)}"

    def _below(self, node: Node) -> Expr:
        """The least extent that an integer input indexes, directly or through views and sums; 2 for others."""
        reached, found = [node], []
        for value in reached:
            for user in value.users:
                if user not in self._order:
                    continue
                target = str(user.target)
                if target in _INDEXED and value is user.args[_INDEXED[target][1]]:
                    axis = 0 if target == "aten.embedding.default" else int(user.args[1])
                    found.append(self._size(user.args[0].meta["val"].shape[axis]))
                elif target == "aten.index.Tensor" and value in user.args[1]:
                    found.append(self._size(user.args[0].meta["val"].shape[list(user.args[1]).index(value)]))
                elif tensor(value).dtype == getattr(user.meta["val"], "dtype", None) and user not in reached:
                    reached.append(user)
        if any(e.constant is None for e in found) and len(found) > 1:
            raise UncutError(f"{node} indexes several extents")
        return min(found, key=lambda e: e.constant or 0, default=Expr.of(2))

    def _weight(self, node: Node) -> str:
        value = self._stored(node)
        if not value.is_floating_point():
            return f"{self._shape(node)} < {int(value.max()) + 1 if value.numel() else 1}"
        wide = value.detach().double()
        if not torch.isfinite(wide).all():
            raise UncutError(f"{node} holds values that are not finite")
        sign = " positive" if value.numel() and bool((wide >= 0).all()) and bool((wide > 0).any()) else ""
        deviation = float(wide.std()) if value.numel() > 1 else 0.0
        return f"{self._shape(node)} {float(wide.mean()):.2g} {deviation:.2g}{sign}"

    def _stored(self, node: Node) -> torch.Tensor:
        found = state(self._cut).get(node.name)
        if found is None:
            raise UncutError(f"{node} is no tensor of the program")
        return found

    # -- code

    def _arguments(self, node: Node) -> str:
        if str(node.target) == BATCH_NORM:
            return ", ".join([*map(self._text, node.args[:5]), "False", *map(self._text, node.args[5:]), "False"])
        if str(node.target) == _CONVERSION:
            return f"{self._text(node.args[0])}, {node.kwargs['dtype']}"
        return ", ".join([*map(self._text, node.args), *(f"{n}={self._text(v)}" for n, v in node.kwargs.items()
                                                          if n not in ("device", "layout", "pin_memory"))])

    def _text(self, value: Any) -> str:
        if isinstance(value, Node) and not isinstance(value.meta.get("val"), (torch.SymInt, int)):
            value = itself(value)
            if value not in self._names:
                raise UncutError(f"{value} is no tensor")
            return self._names[value]
        if isinstance(value, Node):
            value = value.meta["val"]
        if isinstance(value, torch.SymInt):
            size = self._size(value)
            return str(size.constant) if size.constant is not None else f"{{{size}}}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._text, value))}]"
        return str(value) if isinstance(value, (torch.dtype, torch.memory_format)) else repr(value)


def itself(node: Node) -> Node:
    """What a chain of operators that do nothing begins with."""
    while str(node.target) in _SAME or (str(node.target) == _COPY and not node.kwargs) or is_normalised(node):
        node = node.all_input_nodes[0]
    return node


def is_normalised(node: Node) -> bool:
    """Is this the tensor that batch norm makes, the first of its results in inference?"""
    return getattr(node.target, "__name__", "") == "getitem" and str(node.args[0].target) == BATCH_NORM and node.args[1] == 0


def _operator(node: Node) -> str:
    name = str(node.target)
    if name == BATCH_NORM:
        return "aten.batch_norm.default"
    if name == _CONVERSION:
        return "aten.to.dtype"
    if name in ("aten.view.default", "aten._unsafe_view.default"):  # inputs lie in order here, whatever their producer left
        return "aten.reshape.default"
    if name.startswith("aten."):
        return name
    if getattr(node.target, "__name__", "") == "getitem":
        return "getitem"
    raise UncutError(f"{name} is no operator of ATen")
