"""Calls of programs with many arrays: what native code takes by tables, and that all else has the same outcome through Python."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import numpy as np
import pytest
from call_harness import F, compiled, f32, spied

from tilewright.compiler.host.call_tables import MANY
from tilewright.runtime.call import python_abi
from tilewright.runtime.call.results import _are_apart
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import Constant, DimInfo
from tilewright.runtime.tensor import DType

pytestmark = pytest.mark.skipif(not python_abi.is_supported(), reason="this interpreter is called through Python only")

PAIRS = MANY  # of an input and a result


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    return spied(monkeypatch)


def doubled(donated: bool = False, outputs: int = PAIRS, **fields: Any) -> CompiledFunction:
    """Twice each input, of T or 3 x T elements, plus a constant."""
    def run(tensors: Any, _s: Any, dims: Any, _t: int) -> int:
        for n in range(outputs):
            count = dims[0] * (3 if n % 2 else 1)
            f32(tensors[PAIRS + 1 + n], count)[:] = 2 * f32(tensors[n], count) + f32(tensors[PAIRS], 1)
        return 0

    sizes = [("3", "T") if n % 2 else ("T",) for n in range(PAIRS)]
    pairs = [(n, n) for n in range(outputs)] if donated else []
    return compiled([(F, size) for size in sizes], [(F, size) for size in sizes[:outputs]], [DimInfo("T", 0, 9)], run,
                    constants=(Constant("c", F, (1,), "c"),), memory={"c": np.full(1, 0.5, np.float32).tobytes()},
                    donated=tuple(pairs), **fields)


def given(rows: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    sizes = [(3, rows) if n % 2 else (rows,) for n in range(PAIRS)]
    return [generator.standard_normal(size).astype(np.float32) for size in sizes]


def check(made: Any, arguments: list[Any]) -> None:
    for got, x in zip(made, arguments, strict=False):
        np.testing.assert_array_equal(np.asarray(got), 2 * np.asarray(x) + 0.5)


def test_many_arrays_never_meet_python(forwarded: list[Any]) -> None:
    fn = doubled()
    for rows in (0, 1, 5, 9):
        x = given(rows)
        made = fn(*x)
        out = tuple(np.empty_like(m) for m in made)
        assert type(made) is tuple and len(made) == PAIRS and all(type(m) is np.ndarray and m.flags.owndata for m in made)
        for _ in range(2):
            assert fn(*x, out=out, threads=1) is out
        check(made, x)
        check(out, x)
    held = [sys.getrefcount(a) for a in x], sys.getrefcount(out)
    for _ in range(3):
        fn(*x)
        fn(*x, out=out)
    assert held == ([sys.getrefcount(a) for a in x], sys.getrefcount(out))
    assert not forwarded
    one = doubled(outputs=1)
    x, room = given(4), np.empty(4, np.float32)
    assert one(*x, out=room) is room
    check([room], x)
    check([one(*x)], x)
    assert not forwarded


def test_what_tables_do_not_take_is_said_by_python(forwarded: list[Any]) -> None:
    fn = doubled()
    x = given(5)
    wide = np.zeros((5, 2), np.float32)[:, 0]
    check(fn(wide, *x[1:]), [wide, *x[1:]])  # with gaps: Python makes a copy
    assert len(forwarded) >= 1
    forwarded.clear()
    for bad, error in (([x[0].astype(np.float64), *x[1:]], DTypeError), ([x[0][None], *x[1:]], ShapeError), (x[:-1], DTypeError),
                       ([x[0][:4], *x[1:]], ShapeError), ([*x[:-1], given(4)[-1]], ShapeError), (given(10), ShapeError)):
        with pytest.raises(error):
            fn(*bad)
    out = [np.empty_like(a) for a in x]
    for bad_out in (tuple(out[:-1]), (*out[:-1], np.empty((3, 4), np.float32)), (*out[:-1], x[-1]), (*out[:-1], out[1])):
        with pytest.raises((ShapeError, DTypeError)):
            fn(*x, out=bad_out)
    frozen = np.empty_like(x[2])
    frozen.flags.writeable = False
    with pytest.raises(ShapeError):
        fn(*x, out=(*out[:2], frozen, *out[3:]))
    assert fn(*x, out=out) is not None  # a list goes through Python
    assert len(forwarded) == 12


def test_results_that_take_over_memory(forwarded: list[Any]) -> None:
    fn = doubled(donated=True)
    x = given(5)
    want = [2 * a + 0.5 for a in x]
    out = tuple(x)
    assert fn(*x, out=out) is out and not forwarded
    for got, right in zip(x, want, strict=True):
        np.testing.assert_array_equal(got, right)
    swapped = (*x[:2], x[4], x[3], x[2], *x[5:])  # the memory of another argument
    with pytest.raises(ShapeError):
        fn(*x, out=swapped)
    assert len(forwarded) == 1


def test_shared_memory_is_found_as_python_finds_it(forwarded: list[Any]) -> None:
    """Random places of arrays in one block of memory; results that take over memory among them."""
    chosen = random.Random(0)
    taken = [doubled(donated=donated) for donated in (False, True)]
    agreed = {True: 0, False: 0}
    for number in range(60):
        block = np.zeros(4 * 3 * 9 * PAIRS, np.float32)
        fn, rows = taken[number % 2], chosen.choice((0, 1, 4, 9))
        sizes = [(3, rows) if n % 2 else (rows,) for n in range(PAIRS)]
        order = list(range(2 * PAIRS))
        chosen.shuffle(order)
        spots, at = [0] * len(order), 0
        for n in order:
            spots[n] = at
            at += int(np.prod(sizes[n % PAIRS]))
        if number % 2:
            for n in chosen.sample(range(PAIRS), chosen.randrange(PAIRS)):
                spots[PAIRS + n] = spots[n]
        if number % 3 == 0:
            a, b = chosen.randrange(PAIRS, 2 * PAIRS), chosen.randrange(2 * PAIRS)
            spots[a] = max(0, spots[b] + chosen.choice((-1, 0, 1)))
        views = [block[s : s + int(np.prod(sizes[n % PAIRS]))].reshape(sizes[n % PAIRS]) for n, s in enumerate(spots)]
        spans = [(4 * s, 4 * s + v.nbytes) if v.nbytes else (0, 0) for s, v in zip(spots, views, strict=True)]
        donors = {n: n for n in range(PAIRS)} if number % 2 else {}
        right = _are_apart(spans[:PAIRS], spans[PAIRS:], donors)
        forwarded.clear()
        for _ in range(2):
            try:
                fn(*views[:PAIRS], out=tuple(views[PAIRS:]))
                assert right, number
            except ShapeError:
                assert not right, number
        assert bool(forwarded) is not right
        agreed[right] += 1
    assert min(agreed.values()) > 5


def test_tensors_go_through_tables(forwarded: list[Any]) -> None:
    torch: Any = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch is called through Python only")
    fn = doubled()
    x = [torch.from_numpy(a) for a in given(5)]
    check(fn(*x), x)
    forwarded.clear()
    made = fn(*x)
    assert all(type(m) is torch.Tensor for m in made)
    check(made, x)
    out = tuple(torch.empty_like(a) for a in x)
    assert fn(*x, out=out) is out
    check(out, x)
    with torch.no_grad():
        check(fn(torch.nn.Parameter(x[0]), *x[1:]), x)
    assert type(fn(x[0].numpy(), *x[1:])[0]) is torch.Tensor
    assert not forwarded
    flipped = torch.ones(5, dtype=torch.complex64).conj().imag
    for wrong in (flipped, torch.ones(5, requires_grad=True), torch.ones(5, dtype=torch.float64), torch.ones(4)):
        with pytest.raises((DTypeError, ShapeError)):
            fn(wrong, *x[1:])
    assert len(forwarded) >= 4
    given_over = doubled(donated=True)
    given_over(*x, out=tuple(x))
    forwarded.clear()
    want = [2 * a + 0.5 for a in x]
    given_over(*x, out=tuple(x))
    assert not forwarded and all(torch.equal(a, b) for a, b in zip(x, want, strict=True))
    gc.collect()


def test_other_types_than_those_of_tensors_stay_with_code_for_each() -> None:
    fn = compiled([(DType.F32, ("T",))] * 2, [(DType.F32, ("T",))], [DimInfo("T", 1, 9)])
    assert fn(np.ones(3, np.float32), np.ones(3, np.float32)).shape == (3,)
