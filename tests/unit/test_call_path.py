"""The native call path: what it takes, and that all else goes to Python with the same outcome."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from call_harness import Body, F, T, a, compiled, f32, spied, vector

from tilewright.compiler.host.call_path import call_path_ir
from tilewright.runtime.call import python_abi
from tilewright.runtime.call.results import LARGE
from tilewright.runtime.errors import DeviceError, OptionError, ShapeError
from tilewright.runtime.host.elf import load_object
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.host.host_target import lowest_level
from tilewright.runtime.host.object_code import emit_object
from tilewright.runtime.limits import LINE
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import Argument, Check, Constant, DimInfo, Program
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

F64, I64, BF16 = DType.F64, DType.I64, DType.BF16

pytestmark = pytest.mark.skipif(not python_abi.is_supported(), reason="this interpreter is called through Python only")


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    return spied(monkeypatch)


def test_a_perfect_call_never_meets_python(forwarded: list[Any]) -> None:
    fn = vector()
    x, w, out = a(5), a(5) + 1, np.empty(5, np.float32)
    assert fn(x, w, out=out) is out
    np.testing.assert_array_equal(out, 2 * x + 1)
    y = fn(x, w)
    np.testing.assert_array_equal(y, 2 * x + 1)
    assert type(y) is np.ndarray and y.dtype is np.dtype("f4") and y.flags.owndata and y.flags.writeable
    frozen = x.copy()
    frozen.flags.writeable = False
    arguments = (frozen, w)
    np.testing.assert_array_equal(fn(*arguments), y)
    np.testing.assert_array_equal(fn(*arguments, **{"out": out}), y)
    assert not forwarded


def test_inputs_with_gaps_are_copied_natively(forwarded: list[Any]) -> None:
    def subtract(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
        m, n = dims[0], dims[1]
        x, y, result = (f32(tensors[i], m * n) for i in range(3))
        result[:] = (x.reshape(m, n) - y.reshape(n, m).T).reshape(-1)
        return 0

    fn = compiled([(F, ("M", "N")), (F, ("N", "M"))], [(F, ("M", "N"))], [DimInfo("M", 0, 9), DimInfo("N", 0, 9)], subtract)
    wide, tall = a(4, 12), a(3, 4) * 2
    for x, y in ((wide[:, 1::4], tall), (np.asfortranarray(wide[:, :3]), tall), (wide[::-1, 2:5], a(4, 3).T),
                 (np.broadcast_to(a(3), (4, 3)), tall[::-1]), (wide[:0, ::4], tall[:, :0])):
        held = sys.getrefcount(x)
        np.testing.assert_array_equal(fn(x, y), x - y.T)
        out = np.empty((len(x), 3), np.float32)
        assert fn(x, y, out=out) is out
        np.testing.assert_array_equal(out, x - y.T)
        assert sys.getrefcount(x) == held
    overlapping = wide[:, ::4]
    want = overlapping - tall.T
    np.testing.assert_array_equal(fn(overlapping, tall, out=wide.reshape(-1)[:12].reshape(4, 3)), want)
    assert not forwarded
    with pytest.raises(ShapeError):
        fn(wide[:, ::4], tall[:, ::2])
    assert len(forwarded) == 1


def matrix() -> CompiledFunction:
    return compiled(
        [(F, ("B", "T")), (F, ("2*T + 1", "8")), (I64, None)], [(F, ("B", "floordiv(T, 2)"))],
        [DimInfo("B", 1, 4), DimInfo("T", 2, 64, 2), DimInfo("N", 0, 9, at=("arg2",))],
        lambda t, s, d, n: f32(t[2], d[0] * (d[1] // 2)).fill(d[2]) or 0)  # fmt: skip


X, W = a(2, 6), a(13, 8)
ROOM = a(40)
IMPERFECT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "too few": ((X, W), {}),
    "too many": ((X, W, 1, 2), {}),
    "none": ((), {}),
    "byte order": ((X.astype(">f4"), W, 1), {}),
    "unaligned": ((np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 6), W, 1), {}),
    "element type": ((X.astype(np.float64), W, 1), {}),
    "rank": ((a(12), W, 1), {}),
    "list": (([[1.0] * 6] * 2, W, 1), {}),
    "subclass": ((X.view(np.matrix), W, 1), {}),
    "masked": ((np.ma.masked_array(X), W, 1), {}),
    "none argument": ((None, W, 1), {}),
    "below range": ((a(0, 6), W, 1), {}),
    "above range": ((a(5, 6), W, 1), {}),
    "multiple": ((a(2, 7), a(15, 8), 1), {}),
    "derived extent": ((X, a(12, 8), 1), {}),
    "static extent": ((X, a(13, 7), 1), {}),
    "numpy integer": ((X, W, np.int64(3)), {}),
    "bool": ((X, W, True), {}),
    "float": ((X, W, 1.0), {}),
    "negative": ((X, W, -1), {}),
    "huge": ((X, W, 1 << 70), {}),
    "out tuple": ((X, W, 1), {"out": (np.empty((2, 3), np.float32),)}),
    "out shape": ((X, W, 1), {"out": np.empty((3, 2), np.float32)}),
    "out rank": ((X, W, 1), {"out": np.empty(6, np.float32)}),
    "out type": ((X, W, 1), {"out": np.empty((2, 3))}),
    "out strided": ((X, W, 1), {"out": np.empty((2, 6), np.float32)[:, ::2]}),
    "out read-only": ((X, W, 1), {"out": np.broadcast_to(np.zeros((2, 3), np.float32), (2, 3))}),
    "out overlaps": ((ROOM[:12].reshape(2, 6), W, 1), {"out": ROOM[11:17].reshape(2, 3)}),
    "out inside": ((ROOM[:12].reshape(2, 6), W, 1), {"out": ROOM[2:8].reshape(2, 3)}),
    "no threads": ((X, W, 1), {"threads": 0}),
    "threads true": ((X, W, 1), {"threads": True}),
    "threads of numpy": ((X, W, 1), {"threads": np.int64(1)}),
    "threads text": ((X, W, 1), {"threads": "1"}),
    "threads huge": ((X, W, 1), {"threads": 1 << 70}),
    "stream": ((X, W, 1), {"threads": 1, "stream": None}),
    "unknown keyword": ((X, W, 1), {"output": 1}),
    "input by keyword": ((X, W), {"arg2": 1}),
}


def outcome(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", IMPERFECT)
def test_every_other_call_goes_to_python_as_it_is(kind: str, forwarded: list[Any]) -> None:
    fn = matrix()
    args, kwargs = IMPERFECT[kind]
    got = outcome(fn, args, kwargs)
    assert len(forwarded) == 1
    want = outcome(fn._caller.call, args, kwargs)
    if isinstance(want, np.ndarray):
        assert type(got) is type(want) and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    else:
        assert got == want


def test_neighbours_in_memory_do_not_overlap(forwarded: list[Any]) -> None:
    room = a(18)
    assert matrix()(room[6:].reshape(2, 6), W, 7, out=room[:6].reshape(2, 3)).max() == 7
    assert matrix()(room[:12].reshape(2, 6), W, 7, out=room[12:].reshape(2, 3)).max() == 7
    assert not forwarded


@pytest.mark.parametrize("text", ["floordiv(T - 7, 3) + 4", "mod(T - 9, 5) + 1", "min(T, 5) + max(T - 3, 2*S)",
                                  "floordiv(4*S, T)", "mod(S - 8, -3) + 3", "3*T*S - S + 2"])  # fmt: skip
def test_extents_are_computed_as_python_does(text: str, forwarded: list[Any]) -> None:
    fn = compiled([(F, ("T",)), (F, ("S",))], [(F, (text,))], [T, DimInfo("S", 0, 8)])
    for t in (1, 2, 3, 6, 7, 8, 16):
        for s in (0, 1, 5, 8):
            assert fn(a(t), a(s)).shape == (Expr.parse(text).evaluate({"T": t, "S": s}),)
    assert not forwarded


def test_a_negative_extent_or_a_division_by_zero_is_pythons() -> None:
    fn = compiled([(F, ("T",))], [(F, ("T - 3",))], [T])
    with pytest.raises(ShapeError, match=r"shape \(-1,\) at T = 2"):
        fn(a(2))
    fn = compiled([(F, ("S",))], [(F, ("floordiv(8, S)",))], [DimInfo("S", 0, 8)])
    assert fn(a(3)).shape == (2,)
    with pytest.raises(ShapeError, match="divides by zero at S = 0"):
        fn(a(0))


def test_sizes_that_may_overflow_have_no_binder() -> None:
    dims = (DimInfo("T", 1, 1 << 31),)
    values = {"target": "", "features": "", "dims": dims, "inputs": (Argument("x", F, ("T",)),), "constants": (), "tables": (),
              "calls": (), "checks": (), "arena": "", "host_object": "", "runtime_object": "", "source": "",
              "dispatch_source": ""}  # fmt: skip
    assert call_path_ir(Program(outputs=(Argument("y", F, ("T", "4")),), **values), [])
    assert not call_path_ir(Program(outputs=(Argument("y", F, ("T", "T")),), **values), [])
    assert not call_path_ir(Program(outputs=(Argument("y", F, ("min(T*T*T, 8)",)),), **values), [])


def test_several_results(forwarded: list[Any]) -> None:
    def body(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
        for i in (1, 2):
            f32(tensors[i], dims[0])[:] = i
        return 0

    fn = compiled([(F, ("T",))], [(F, ("T",)), (F, ("T", "1"))], [T], body)
    x, room = a(3), a(9)
    found = fn(x)
    assert type(found) is tuple and [f.shape for f in found] == [(3,), (3, 1)] and [f.max() for f in found] == [1, 2]
    given = (room[:3], room[3:6].reshape(3, 1))
    b, c = fn(x, out=given)
    assert b is given[0] and c is given[1] and list(room[:6]) == [1, 1, 1, 2, 2, 2]
    assert not forwarded
    fn(x, out=list(given))
    assert len(forwarded) == 1
    with pytest.raises(ShapeError, match=r"out\[1\] overlaps out\[0\]"):
        fn(x, out=(room[:3], room[2:5].reshape(3, 1)))


def test_scalars_are_bit_patterns(forwarded: list[Any]) -> None:
    seen: list[Any] = []
    fn = compiled([(F, ("T",)), (F, None), (F64, None), (DType.I8, None), (I64, None)], [(F, ("T",))], [T],
                  lambda t, s, d, n: seen.append(list(s[:4])) or 0)  # fmt: skip
    fn(a(1), 0.1, -2.5, -3, -4)
    assert not forwarded
    fn(a(1), np.float32(0.1), -2.5, -3, -4)
    fn(a(1), 1e300, float("nan"), 127, (1 << 63) - 1)
    fn._caller.call(a(1), 1e300, float("nan"), 127, (1 << 63) - 1)
    assert len(forwarded) == 2
    assert seen[0] == seen[1] == [0x3DCCCCCD, 0xC004000000000000, 0xFD, 0xFFFFFFFFFFFFFFFC] and seen[2] == seen[3]
    with pytest.raises(Exception, match="200 is not a value of i8"):
        fn(a(1), 0.1, -2.5, 200, 1)


def test_other_element_types_and_rank_zero(forwarded: list[Any]) -> None:
    import ml_dtypes

    fn = compiled([(BF16, ("T",)), (I64, ())], [(BF16, ()), (DType.I1, ("T",))], [T])
    y, z = fn(a(3, dtype=ml_dtypes.bfloat16), np.array(4))
    assert y.shape == () and y.dtype == ml_dtypes.bfloat16 and z.dtype == np.bool_ and z.shape == (3,)
    assert fn(a(3, dtype=ml_dtypes.bfloat16), np.array(4), out=(y, z))[0] is y
    assert not forwarded


def test_constants_stand_between_inputs_and_results(forwarded: list[Any]) -> None:
    def body(t: Any, _s: Any, d: Any, _t: int) -> int:
        f32(t[3], 3)[:] = f32(t[0], 3) + f32(t[1], 3) + f32(t[2], 3)
        return 0

    constants = tuple(Constant(name, F, (3,), name) for name in "uv")
    fn = compiled([(F, ("3",))], [(F, ("3",))], [], body, memory={n: a(3).tobytes() for n in "uv"}, constants=constants)
    np.testing.assert_array_equal(fn(a(3)), 3 * a(3))
    assert not forwarded


def test_a_donated_input_may_be_out(forwarded: list[Any]) -> None:
    fn = vector(lambda *_: 0, donated=((1, 0),))
    x, cache = a(4), a(4)
    assert fn(x, cache, out=cache) is cache
    assert not forwarded
    assert fn(x, cache) is cache
    assert len(forwarded) == 1
    with pytest.raises(ShapeError, match="out overlaps the input arg0"):
        fn(x, cache, out=x)


def test_failures_are_raised_by_python(forwarded: list[Any]) -> None:
    status = [2]
    fn = vector(lambda *_: status[0], checks=(Check("T", "first"), Check("T", "rows must match")))
    out = np.empty(3, np.float32)
    before = sys.getrefcount(out)
    for _ in range(3):
        with pytest.raises(ShapeError, match=r"rows must match \(at T = 3\)"):
            fn(a(3), a(3), out=out)
        with pytest.raises(ShapeError, match=r"rows must match \(at T = 3\)"):
            fn(a(3), a(3))
    assert len(forwarded) == 6 and sys.getrefcount(out) == before
    status[0] = -1
    with pytest.raises(DeviceError, match="out of memory for the temporaries of T = 3"):
        fn(a(3), a(3))


@pytest.mark.parametrize("element", [F, F64, DType.I8, DType.F16])
def test_large_results_begin_at_a_line(element: DType, forwarded: list[Any]) -> None:
    """Inside an array of their own, which lives as long as they do, and whose references and those to element types are kept."""
    fn = compiled([(F, ("T",))], [(element, ("T", "3"))], [DimInfo("T", 0, 1 << 20)])
    dtypes = np.dtype(np.uint8), element.numpy
    held = [sys.getrefcount(d) for d in dtypes]
    kept = []
    for rows in (0, 1, 5461, 5462, 21845, 21846, 100_001):
        made = fn(a(rows))
        assert type(made) is np.ndarray and made.shape == (rows, 3) and made.dtype is element.numpy
        assert made.flags.c_contiguous and made.flags.writeable and made.flags.aligned
        assert made.nbytes < LARGE or made.__array_interface__["data"][0] % LINE == 0
        made[...] = 1
        kept.append(made)
    assert all((made == 1).all() for made in kept) and not forwarded
    del kept, made
    assert held == [sys.getrefcount(d) for d in dtypes]


def test_no_memory_for_a_result_is_a_memory_error(forwarded: list[Any]) -> None:
    fn = compiled([(F, ("T",))], [(F, ("T", "1099511627776", "65536")), (F, ("T",))], [DimInfo("T", 1, 4)])
    with pytest.raises(MemoryError, match=r"shape \(2, 1099511627776, 65536\) and data type float32"):
        fn(a(2))
    assert not forwarded


def test_threads_are_the_least_of_option_and_knob(monkeypatch: pytest.MonkeyPatch, forwarded: list[Any]) -> None:
    monkeypatch.setattr("tilewright.runtime.host.host_caller.affinity", lambda: 12)
    seen: list[int] = []
    body: Body = lambda t, s, d, n: seen.append(n) or 0  # type: ignore[func-returns-value]  # noqa: E731
    free, four = vector(body), vector(body, threads=4)
    for text, wanted in ((None, [12, 4]), ("", [12, 4]), ("3", [3, 3]), ("10", [10, 4]), ("07", [7, 4]), ("400", [12, 4])):
        if text is None:
            monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
        else:
            monkeypatch.setenv("TILEWRIGHT_THREADS", text)
        seen.clear()
        free(a(2), a(2))
        four(a(2), a(2))
        assert seen == wanted
    assert not forwarded
    monkeypatch.setenv("TILEWRIGHT_THREADS", " 2 ")
    free(a(2), a(2))
    assert seen[-1] == 2 and len(forwarded) == 1
    for wrong in ("0", "x", "2x", "-1"):
        monkeypatch.setenv("TILEWRIGHT_THREADS", wrong)
        with pytest.raises(OptionError, match="TILEWRIGHT_THREADS"):
            free(a(2), a(2))


# Waits until the first element of the first tensor is no longer 0: for ever, or %d turns; status 1 when it never was. The first
# element of the second tensor tells whether it was so from the start.
SPIN = """
define i64 @spin(ptr %%table, ptr %%tensors, ptr %%scalars, ptr %%dims, i64 %%threads) {
entry:
  %%x = load ptr, ptr %%tensors
  %%second = getelementptr ptr, ptr %%tensors, i64 1
  %%early = load ptr, ptr %%second
  %%first = load volatile i32, ptr %%x
  store i32 %%first, ptr %%early
  br label %%look
look:
  %%turn = phi i64 [ 0, %%entry ], [ %%next, %%look ]
  %%next = add i64 %%turn, 1
  %%now = load volatile i32, ptr %%x
  %%set = icmp ne i32 %%now, 0
  %%late = icmp ugt i64 %%turn, %d
  %%over = or i1 %%set, %%late
  br i1 %%over, label %%done, label %%look
done:
  %%missed = xor i1 %%set, 1
  %%status = zext i1 %%missed to i64
  ret i64 %%status
}
"""


@pytest.mark.parametrize(("work", "released"), [("4000000*T", True), ("1000*T", False)])
def test_long_calls_let_other_threads_run(work: str, released: bool, forwarded: list[Any]) -> None:
    turns = 5_000_000_000 if released else 50_000_000
    code = load_object([emit_object(SPIN % turns, lowest_level(machine()))])
    check = (Check("T", "never"),)
    fn = compiled([(F, ("T",))], [(F, ("T",))], [T], code.address("spin"), work=work, threads=1, checks=check)
    x, out = np.zeros(2, np.float32), np.empty(2, np.float32)

    def change(start: threading.Event) -> None:
        start.set()
        time.sleep(0.005)
        x[0] = 1

    def call() -> bool:
        """Whether the call began before the other thread wrote, without which it says nothing."""
        x[0] = 0
        start = threading.Event()
        other = threading.Thread(target=change, args=(start,))
        other.start()
        start.wait()
        fn(x, out=out)  # Python, called after a miss, releases the GIL
        other.join()
        return bool(forwarded) or out[0] == 0

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert any(call() for _ in range(50)), "the other thread always came first: this machine is too busy to tell"
    finally:
        sys.setswitchinterval(old)
    assert len(forwarded) == (0 if released else 1)
