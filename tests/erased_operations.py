"""Keeps what passes erase, so that whoever reads an erased operation, or a value of one, is told. Without that it is to read
freed memory, which mostly goes well.

An erased operation moves to a module of its own, where it reads stand-ins, and lives on until the watch ends: nothing is put in
its place.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tilewright.passes.mlir import ir

_BASE: Any = ir.Operation.__mro__[1]  # what Operation and OpView derive from
_BY_NAME = {name: vars(_BASE)[name] for name in ("operands", "regions", "results", "context", "name", "_CAPIPtr")}
_USES, _WALK = vars(ir.Value)["uses"], _BASE.walk
_UNWATCHED = frozenset(("operation", "opview", "context", "create", "parse", "build_generic", "has_trait", "maybe_downcast",
                        "_CAPIPtr", "_CAPICreate", "_set_invalid"))  # that read no operation
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]


class _Watch:
    """erased: addresses of operations and values that are."""

    def __init__(self) -> None:
        self.erased: set[int] = set()
        self.kept: list[ir.Module] = []

    def erase(self, op: Any) -> None:
        self.check(op, "erase")
        own, inner, instead = op.operation, _all(op.operation), dict[Any, Any]()
        if any(next(iter(_USES.__get__(result)), None) is not None for result in _own(own, "results")):
            raise AssertionError(f"{_own(own, 'name')} is erased, and its results are used")
        with _own(own, "context"), ir.Location.unknown():
            grave = ir.Module.create()
            with ir.InsertionPoint(grave.body):
                for operands in [_own(at, "operands") for at in inner]:
                    for number, kind in enumerate([value.type for value in operands]):
                        if kind not in instead:
                            made = ir.Operation.create("builtin.unrealized_conversion_cast", [kind])
                            instead[kind] = _own(made, "results")[0]
                        operands[number] = instead[kind]
            grave.body.append(own)
        for at in inner:
            blocks = [block for region in _own(at, "regions") for block in region.blocks]
            self.erased.update(map(_address, (at, *_own(at, "results"), *(a for block in blocks for a in block.arguments))))
        self.kept.append(grave)

    def check(self, read: Any, what: str) -> None:
        if self.erased and _address(read) in self.erased:
            raise AssertionError(f"{what} of an operation that was erased, or of a value of one")

    def watching(self, name: str, own: Any) -> Any:
        """The property or method, which refuses what was erased."""
        if isinstance(own, property):
            return property(self._checked(name, own.fget), self._checked(name, own.fset) if own.fset is not None else None)
        return self._checked(name, own)

    def _checked(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def checked(read: Any, *args: Any, **kwargs: Any) -> Any:
            self.check(read, name)
            return own(read, *args, **kwargs)

        return checked


def _own(op: Any, name: str) -> Any:
    return _BY_NAME[name].__get__(op)


def _all(op: Any) -> list[Any]:
    """The operation and all in it."""
    found: list[Any] = []

    def take(inner: Any) -> Any:
        found.append(inner.operation)
        return ir.WalkResult.ADVANCE

    _WALK(op, take, ir.WalkOrder.PRE_ORDER)
    return found


def _address(read: Any) -> int:
    capsule = read._CAPIPtr if isinstance(read, ir.Value) else _own(read, "_CAPIPtr")
    return int(_pointer(capsule, _name(capsule)))


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """To read what was erased, and to erase what is used, is an AssertionError."""
    watch = _Watch()
    with contextlib.ExitStack() as stack:
        for kind in (_BASE, ir.Operation, ir.OpView, ir.Value):
            for name, own in list(vars(kind).items()):
                if name == "erase":
                    stack.enter_context(mock.patch.object(kind, name, lambda op: watch.erase(op)))
                elif name not in _UNWATCHED and (not name.startswith("__") or name in ("__str__", "__hash__")) and (
                        isinstance(own, property) or type(own).__name__ == "nb_method"):
                    stack.enter_context(mock.patch.object(kind, name, watch.watching(name, own)))
        yield
