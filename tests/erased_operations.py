"""Watches for passes that go on over a list of operations of which some were erased meanwhile: to read as much as the name of an
erased operation is to read freed memory, which mostly goes well."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tilewright.passes import mlir
from tilewright.passes.pipeline import pass_registry  # noqa: F401  all passes, so that none binds a list that is watched

_LISTS = ("walk", "operations", "flat_operations")
_OWN = {name: getattr(mlir, name) for name in _LISTS}
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]


class _Watch:
    """When each address was last erased, by a clock that lists advance too: memory is used again by operations made later."""

    def __init__(self) -> None:
        self.clock = itertools.count()
        self.erased: dict[int, int] = {}

    def erasing(self, erase: Callable[[Any], None]) -> Callable[[Any], None]:
        def watched(op: Any) -> None:
            now = next(self.clock)
            self.erased.update((_address(inner), now) for inner in (op, *_OWN["walk"](op)))
            erase(op)

        return watched

    def listing(self, name: str) -> Callable[..., list[Any]]:
        def watched(*args: Any) -> list[Any]:
            return _Operations(_OWN[name](*args), self)

        return watched


class _Operations(list[Any]):
    def __init__(self, found: list[Any], watch: _Watch) -> None:
        super().__init__(found)
        self.watch, self.made, self.addresses = watch, next(watch.clock), [_address(op) for op in found]

    def __iter__(self) -> Iterator[Any]:
        for number, op in enumerate(super().__iter__()):
            if number < len(self.addresses) and self.watch.erased.get(self.addresses[number], -1) > self.made:
                raise AssertionError(f"operation {number} of a list was erased before it is visited")
            yield op


def _address(op: Any) -> int:
    capsule = op.operation._CAPIPtr
    return int(_pointer(capsule, _name(capsule)))


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Every visit of an erased operation is an AssertionError."""
    watch = _Watch()
    with contextlib.ExitStack() as stack:
        for kind in (mlir.ir.Operation, mlir.ir.OpView):
            stack.enter_context(mock.patch.object(kind, "erase", watch.erasing(kind.erase)))
        for name in _LISTS:
            for module in [m for n, m in sys.modules.items() if n.startswith("tilewright.")]:
                if vars(module).get(name) is _OWN[name]:
                    stack.enter_context(mock.patch.object(module, name, watch.listing(name)))
        yield
