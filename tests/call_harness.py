"""Compiled functions around a given tw_call, with the native binder that a compile emits; no MLIR."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.builder.codegen import compile_object
from tilewright.compiler.host.call_path import call_path_ir
from tilewright.runtime.device import TABLE_WORDS
from tilewright.runtime.host.elf import load_object
from tilewright.runtime.host.host_caller import HostCaller
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import Argument, DimInfo, Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType

F = DType.F32
POINTERS, DIMS = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int64)
CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, POINTERS, POINTERS, DIMS, ctypes.c_int64)
Body = Callable[[Any, Any, Any, int], int]


class Device:
    """Loads the binder; tw_call is a Python function, or the address of native code."""

    name = "host"

    def __init__(self, body: Body | int) -> None:
        self._keep = body if isinstance(body, int) else CALL(lambda _, t, s, d, n: body(t, s, d, n))

    def load(self, objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> Device:
        self._code = load_object([o for o in (*objects, *kernels) if o])
        return self

    def address(self, symbol: str) -> int:
        if symbol == "tw_call":
            return self._keep if isinstance(self._keep, int) else ctypes.cast(self._keep, ctypes.c_void_p).value or 0
        return self._code.address(symbol)

    def table(self, kernels: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
        return (ctypes.c_uint64 * TABLE_WORDS)()

    def properties(self) -> Mapping[str, int | str]:
        return {}


def compiled(inputs: Sequence[tuple[DType, tuple[str, ...] | None]], outputs: Sequence[tuple[DType, tuple[str, ...]]],
             dims: Sequence[DimInfo], body: Body | int = lambda *_: 0, *, work: str = "0", threads: int | None = None,
             memory: Mapping[str, bytes] | None = None, **fields: Any) -> CompiledFunction:  # fmt: skip
    values: dict[str, Any] = {
        "target": "host", "features": "", "dims": tuple(dims), "constants": (), "tables": (), "calls": (), "checks": (),
        "inputs": tuple(Argument(f"arg{i}", *a) for i, a in enumerate(inputs)), "arena": "0", "host_object": "host",
        "outputs": tuple(Argument(f"result{i}", *a) for i, a in enumerate(outputs)), "runtime_object": "", "source": "",
        "dispatch_source": "", "binder_object": "binder", **fields}  # fmt: skip
    program = Program(**values)
    text = call_path_ir(program, [(Expr.parse(work), Expr.of(0))])
    code = {"host": b"", "binder": compile_object(text, Target.parse("host"))}
    return CompiledFunction(program, code, memory or {}, Device(body), threads=threads)


def f32(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def add(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
    f32(tensors[2], dims[0])[:] = f32(tensors[0], dims[0]) + f32(tensors[1], dims[0])
    return 0


def a(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


T = DimInfo("T", 1, 16, at=("arg0.0",))


def vector(body: Body | int = add, **fields: Any) -> CompiledFunction:
    return compiled([(F, ("T",)), (F, ("T",))], [(F, ("T",))], [T], body, **fields)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls that come to Python, of functions made after this."""
    seen: list[tuple[Any, ...]] = []
    plain = HostCaller.call

    def spy(self: HostCaller, *args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(HostCaller, "call", spy)
    return seen
