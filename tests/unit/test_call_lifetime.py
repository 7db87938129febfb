"""Natively called functions as Python objects: reference counts, memory, threads, subclasses, other kinds of arrays."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from call_harness import F, T, a, compiled, f32, vector

from tilewright.runtime.call import python_abi
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.host import native_call
from tilewright.runtime.load.function import CompiledFunction

needs_native = pytest.mark.skipif(not python_abi.is_supported(), reason="this interpreter is called through Python only")


def two(**fields: Any) -> CompiledFunction:
    def body(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
        f32(tensors[1], dims[0])[:] = f32(tensors[2], dims[0])[:] = f32(tensors[0], dims[0])
        return 0

    return compiled([(F, ("T",))], [(F, ("T",)), (F, ("T",))], [T], body, **fields)


@needs_native
def test_reference_counts_are_exact() -> None:
    fn, several = vector(), two()
    x, w, out, strided = a(4), a(4), np.empty(4, np.float32), a(8)[::2]
    pair = (np.empty(4, np.float32), np.empty(4, np.float32))
    watched = (x, w, out, strided, pair, *pair, fn, several, fn._caller, x.dtype, np.ndarray, "out", type(fn))

    def calls() -> None:
        fn(x, w, out=out)
        fn(x, w)
        fn(strided, w, out=out)
        several(x)
        several(x, out=pair)
        for wrong in (lambda: fn(x), lambda: fn(x, a(5)), lambda: fn(x, w, out=w), lambda: several(x, out=(x, x))):
            with pytest.raises(Exception, match=r"wanted|equal|overlaps|extents"):
                wrong()

    calls()  # what is made on first use may stay
    gc.collect()  # what earlier tests left may hold float32
    before = [sys.getrefcount(o) for o in watched]
    for _ in range(1000):
        calls()
    assert [sys.getrefcount(o) for o in watched] == before
    y = fn(x, w)
    assert sys.getrefcount(y) == 2
    assert [sys.getrefcount(y) for y in several(x)] == [sys.getrefcount(y) for y in (np.empty(1), np.empty(1))]


@needs_native
def test_calls_do_not_grow_memory() -> None:
    fn, several = vector(), two()
    x, w, out = a(4), a(4), np.empty(4, np.float32)

    def run(count: int) -> None:
        for _ in range(count):
            fn(x, w, out=out)
            fn(x, w)
            several(x)

    run(100)
    tracemalloc.start()
    run(100)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    run(20_000)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 10_000


@needs_native
def test_functions_go_with_their_last_reference() -> None:
    fn = vector()
    gone, caller = weakref.ref(fn), weakref.ref(fn._caller)
    fn(a(2), a(2))
    gc.disable()
    try:
        del fn
        assert gone() is None and caller() is None
    finally:
        gc.enable()
    fn = vector()
    fn.itself = fn  # type: ignore[attr-defined]
    gone = weakref.ref(fn)
    del fn
    gc.collect()
    assert gone() is None


def test_what_kind_of_object_it_is(tmp_path: Path) -> None:
    fn = vector()
    assert isinstance(fn, CompiledFunction) and type(fn).__name__ == "CompiledFunction"
    assert repr(fn).startswith("CompiledFunction(arg0: f32[T], arg1: f32[T] -> ")
    assert list(inspect.signature(fn).parameters) == ["args", "out", "threads", "stream", "named"]
    assert callable(fn) and (fn.__doc__ or "").startswith("Runs a compiled model")
    np.testing.assert_array_equal(fn.__call__(a(3), a(3)), fn(a(3), a(3)))
    np.testing.assert_array_equal(CompiledFunction.__call__(fn, a(3), a(3)), fn(a(3), a(3)))
    assert copy.copy(fn) is fn and copy.deepcopy([fn])[0] is fn
    fn.save(tmp_path / "fn.tw")
    assert {fn: 1}[fn] == 1


@needs_native
def test_a_subclass_overrides_the_call() -> None:
    class Loud(CompiledFunction):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return "loud", super().__call__(*args, **kwargs)

    plain = vector()
    assert type(plain) is native_call.callable_type(CompiledFunction)
    bundle = plain._bundle
    fn = Loud(bundle.program, bundle.code, bundle.constants, plain._caller.device)
    assert type(fn) is Loud
    np.testing.assert_array_equal(fn(a(3), a(3))[1], 2 * a(3))


def test_an_unknown_interpreter_is_served_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_call, "is_supported", lambda: False)
    fn = vector()
    assert type(fn) is CompiledFunction and fn._caller.native is None
    out = np.empty(3, np.float32)
    assert fn(a(3), a(3), out=out) is out
    np.testing.assert_array_equal(out, 2 * a(3))
    with pytest.raises(ShapeError, match="T = 0 is outside"):
        fn(a(0), a(0))


@pytest.mark.parametrize("part", ["_tuple_fits", "_array_fits", "_numpy_fits"])
def test_every_probe_counts(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_abi, part, lambda: False)
    assert not python_abi.is_supported.__wrapped__()


def test_an_array_of_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in ("DATA", "RANK", "EXTENTS", "DTYPE", "FLAGS"):
        with monkeypatch.context() as patched:
            patched.setattr(python_abi, field, 0 if field != "EXTENTS" else python_abi.DATA)
            assert not python_abi._array_fits(), field


def test_many_threads_call_at_once() -> None:
    fn, several = vector(), two()
    wrong: list[int] = []

    def work(seed: int) -> None:
        out = np.empty(16, np.float32)
        for i in range(300):
            x = np.full(1 + (seed + i) % 16, seed, np.float32)
            good = np.array_equal(fn(x, x, out=out[: len(x)]), 2 * x) and np.array_equal(several(x)[1], x)
            if not good:
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_calls_after_fork() -> None:
    fn = vector()
    fn(a(2), a(2))
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(fn(a(3), a(3)), 2 * a(3)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_torch_tensors_come_back_as_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    fn, several = vector(), two()
    x, w, out = torch.arange(4.0), torch.ones(4), torch.empty(4)
    assert torch.equal(fn(x, w), x + 1) and fn(x, w, out=out) is out and torch.equal(out, x + 1)
    assert torch.equal(fn(x[::2], w[:2]), x[::2] + 1)
    assert all(torch.equal(y, x) for y in several(x))
    recorded = x.clone().requires_grad_()
    with torch.no_grad():
        assert torch.equal(fn(recorded, w), x + 1)
    for given in ({"out": recorded}, {}):
        with pytest.raises(DTypeError, match="without a gradient"):
            fn(x if given else recorded, w, **given)
    with pytest.raises(ShapeError, match="out overlaps the input arg1"):
        fn(x, w, out=w)
    with pytest.raises(ShapeError, match="arg1"):
        fn(x, w[:3])


class Boxed:
    """An array of another library: it has `__dlpack__` and its namespace knows the way back."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __array_namespace__(self) -> Any:
        return Boxed

    @staticmethod
    def from_dlpack(array: np.ndarray[Any, Any]) -> Boxed:
        return Boxed(array)


