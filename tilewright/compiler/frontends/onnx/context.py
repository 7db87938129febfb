"""Context: what an operator's function is given beside its inputs; Operator: a function that wants some of them as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper

from tilewright.compiler import ops
from tilewright.compiler.frontends.onnx.unify import DimsEqual, solved
from tilewright.compiler.frontends.onnx.values import Known, Value
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.ops.body import Scalar
from tilewright.runtime.errors import DTypeError, IngestError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType
from tilewright.runtime.wording import Wording

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Context:
    """One node while it is built.

    opset: the version of the node's domain. place: the node in words, for messages. array: reads a tensor attribute. tensor:
    makes a known value a tensor of the graph. unnamed: dims that the model has no name for, which give way first. read: the
    attributes that have been asked for.
    """

    graph: ops.Graph
    node: onnx.NodeProto
    opset: int
    place: str
    unnamed: frozenset[str]
    array: Callable[[onnx.TensorProto], np.ndarray[Any, Any]]
    tensor: Callable[[Value], ops.Tensor]
    read: set[str] = field(default_factory=set)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value (a tensor as an array), or the default."""
        self.read.add(name)
        for a in self.node.attribute:
            if a.name == name:
                if a.type == onnx.AttributeProto.TENSOR:
                    return self.array(a.t)
                value = helper.get_attribute_value(a)
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return default

    def has(self, name: str) -> bool:
        """Does the node carry this attribute?"""
        self.read.add(name)
        return any(a.name == name for a in self.node.attribute)

    @property
    def results(self) -> list[bool]:
        """For every result of the node: is it wanted?"""
        return [bool(o) for o in self.node.output]

    def wants(self, index: int) -> bool:
        """Is this result used?"""
        return index < len(self.node.output) and bool(self.node.output[index])

    def refused(self, reason: str, remedy: Wording | str) -> IngestError:
        """The error that refuses this node; to be raised."""
        return IngestError(f"{self.place}: {reason}. " + remedy)

    def require(
        self, condition: bool, reason: str, remedy: str = "Correct the model, or rewrite this operator before export"
    ) -> None:
        """Refuse the node unless the condition holds."""
        if not condition:
            raise self.refused(reason, remedy)

    def equal(self, a: Expr, b: Expr) -> None:
        """States that two extents are equal; a dim gives way where they are not so by themselves.

        Floored divisions and the like are no reason to refuse: whether they are equal is checked at every call (`restated`).

        Raises:
            IngestError: they differ for every shape, or are not solved for a dim. DimsEqual: the import starts again.
        """
        if a == b:
            return
        low, high = self.graph.bounds(a - b)
        possible = low <= 0 <= high
        if possible and any(atom.op != "dim" for factors, _ in (a - b).terms for atom in factors):
            return
        found = solved(a, b, self.unnamed) if possible and (a - b).symbols <= set(self.graph.dims) else None
        if found is None:
            raise self.refused(
                f"needs the extents {a} and {b} to be equal",
                "Give the axes of the inputs one dim_param; or, where the "
                "exporter has fixed a size while tracing, export with that axis dynamic",
            )
        raise DimsEqual(*found, self.place)

    def restated(self, x: ops.Tensor, dims: Sequence[Expr]) -> ops.Tensor:
        """x with these extents, which are stated to be equal to its own."""
        for a, b in zip(x.dims, dims, strict=True):
            self.equal(a, b)
        return x if tuple(dims) == x.dims else ops.with_dims(x, dims)

    def fit(self, *tensors: ops.Tensor, skip: int = 0) -> list[ops.Tensor]:
        """The tensors with extents that broadcast; the last `skip` axes are left as they are."""
        one = Expr.of(1)
        ranks = [t.rank - skip for t in tensors]
        wanted: dict[int, Expr] = {}
        for back in range(1, max(ranks) + 1):
            extents = [t.dims[r - back] for t, r in zip(tensors, ranks, strict=True) if r >= back and t.dims[r - back] != one]
            if extents:
                wanted[back] = extents[0]
        found = []
        for t, r in zip(tensors, ranks, strict=True):
            dims = [d if a >= r or d == one else wanted[r - a] for a, d in enumerate(t.dims)]
            found.append(self.restated(t, dims))
        return found

    def binary(
        self, name: str, function: Callable[[Scalar, Scalar], Scalar], a: ops.Tensor, b: ops.Tensor, dtype: DType | None = None
    ) -> ops.Tensor:
        """A function of two tensors' elements, broadcast; dtype: of the result, default theirs."""
        return self.graph.pointwise(name, function, *self.fit(a, b), dtype=dtype)

    def element(self, number: int) -> DType:
        """An ONNX element type; IngestError when the compiler has none such."""
        try:
            return DType.of(helper.tensor_dtype_to_np_dtype(number))
        except (KeyError, DTypeError):
            kinds = {v: k for k, v in onnx.TensorProto.DataType.items()}
            raise self.refused(
                f"element type {kinds.get(number, number)} is not compiled",
                f"Use one of {', '.join(d.numpy.name for d in DType)}",
            ) from None

    def axis(self, rank: int, axis: int) -> int:
        """A possibly negative axis as a position."""
        self.require(-rank <= axis < max(rank, 1), f"axis {axis} of a tensor of rank {rank}")
        return axis % max(rank, 1)

    def axes(self, rank: int, axes: Sequence[int]) -> list[int]:
        """Possibly negative axes as positions, each once."""
        found = [self.axis(rank, int(a)) for a in axes]
        self.require(len(set(found)) == len(found), f"axes {list(axes)} name an axis twice")
        return found

    def numbers(self, value: Known, what: str) -> list[Any]:
        """The elements of an input that must be the same for every shape."""
        self.require(
            not value.symbolic,
            f"its input {what} depends on the dims",
            "Only numbers that are the same for every shape are compiled here: make it a constant of the model",
        )
        return list(value.elements.reshape(-1).tolist())


@dataclass(frozen=True)
class Operator:
    """A function of the table that gets some inputs as `Known` values.

    A function gives NotImplemented for a node that is to be built from what ONNX defines its operator by.

    known: numbers of those inputs; a node whose input is not known at import is refused. either: known where they are, else a
        tensor.
    """

    function: Callable[..., Any]
    known: frozenset[int] = frozenset()
    either: frozenset[int] = frozenset()

    def __call__(self, context: Context, *inputs: Any) -> Any:
        return self.function(context, *inputs)


def operator(*names: str, known: Sequence[int] = (), either: Sequence[int] = ()) -> Callable[[_F], _F]:
    """Decorator: registers a function for ONNX operators, as `registry.register` does."""

    def add(function: _F) -> _F:
        register("onnx", *names)(Operator(function, frozenset(known), frozenset(either)))
        return function

    return add
