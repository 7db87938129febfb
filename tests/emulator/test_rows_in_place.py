"""Rows whose results lie where donated arguments did: bits are those of results with memory of their own, nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from gpu_harness import build
from gpu_operands import Placed, launch, place, random
from gpu_workloads import over_operands
from gpu_workloads import rows as rows_of

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.emulator.emulator_device import EmulatorDevice
from tilewright.runtime.gpu.gpu_caller import GpuCaller

pytestmark = pytest.mark.usefixtures("built_here")

GPUS = ("emulator:sm_90a", "emulator:sm_80")
SIZES = ((300, 48), (7,), (1, 48), (129, 80), (48,), (1,), (2, 17), (300,))


def norm(g: ops.Graph, columns: int) -> None:
    """Three sweeps; what the last one stores is read by all."""
    x, y = g.input("x", ["T", columns]), g.input("y", ["T", columns])
    z = x + y
    centred = z - ops.mean(z, [1], keepdims=True)
    g.output(centred / ops.sqrt(ops.mean(centred * centred, [1], keepdims=True) + 1e-5), name="z")


def softmax(g: ops.Graph, columns: int) -> None:
    """Exponentials are kept between sweeps; one result could be stored by the second of three, after which its place is read."""
    x, y = g.input("x", ["T", columns]), g.input("y", ["T", columns])
    e = ops.exp(x - ops.max(x, [1], keepdims=True))
    g.output(x * (e / ops.sum(e, [1], keepdims=True)) + y, name="share")
    g.output(y - ops.max(x, [1], keepdims=True), name="lowered")


def moved(g: ops.Graph, columns: int) -> None:
    """New moments beside sums down the rows of what they are made of."""
    x, y = g.input("x", ["T", columns]), g.input("y", ["T", columns])
    new = 0.9 * x + 0.1 * y
    g.output(new, name="x1")
    g.output(0.9 * y + 0.1 * y * new, name="y1")
    g.output(ops.sum(new * y, [0]), name="along")


def statistics(g: ops.Graph, columns: int) -> None:
    """As a batch norm has them: an element a row, and the second reads what the first one was."""
    x, mean, spread = g.input("x", ["T", columns]), g.input("mean", ["T"]), g.input("spread", ["T"])
    now = ops.mean(x, [1], keepdims=True)
    centred = x - now
    square = ops.mean(centred * centred, [1], keepdims=True)
    g.output(centred / ops.sqrt(square + 1e-5), name="z")
    now, square = (ops.reshape(v, ["T"]) for v in (now, square))
    g.output(0.9 * mean + 0.1 * now, name="mean1")
    g.output(0.9 * spread + 0.1 * square + 0.01 * (now - mean) * (now - mean), name="spread1")


def followed(g: ops.Graph, columns: int) -> None:
    """A state of each row that sums of the row read after it is known what it will be, beside sums down the rows."""
    x, state = g.input("x", ["T", columns]), g.input("state", ["T"])
    new = 0.9 * state + 0.1 * ops.max(x, [1])
    centred = x - ops.reshape(new, ["T", 1])
    g.output(new, name="state1")
    g.output(ops.sum(centred * centred, [1]) + state, name="far")
    g.output(ops.sum(x, [0]), name="along")


def lamb(sizes: Sequence[tuple[int, ...]] = SIZES) -> ops.Graph:
    g = ops.Graph()
    for n, size in enumerate(sizes):
        value, gradient, first, second = (g.input(f"{name}{n}", list(size)) for name in ("value", "gradient", "first", "second"))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient * gradient
        update = first / (ops.sqrt(second) + 1e-6) + 0.01 * value
        trust = ops.sqrt(ops.sum(value * value)) / (ops.sqrt(ops.sum(update * update)) + 1e-12)
        for name, made in (("value", value - 0.001 * trust * update), ("first", first), ("second", second)):
            g.output(made, name=f"new_{name}{n}")
    return g


def called(fn: tw.CompiledFunction, target: str, given: Sequence[np.ndarray], seed: int | None) -> Sequence[np.ndarray]:
    """Results of a call that may write over what it is given. seed: of the order in which the emulator runs warps."""
    taken = [x.copy() for x in given]
    if target == "host":
        found = fn(*taken, threads=1 if seed is None else 2)
    else:
        found = GpuCaller(fn.program, fn._bundle.code, fn._bundle.constants,
                          EmulatorDevice(target.partition(":")[2], seed=seed))(*taken)
    return found if isinstance(found, tuple | list) else (found,)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["host", *GPUS])
@pytest.mark.parametrize(("build", "donated"), [(norm, ("x",)), (softmax, ("x", "y")), (moved, ("x", "y")),
                                                (statistics, ("mean", "spread")), (followed, ("state",))])
@pytest.mark.parametrize("columns", [3, 20, 33, 96, 515])
def test_rows_are_written_over(build: Callable[[ops.Graph, int], None], donated: tuple[str, ...], columns: int,
                               target: str) -> None:
    functions = []
    for names in ((), donated):
        g = ops.Graph()
        build(g, columns)
        functions.append(tw.compile(g, {"T": tw.Dim(1, 300)}, target=target, donate=names))
    plain, over = functions
    assert build not in (norm, statistics) or over.memory(T=300).arena == plain.memory(T=300).arena
    rng = np.random.default_rng(columns)
    for rows in (1, 5, 77, 300):
        given = [rng.standard_normal([e.evaluate({"T": rows}) for e in a.spec().dims]).astype(np.float32) for a in plain.inputs]
        wanted = called(plain, target, given, None)
        for seed in (None, 1):
            for a, b in zip(called(over, target, given, seed), wanted, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", ["host", "emulator:sm_90a"])
def test_states_of_rows_that_blocks_share(target: str) -> None:
    """Every sweep over rows this long is a launch of a GPU, which computes again what follows from those before it."""
    functions = []
    for donated in ((), ("mean", "spread")):
        g = ops.Graph()
        statistics(g, 1 << 16)
        functions.append(tw.compile(g, {"T": tw.Dim(1, 2)}, target=target, donate=donated))
    plain, over = functions
    assert target == "host" or any("blocks=16" in k.config for t in over.program.tables for k in t.kernels)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(size).astype(np.float32) for size in ((2, 1 << 16), (2,), (2,))]
    wanted = called(plain, target, given, None)
    for seed in (None, 1, 2):
        for a, b in zip(called(over, target, given, seed), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("target", ["host", *GPUS])
def test_a_step_of_lamb_copies_nothing(target: str) -> None:
    names = [f"{name}{n}" for n in range(len(SIZES)) for name in ("value", "first", "second")]
    plain, over = (tw.compile(lamb(), target=target, donate=donated) for donated in ((), names))
    assert over.memory().arena - plain.memory().arena < 1000  # units of work need lines of memory
    assert over.explain().launches == plain.explain().launches
    rng = np.random.default_rng(0)
    given = [rng.random(tuple(map(int, t.dims))).astype(np.float32) for t in over.inputs]
    wanted = called(plain, target, given, None)
    for seed in (None, 1, 2):
        for a, b in zip(called(over, target, given, seed), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["softmax", "layernorm"])
@pytest.mark.parametrize("config", [
    "threads=128 per-row=64 vec=1", "threads=128 per-row=16 vec=2 unroll=1", "threads=64 per-row=4 vec=1",
    "threads=256 per-row=64 vec=4 vectors-in-registers=1 unroll=1", "threads=64 per-row=16 vec=1 blocks=2"])
def test_rows_that_do_not_fill_a_block(kind: str, config: str) -> None:
    """Threads beyond the last row read what others may have written over, and change nothing."""
    case, dims = rows_of(kind), {"M": 5, "N": 96}
    inputs = [Placed(random(t, dims, n)) for n, t in enumerate(case.inputs)]
    found = []
    for text, seeds in ((case.text, (None,)), (over_operands(case).text, (None, 1, 2, 3))):
        built = build(text, f"gpu_rows{{{config}}}")
        for seed in seeds:
            device = EmulatorDevice("sm_80", seed=seed)
            setup = place(device, built.kernel, dims, inputs, [Placed(random(t, dims)) for t in case.results])
            at = setup.pointers[0 if text != case.text else len(inputs)]
            for number, p in enumerate(built.kernel.params):
                if p.kind == "pointer" and p.index == len(inputs):
                    setup.args[number] = at
            launch(device, built.kernel, built.code, dims, setup.args)
            found.append(device.copy_out(at, (dims["M"], dims["N"]), np.float32))
    np.testing.assert_allclose(found[0], case.reference(*(p.array.astype(np.float64) for p in inputs)), rtol=1e-4, atol=1e-5)
    assert {f.tobytes() for f in found} == {found[0].tobytes()}
