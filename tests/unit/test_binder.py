"""Calls of a compiled function: what is taken, what is refused and in which words, and what comes back."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.call import results
from tilewright.runtime.device import TABLE_WORDS
from tilewright.runtime.errors import DeviceError, DTypeError, OptionError, ShapeError
from tilewright.runtime.limits import LINE
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.dispatch import DispatchTable, Leaf, Split
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.program import Argument, Call, Check, Constant, DimInfo, Program
from tilewright.runtime.tensor import DType

WORDS, DIMS = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int64)
CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, WORDS, WORDS, DIMS, ctypes.c_int64)
Body = Callable[[Any, Any, Any, int], int]


class FakeDevice:
    """Runs a Python function as tw_call."""

    name = "host"

    def __init__(self, body: Body) -> None:
        self.native = CALL(lambda _, tensors, scalars, dims, threads: body(tensors, scalars, dims, threads))

    def load(self, objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> FakeDevice:
        return self

    def address(self, symbol: str) -> int:
        return {"tw_call": ctypes.cast(self.native, ctypes.c_void_p).value or 0, "k0": 1, "k1": 2}[symbol]

    def table(self, kernels: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
        return (ctypes.c_uint64 * TABLE_WORDS)()

    def properties(self) -> Mapping[str, int | str]:
        return {}


def f32(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def program(inputs: Sequence[tuple[DType, tuple[str, ...] | None]], outputs: Sequence[tuple[DType, tuple[str, ...]]],
            dims: Sequence[DimInfo], **fields: Any) -> Program:  # fmt: skip
    grid = ("ceildiv(M, 4)", "1", "1")
    kernels = tuple(MicroKernel(f"k{i}", "w", "generic", f"c{i}", (), grid, "obj") for i in range(2))
    table = DispatchTable("w", "matmul", ("M",), kernels, Split("M", 8, Leaf(0, 1), Leaf(1)))
    values: dict[str, Any] = {
        "target": "host", "features": "", "dims": tuple(dims),
        "inputs": tuple(Argument(f"arg{i}", *a) for i, a in enumerate(inputs)),
        "outputs": tuple(Argument(f"result{i}", *a) for i, a in enumerate(outputs)),
        "constants": (), "tables": (table,) if dims else (), "checks": (), "arena": "64*threads",
        "calls": (Call(0, (f"2*{dims[0].name}",)),) if dims else (), "host_object": "host", "runtime_object": "",
        "source": "", "dispatch_source": "if M <= 8", **fields}  # fmt: skip
    return Program(**values)


def function(compiled: Program, body: Body = lambda *_: 0, **constants: bytes) -> CompiledFunction:
    return CompiledFunction(compiled, {"host": b"", "obj": b""}, constants, FakeDevice(body))


T = DimInfo("T", 1, 16, at=("arg0.0",))
F, I64 = DType.F32, DType.I64
VECTOR = program([(F, ("T",))], [(F, ("T",))], [T])


def double(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
    f32(tensors[1], dims[0])[:] = 2 * f32(tensors[0], dims[0])
    return 0


def test_results_are_fresh_arrays_of_the_right_shape() -> None:
    fn = function(VECTOR, double)
    x = np.arange(5, dtype=np.float32)
    y, z = fn(x), fn(x + 1)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(z, 2 * x + 2)
    assert y.dtype == np.float32 and type(y) is np.ndarray


@pytest.mark.parametrize("count", [results.LARGE // 4 - 1, results.LARGE // 4, 100_001])
def test_large_results_of_calls_through_python_begin_at_a_line(count: int) -> None:
    fn = function(program([(F, ("T",))], [(F, ("T",))], [DimInfo("T", 0, 1 << 20)]), double)
    x = np.arange(count, dtype=">f4")
    made = [fn(x) for _ in range(3)]
    for y in made:
        np.testing.assert_array_equal(y, 2 * x.astype(np.float32))
        assert type(y) is np.ndarray and y.flags.writeable and (y.nbytes < results.LARGE or results.address(y) % LINE == 0)


@pytest.mark.parametrize(
    "x",
    [np.arange(12, dtype=np.float32)[::2], np.arange(6, dtype=np.float32)[::-1], np.arange(6, dtype=">f4"),
     np.frombuffer(b"\0" + np.arange(6, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)],
    ids=["strided", "reversed", "byte order", "unaligned"],
)  # fmt: skip
def test_memory_that_is_not_native_is_copied(x: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(function(VECTOR, double)(x), 2 * x.astype(np.float32))


def test_a_read_only_input_is_taken() -> None:
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    np.testing.assert_array_equal(function(VECTOR, double)(x), 2 * x)


def test_wrong_element_type_names_argument_and_remedy() -> None:
    with pytest.raises(DTypeError, match=r"argument arg0: wanted f32 .*got float64; .* arg0.astype\('float32'\)"):
        function(VECTOR)(np.zeros(3))
    with pytest.raises(DTypeError, match=r"argument arg0: wanted an array .*got list"):
        function(VECTOR)([1.0, 2.0])


def test_wrong_count_and_rank() -> None:
    with pytest.raises(DTypeError, match=r"wanted 1 arguments \(arg0: f32\[T\]\), got 2"):
        function(VECTOR)(np.zeros(3, np.float32), 1)
    with pytest.raises(ShapeError, match=r"argument arg0: wanted rank 1 .*got rank 2 with shape \(2, 3\)"):
        function(VECTOR)(np.zeros((2, 3), np.float32))


def test_out_of_range_is_an_error_or_falls_back() -> None:
    x = np.ones(17, np.float32)
    with pytest.raises(ShapeError, match=r"dim T = 17 is outside its range 1\.\.16"):
        function(VECTOR, double)(x)
    wide = program([(F, ("T",))], [(F, ("T",))], [T], out_of_range="fallback")
    np.testing.assert_array_equal(function(wide, double)(x), 2 * x)


def test_multiples_are_checked() -> None:
    even = program([(F, ("T",))], [(F, ("T",))], [DimInfo("T", 2, 16, 2, at=("arg0.0",))])
    with pytest.raises(ShapeError, match="multiple of 2"):
        function(even)(np.zeros(3, np.float32))


def test_conflicting_dims_name_both_places() -> None:
    fn = function(program([(F, ("B", "S")), (F, ("S", "8"))], [(F, ("B", "8"))],
                          [DimInfo("B", 1, 64), DimInfo("S", 1, 64)]))  # fmt: skip
    with pytest.raises(ShapeError, match=r"S = 12 from arg0\.1 but 13 from arg1\.0"):
        fn(np.zeros((2, 12), np.float32), np.zeros((13, 8), np.float32))
    with pytest.raises(ShapeError, match=r"argument arg1, axis 1: wanted extent 8 as in .*got 9"):
        fn(np.zeros((2, 12), np.float32), np.zeros((12, 9), np.float32))


def test_expressions_on_inputs_are_checked_and_solved() -> None:
    fn = function(program([(F, ("T",)), (F, ("2*T + 1",))], [(F, ("T",))], [T]))
    assert fn(np.zeros(3, np.float32), np.zeros(7, np.float32)).shape == (3,)
    with pytest.raises(ShapeError, match=r"argument arg1, axis 0: wanted extent 7 \(2\*T \+ 1\).*got 6"):
        fn(np.zeros(3, np.float32), np.zeros(6, np.float32))
    only = function(program([(F, ("2*T + 1",))], [(F, ("T",))], [DimInfo("T", 1, 16)]))
    assert only(np.zeros(7, np.float32)).shape == (3,)
    with pytest.raises(ShapeError, match="got 6"):
        only(np.zeros(6, np.float32))


def test_a_dim_that_no_input_gives_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="dim T can be read from no input"):
        function(program([(F, ("T*T",))], [(F, ("T",))], [T]))


def test_scalars_are_dims_or_bit_patterns() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def body(_: Any, scalars: Any, dims: Any, threads: int) -> int:
        seen.append((scalars[:3], dims[:2]))
        return 0

    compiled = program([(I64, None), (F, ("S",)), (F, None), (DType.I8, None), (DType.BF16, None)], [(F, ("N", "S"))],
                       [DimInfo("N", 0, 100, at=("arg0",)), DimInfo("S", 1, 8)])  # fmt: skip
    fn = function(compiled, body)
    x = np.zeros(2, np.float32)
    assert fn(3, x, 1.5, -1, np.float32(2)).shape == (3, 2)
    assert fn(np.int32(0), x, 1, 5, 0).shape == (0, 2)
    assert seen == [([0x3FC00000, 0xFF, 0x4000], [3, 2]), ([0x3F800000, 5, 0], [0, 2])]
    with pytest.raises(ShapeError, match="dim N = -1"):
        fn(-1, x, 1.0, 0, 0)
    with pytest.raises(DTypeError, match=r"argument arg0: wanted an integer .*got 2\.5 of type float"):
        fn(2.5, x, 1.0, 0, 0)
    with pytest.raises(DTypeError, match=r"argument arg2: wanted a number .*got '1\.0' of type str"):
        fn(1, x, "1.0", 0, 0)
    with pytest.raises(DTypeError, match=r"argument arg3: 200 is not a value of i8"):
        fn(1, x, 1.0, 200, 0)


def test_out_receives_the_result() -> None:
    fn = function(VECTOR, double)
    x, y = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    assert fn(x, out=y) is y
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [(np.zeros(4), DTypeError, "out: wanted f32"), (np.zeros(5, np.float32), ShapeError, r"out: wanted shape \(4,\)"),
     (np.zeros(8, np.float32)[::2], ShapeError, "C-contiguous"), ((), DTypeError, "wanted 1 arrays"),
     (np.frombuffer(bytes(16), np.float32), ShapeError, "writeable")],
)  # fmt: skip
def test_out_that_does_not_fit(out: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        function(VECTOR, double)(np.zeros(4, np.float32), out=out)


def test_out_must_not_overlap() -> None:
    room = np.zeros(8, np.float32)
    with pytest.raises(ShapeError, match="out overlaps the input arg0"):
        function(VECTOR, double)(room[:4], out=room[3:7])
    two = function(program([(F, ("T",))], [(F, ("T",)), (F, ("T",))], [T]))
    with pytest.raises(ShapeError, match=r"out\[1\] overlaps out\[0\]"):
        two(np.zeros(4, np.float32), out=(room[:4], room[2:6]))
    a, b = two(np.zeros(4, np.float32), out=[room[:4], room[4:]])
    assert a.base is room and b.base is room


def test_a_donated_input_becomes_the_result() -> None:
    donated = program([(F, ("T",)), (F, ("T",))], [(F, ("T",))], [T], donated=((1, 0),))
    fn = function(donated, lambda t, s, d, n: 0 if t[2] else 1)
    x, cache = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert fn(x, cache) is cache
    assert fn(x, cache, out=cache) is cache
    frozen = cache.copy()
    frozen.flags.writeable = False
    assert not np.shares_memory(fn(x, frozen), frozen)
    assert fn(cache, cache) is not cache  # another argument still needs the old data
    assert not np.shares_memory(fn(x, np.ones(8, np.float32)[::2]), x)


@pytest.mark.parametrize(("given", "cache"), [(0, 4), (4, 0)])
def test_memory_that_touches_is_no_overlap(given: int, cache: int) -> None:
    """Neither a donated input beside another one, nor `out` beside an input; one element further it is."""
    donated = program([(F, ("T",)), (F, ("T",))], [(F, ("T",))], [T], donated=((1, 0),))
    fn, room = function(donated, lambda t, s, d, n: 0 if t[2] else 1), np.zeros(8, np.float32)
    x, kept = room[given : given + 4], room[cache : cache + 4]
    assert fn(x, kept) is kept
    assert function(VECTOR, double)(x, out=kept) is kept
    nearer = room[1:5]
    assert not np.shares_memory(fn(x, nearer), nearer)
    with pytest.raises(ShapeError, match="out overlaps the input arg0"):
        function(VECTOR, double)(x, out=nearer)


def test_many_arrays_overlap_as_few_do() -> None:
    """What is looked for by sorting is what all pairs say, of spans that touch, lie in each other, are empty."""
    chance = random.Random(0)

    def drawn() -> tuple[int, int]:
        begin = chance.randrange(40)
        return begin, begin + chance.randrange(4)

    def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return max(a[0], b[0]) < min(a[1], b[1])

    for _ in range(400):
        inputs, outputs = ([drawn() for _ in range(chance.randrange(6))] for _ in range(2))
        donors = {n: chance.randrange(len(inputs)) for n in range(len(outputs)) if inputs and chance.random() < 0.5}
        outputs = [inputs[donors[n]] if n in donors and chance.random() < 0.7 else o for n, o in enumerate(outputs)]
        clear = not any(overlap(o, i) and not (o[0] == i[0] and donors.get(n) == m)
                        for n, o in enumerate(outputs) for m, i in enumerate(inputs))
        clear = clear and not any(overlap(a, b) for n, a in enumerate(outputs) for b in outputs[:n])
        assert results._are_apart(inputs, outputs, donors) == clear
        free = {n for n, a in enumerate(inputs) if not any(overlap(a, b) for m, b in enumerate(inputs) if m != n)}
        assert results._apart(inputs) == free
    count = results.FEW
    many, room = function(program([(F, ("T",))], [(F, ("T",))] * count, [T])), np.zeros(4 * count + 4, np.float32)
    given, apart = np.zeros(4, np.float32), [room[4 * n : 4 * n + 4] for n in range(count)]
    assert all(a is b for a, b in zip(many(given, out=apart), apart, strict=True))
    with pytest.raises(ShapeError, match=rf"out\[{count - 1}\] overlaps out\[{count - 2}\]"):
        many(given, out=[*apart[:-1], room[4 * count - 5 : 4 * count - 1]])
    with pytest.raises(ShapeError, match=r"out\[3\] overlaps the input arg0"):
        many(apart[3], out=apart)


def test_zero_extents() -> None:
    empty = program([(F, ("T", "4"))], [(F, ("4", "T")), (F, ("T + 1",))], [DimInfo("T", 0, 4)])
    a, b = function(empty)(np.zeros((0, 4), np.float32))
    assert (a.shape, b.shape) == ((4, 0), (1,))


def test_rank_zero_tensors() -> None:
    fn = function(program([(F, ())], [(F, ())], []), lambda t, s, d, n: double(t, s, [1], n))
    assert fn(np.float32(4)).shape == () and fn(np.array(4, np.float32)) == 8


def test_failed_checks_and_memory() -> None:
    checks = (Check("T - 1", "first"), Check("T", "rows must match"))
    checked = program([(F, ("T",))], [(F, ("T",))], [T], checks=checks)
    with pytest.raises(ShapeError, match=r"rows must match \(at T = 3\)"):
        function(checked, lambda *_: 2)(np.zeros(3, np.float32))
    with pytest.raises(DeviceError, match="out of memory for the temporaries of T = 3"):
        function(checked, lambda *_: -1)(np.zeros(3, np.float32))


def test_constants_are_aligned_and_lie_between_inputs_and_results() -> None:
    data = np.arange(3, dtype=np.float32).tobytes()

    def body(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
        assert tensors[1] % 64 == 0
        f32(tensors[2], 3)[:] = f32(tensors[0], 3) + f32(tensors[1], 3)
        return 0

    fn = function(program([(F, ("3",))], [(F, ("3",))], [], constants=(Constant("w", F, (3,), "c"),)), body, c=data)
    np.testing.assert_array_equal(fn(np.ones(3, np.float32)), [1, 2, 3])


def test_threads_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def body(_t: Any, _s: Any, _d: Any, threads: int) -> int:
        seen.append(threads)
        return 0

    fn = function(VECTOR, body)
    fn(np.zeros(3, np.float32), threads=1)
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1")
    fn(np.zeros(3, np.float32), threads=64)
    assert seen == [1, 1]
    with pytest.raises(OptionError, match=r"threads: wanted an integer >= 1, .* got 0 of type int"):
        fn(np.zeros(3, np.float32), threads=0)


def test_calls_from_many_threads_are_independent() -> None:
    fn = function(VECTOR, double)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(50):
            x = np.full(1 + (seed + i) % 16, seed, np.float32)
            if not np.array_equal(fn(x), 2 * x):
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
    fn = function(VECTOR, double)
    fn(np.ones(2, np.float32))
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(fn(np.ones(3, np.float32)), [2, 2, 2]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_explain_names_the_kernel_of_each_call() -> None:
    fn = function(VECTOR)
    small, large = fn.explain(T=4), fn.explain(T=16)
    assert [(c.kernel, c.units, c.threads) for c in small.calls] == [("k0", 2, 1)]
    assert [(c.kernel, c.config, c.units, c.threads, c.dims) for c in large.calls] == [("k1", "c1", 8, 0, {"M": 32})]
    assert "matmul" in str(large) and "M=32" in str(large)
    assert '"kernel":"k1"' in large.to_json()
    with pytest.raises(ShapeError, match="T = 99"):
        fn.explain(T=99)
    with pytest.raises(OptionError, match=r"no dim 'S'; wanted a value for each of its dims: T \(1..16\)"):
        fn.explain(S=4)


def test_what_a_function_tells_of_itself() -> None:
    fn = function(program([(F, ("T",))], [(F, ("T",))], [T], constants=(Constant("w", F, (3,), "c"),)), c=bytes(12))
    use = fn.memory(T=4, threads=1)
    assert (use.arena, use.constants, use.outputs, use.total) == (64, 12, 16, 92)
    assert repr(fn) == "CompiledFunction(arg0: f32[T] -> result0: f32[T]; T in 1..16; host)"
    assert fn.dispatch_source() == "if M <= 8" and fn.dims["T"].hi == 16 and fn.inputs[0].name == "arg0"
