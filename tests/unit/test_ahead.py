"""Elements that are moved, or computed in a few steps: vectors are loaded before those in front of them are stored."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops

EXTENTS = (1, 7, 8, 31, 32, 33, 63, 64, 65, 97, 128, 200, 4096, 4129)


def joined(two: ops.Tensor, one: ops.Tensor) -> ops.Tensor:
    return ops.concat([two, one], 1)


def clamped(two: ops.Tensor, one: ops.Tensor) -> ops.Tensor:
    return ops.maximum(two, one)


@pytest.fixture(scope="module", params=[joined, clamped])
def compiled(request: pytest.FixtureRequest) -> tw.CompiledFunction:
    g = ops.Graph()
    g.output(request.param(g.input("x", [3, "N"]), g.input("y", [3, "N"])))
    return tw.compile(g, {"N": tw.Dim(0, 8192)}, options=tw.CompileOptions(threads=1))


def placed(shape: tuple[int, ...], offset: int) -> np.ndarray:
    """Floats that begin so many bytes behind a page."""
    room = np.zeros(4 * int(np.prod(shape)) + 2 * 4096, np.uint8)
    begin = -room.ctypes.data % 4096 + offset
    return room[begin : begin + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


@pytest.mark.parametrize("offset", [0, 16, 32, 260, 2064])
def test_every_element_comes_from_its_place(compiled: tw.CompiledFunction, offset: int) -> None:
    rng = np.random.default_rng(offset)
    for n in (0, *EXTENTS):
        x, y = placed((3, n), 0), placed((3, n), 0)
        x[...], y[...] = rng.standard_normal(x.shape), rng.standard_normal(y.shape)
        joins = compiled.outputs[0].dims[-1] != compiled.inputs[0].dims[-1]
        want = np.concatenate([x, y], 1) if joins else np.maximum(x, y)
        out = placed(want.shape, offset)
        compiled(x, y, out=out)
        np.testing.assert_array_equal(out, want)


def test_long_runs_that_are_put_together_are_moved_by_memcpy(compiled: tw.CompiledFunction) -> None:
    """Where their places lie well apart modulo a page, as at the largest offset above: `rep movsb` takes 12 times as long on
    Zen 3 where the target begins 16 bytes, modulo 4096, behind the source."""
    joins = compiled.outputs[0].dims[-1] != compiled.inputs[0].dims[-1]
    kernels = {k.object for t in compiled.program.tables for k in t.kernels}
    assert kernels and all((b"memcpy" in bytes(compiled._bundle.code[name])) == joins for name in kernels)


def test_threads_that_begin_and_end_within_a_row_move_their_part_of_it() -> None:
    g = ops.Graph()
    g.output(joined(g.input("x", ["R", "N"]), g.input("y", ["R", "M"])))
    dims = {"R": tw.Dim(0, 8), "N": tw.Dim(0, 1 << 20), "M": tw.Dim(0, 1 << 20)}
    rng = np.random.default_rng(0)
    for threads in (1, 2):
        fn = tw.compile(g, dims, options=tw.CompileOptions(threads=threads))
        for r, n, m in ((1, 200_000, 300_001), (3, 100_003, 4095), (5, 0, 65_537), (7, 40_960, 0), (0, 9, 9), (2, 0, 0)):
            x, y = (rng.standard_normal((r, k)).astype(np.float32) for k in (n, m))
            np.testing.assert_array_equal(fn(x, y), np.concatenate([x, y], 1))
