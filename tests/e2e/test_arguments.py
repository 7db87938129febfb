"""Odd arguments: each call is right or refused with an error of ours, before anything is copied."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from e2e.argument_attack import cases, function, outcome

from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.load.function import CompiledFunction


@pytest.fixture(scope="module")
def fn() -> CompiledFunction:
    return function()


@pytest.mark.filterwarnings("ignore")
def test_no_odd_call_is_wrong_or_raises_what_is_not_ours(fn: CompiledFunction) -> None:
    drawn = cases(7)
    faults = [(name, said) for name, args, keywords in (next(drawn) for _ in range(400))
              if (said := outcome(fn, args, keywords)) not in ("right", "refused")]
    assert not faults


@pytest.mark.parametrize("x", [
    np.broadcast_to(np.float32(1), (1 << 28, 4)), np.broadcast_to(np.ones((1, 4), ">f4"), (1 << 28, 4)),
    np.broadcast_to(np.float32(1), (5, 1 << 30)),
], ids=["rows", "byte-swapped", "columns"])
def test_nothing_is_copied_before_the_ranges_are_checked(fn: CompiledFunction, x: np.ndarray) -> None:
    w = np.ones(4, np.float32)
    for given, error in (((x, w, 1, 1.0), ShapeError), ((np.broadcast_to(x[:1, :4], (60, 4)), w, 65, 1.0), ShapeError),
                         ((np.broadcast_to(x[:1, :4], (60, 4)), w.astype("f8"), 1, 1.0), DTypeError)):
        tracemalloc.start()
        try:
            with pytest.raises(error):
                fn(*given)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_masks_are_refused(fn: CompiledFunction) -> None:
    x, w = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    hidden = np.ma.masked_array(x, mask=x > 0)
    out = np.empty((3, 4), np.float32), np.empty(4, np.float32)
    for args, given in (((hidden, w, 1, 1.0), {}), ((x, w, np.ma.masked, 1.0), {}), ((x, w, 1, np.ma.masked), {}),
                        ((x, w, 1, 1.0), {"out": (np.ma.masked_array(out[0]), out[1])})):
        with pytest.raises(DTypeError, match=r"got a masked array, whose mask calls do not know; pass .*\.filled\(value\)"):
            fn(*args, **given)
    np.testing.assert_array_equal(fn(hidden.filled(2), w, 1, 1.0)[0], np.full((3, 4), 3))


def test_threads_are_integers_from_one_on(fn: CompiledFunction) -> None:
    given = np.ones((3, 4), np.float32), np.ones(4, np.float32), 1, 1.0
    for good in (1, np.int8(2), np.uint64(3), np.array(1), 10**30):
        assert fn(*given, threads=good)[0].max() == 2
    for bad in (0, -1, True, np.True_, 1.0, "1", None.__class__, [1], float("nan"), -(10**5000)):
        with pytest.raises(OptionError, match="threads: wanted an integer >= 1, or None"):
            fn(*given, threads=bad)
