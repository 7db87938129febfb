"""The operators that the importers know: one table a framework, filled by `register`, open to users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tilewright.runtime.errors import OptionError

Lowering = Callable[..., Any]
_F = TypeVar("_F", bound=Lowering)
_TABLES: dict[str, dict[str, Lowering]] = {"torch": {}, "onnx": {}}


def register(framework: str, *operators: str, replace: bool = False) -> Callable[[_F], _F]:
    """Decorator: this function builds these operators of a framework.

    Args:
        framework: "torch" or "onnx".
        operators: as the framework writes them: "aten.gelu.default", "mylib.op.default"; "Gelu", "com.example.Op".
        replace: allow an operator that is known already.
    Raises:
        OptionError: an unknown framework, or an operator that is known already.

    The function gets the importer's context and then the operator's arguments, tensors as `tw.ops` tensors of one graph,
    and gives the tensor or tensors of its results:

        @tw.frontends.register("torch", "mylib.scale_gelu.default")
        def scale_gelu(context, x, scale):
            return ops.gelu(x) * scale
    """
    table = _table(framework)

    def add(function: _F) -> _F:
        for name in operators:
            if name in table and not replace:
                raise OptionError(f"register: {framework} operator {name} is known already; pass replace=True to take its place")
            table[name] = function
        return function

    return add


def lowerings(framework: str) -> Mapping[str, Lowering]:
    """Operator -> the function that builds it."""
    return _table(framework)


def _table(framework: str) -> dict[str, Lowering]:
    if framework not in _TABLES:
        raise OptionError(f"unknown framework {framework!r}; use one of {', '.join(_TABLES)}")
    return _TABLES[framework]