def test_arrays_of_other_libraries_take_the_native_call_as_views() -> None:
    fn, several = vector(), two()
    x, out = Boxed(a(4)), Boxed(np.empty(4, np.float32))
    found = fn(x, a(4))
    assert type(found) is Boxed
    np.testing.assert_array_equal(found.array, 2 * a(4))
    assert fn(x, a(4), out=out) is out and fn(x, x, out=(out,)) is out
    np.testing.assert_array_equal(out.array, 2 * a(4))
    assert [type(y) for y in several(x)] == [Boxed, Boxed]
    pair = (np.empty(4, np.float32), Boxed(np.empty(4, np.float32)))
    assert several(x, out=pair)[1] is pair[1]
    np.testing.assert_array_equal(pair[1].array, a(4))
    with pytest.raises(ShapeError, match="T = 17 is outside its range"):
        fn(Boxed(a(17)), a(17))


def test_tvm_functions_take_and_give_tensors() -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    x, out = tvm_ffi.from_dlpack(a(4)), np.empty(4, np.float32)
    function = vector().to_tvm_ffi()
    np.testing.assert_array_equal(np.from_dlpack(function(x, x)), 2 * a(4))
    assert function(x, x, tvm_ffi.from_dlpack(out)) is None
    np.testing.assert_array_equal(out, 2 * a(4))
    assert [np.from_dlpack(y).shape for y in two().to_tvm_ffi()(x)] == [(4,), (4,)]


def test_without_tvm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(OptionError, match="install it with pip install apache-tvm-ffi"):
        vector().to_tvm_ffi()
