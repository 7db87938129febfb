"""Results and the caller's floating-point mode: the bits of calls do not depend on it, and it is what it was afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from floats import MODES, enter, leave, mode, state

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.reference import evaluate
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.float_environment import MXCSR, float_environment
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

pytestmark = [pytest.mark.skipif(machine() != "x86_64", reason="modes are those of MXCSR"),
              pytest.mark.as_shipped]  # what LLVM may move across a change of the mode shows where it optimises

CHECKED = """
func.func @main(%x: tensor<?xf32> {tw.dims = ["T"]}, %f: f32) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %t = tensor.dim %x, %c0 : tensor<?xf32>
  %odd = arith.remsi %t, %c2 : index
  %even = arith.cmpi eq, %odd, %c0 : index
  cf.assert %even, "T is even"
  %e = tensor.empty(%t) : tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.mulf %a, %f : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
"""


def built(model: ops.Graph | str, dims: dict[str, tuple[int, int]]) -> CompiledFunction:
    return tw.compile(model, dims, options=tw.CompileOptions(builder=LocalBuilder(Target.parse("host"))))


def product() -> ops.Graph:
    """A product of subnormal numbers, roots and sums that round, and a NaN of an invalid operation."""
    g = ops.Graph()
    x, w = g.input("x", ["M", 128]), g.input("w", [128, 192])
    h = ops.matmul(x, w)
    g.output(h, ops.softmax(h * 1e30), ops.sqrt(h), ops.sum(x * 1e-10, 1))
    return g


@pytest.fixture(scope="module")
def fn() -> CompiledFunction:
    return built(product(), {"M": (1, 512)})


@pytest.fixture(scope="module")
def checked() -> CompiledFunction:
    return built(CHECKED, {"T": (1, 64)})


RNG = np.random.default_rng(4)
CALLS = [((RNG.standard_normal((m, 128)) * 1e-19).astype("f4"), (RNG.standard_normal((128, 192)) * 1e-20).astype("f4"))
         for m in (3, 300, 512)]


def bits(fn: CompiledFunction, threads: int | None) -> list[bytes]:
    return [b"".join(r.tobytes() for r in fn(*call, threads=threads)) for call in CALLS]


def in_child(check: Callable[[], bool]) -> bool:
    """Does it hold in a forked process, whose pool has no workers yet?"""
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", MODES)
def test_the_bits_do_not_depend_on_the_mode_of_any_thread(fn: CompiledFunction, name: str) -> None:
    """Set while the workers are made and not after, after and not before, and both."""
    wanted = bits(fn, 1)
    assert sum(np.count_nonzero((np.abs(r) < 2e-38) & (r != 0)) for r in fn(*CALLS[1])[:1]) > 1000

    def before() -> bool:
        enter(MODES[name])
        kept = state()
        right = [bits(fn, 2), bits(fn, 1), bits(fn, None)] == [wanted] * 3 and state() == kept
        leave()
        return right and all(bits(fn, threads) == wanted for threads in (2, 1) * 5)

    assert in_child(before)
    assert bits(fn, 2) == wanted
    enter(MODES[name])
    kept = state()
    found = [bits(fn, threads) for threads in (2, 1, None)]
    after = state()
    leave()
    assert found == [wanted] * 3 and kept == after


@pytest.mark.parametrize("name", ["both", "up", "traps"])
def test_the_mode_comes_back_after_errors(checked: CompiledFunction, name: str) -> None:
    x = np.ones(3, np.float32)
    for given, error in (((x, 1.0), "T is even"), ((np.ones(65, "f4"), 1.0), "65"), ((x, "1"), "number")):
        enter(MODES[name])
        kept = state()
        try:
            checked(*given)
        except (ShapeError, DTypeError) as raised:
            said = str(raised)
        after = state()
        leave()
        assert error in said and kept == after


@pytest.mark.parametrize("name", MODES)
def test_a_scalar_is_rounded_to_nearest(checked: CompiledFunction, name: str) -> None:
    x = np.ones(2, np.float32)
    for value in (0.1, 1 / 3, 1e-42, -1e-45, 1 + 2.0**-24, 1e39):
        want = checked(x, value).tobytes()
        with mode(name):
            found = checked(x, value).tobytes()
        assert found == want, value


@pytest.mark.parametrize("name", ["up, both", "to zero"])
def test_what_the_compiler_computes_does_not_depend_on_the_mode(name: str) -> None:
    g = ops.Graph()
    w = g.constant(np.linspace(1e-3, 3, 24, dtype="f4").reshape(8, 3))
    g.output(ops.matmul(g.input("x", ["M", 8]), w / 3.0 + w * 1e-38))
    x = np.eye(8, dtype="f4")
    want, exact = built(g, {"M": (1, 8)})(x), evaluate(g.module_text(), [*g.constants.values(), x])
    with mode(name):
        found, again = built(g, {"M": (1, 8)})(x), evaluate(g.module_text(), [*g.constants.values(), x])
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(again[0], exact[0])


def test_the_environment_is_left_by_an_exception_too() -> None:
    for name in MODES:
        enter(MODES[name])
        kept = state()
        try:
            with float_environment():
                inside = state()
                raise KeyError
        except KeyError:
            after = state()
        leave()
        assert inside == (0x37F, MXCSR) and after == kept
