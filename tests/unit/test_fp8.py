"""8-bit floats on the host and on the emulated GPU: conversions as ml_dtypes does them, arithmetic, contractions."""

from __future__ import annotations

import gpu_harness
import ml_dtypes
import numpy as np
import pytest
from gpu_workloads import generic
from kernel_harness import NUMPY, T, empty, load, workload
from tensor_core_workloads import product

import tilewright as tw

pytestmark = pytest.mark.usefixtures("built_here")

KINDS = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}


def elementwise(body: str, source: str, target: str) -> str:
    x, y = T(source, ("M",)), T(target, ("M",))
    made = generic("r", ["(i) -> (i)"] * 2, "p", {"x": x}, ("o", y), body)
    return workload({"x": x}, ("M",), f"{empty('o', y)}\n{made}", {"r": y})


def values(kind: str, source: str) -> np.ndarray:
    """Every number of the format, the middles between neighbours, numbers of all sizes, the ends."""
    everything = np.arange(256, dtype=np.uint8).view(KINDS[kind])
    if source == kind:
        return everything
    rng, exact = np.random.default_rng(0), np.sort(everything.astype(np.float64))
    exact = exact[np.isfinite(exact)]
    spread = [rng.standard_normal(500) * s for s in (1e-8, 1e-5, 1e-3, 1e-2, 1.0, 30.0, 500.0, 6e4)]
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 463.9, 464.0, 464.1, 57344.0, 61439.0, 61440.0, 1e30]
    with np.errstate(over="ignore"):
        return np.concatenate([exact, (exact[1:] + exact[:-1]) / 2, *spread, ends]).astype(NUMPY[source])


def same(got: np.ndarray, want: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a)[~np.isnan(b)], np.signbit(b)[~np.isnan(b)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("source", "target"), [("", "f32"), ("", "f64"), ("", "f16"), ("f32", ""), ("f64", ""), ("f16", ""),
                                                ("bf16", "")])
def test_conversions_are_those_of_ml_dtypes(kind: str, source: str, target: str) -> None:
    source, target = source or kind, target or kind
    op = "extf" if source == kind else "truncf"
    text = elementwise(f"%v = arith.{op} %x0 : {source} to {target}\n linalg.yield %v : {target}", source, target)
    x = values(kind, source)
    with np.errstate(over="ignore", invalid="ignore"):
        want = (x.astype(np.float32) if source in ("f16", "bf16") else x).astype(NUMPY[target])
    got = np.zeros(x.shape, NUMPY[target])
    load(text, "generic")([x], {"M": x.size}, [got])
    same(got, want)
    dims, placed = {"M": x.size}, gpu_harness.Placed
    same(gpu_harness.run(text, "gpu_pointwise{vec=1}", dims, [placed(x)], [placed(got)])[0], want)


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_is_rounded_once(kind: str) -> None:
    body = f"%n = arith.negf %x0 : {kind}\n %p = arith.mulf %x0, %n : {kind}\n %s = arith.addf %p, %x0 : {kind}\n " \
           f"linalg.yield %s : {kind}"
    x = np.linspace(-9, 9, 64).astype(np.float32).astype(KINDS[kind])
    wide = x.astype(np.float32)
    want = ((wide * -wide).astype(KINDS[kind]).astype(np.float32) + wide).astype(KINDS[kind])
    got = np.zeros(64, KINDS[kind])
    load(elementwise(body, kind, kind), "generic")([x], {"M": 64}, [got])
    same(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maps", ["m k,k n,m n", "m k,n k,m n"])
def test_contractions_on_the_host(kind: str, maps: str) -> None:
    case = product(maps, kind)
    dims = {"M": 13, "N": 37, "K": 21}
    x, y = (gpu_harness.random(t, dims, i) for i, t in enumerate(case.inputs))
    got = np.zeros((13, 37), np.float32)
    load(case.text, "host_matmul")([x, y], dims, [got])
    np.testing.assert_allclose(got, case.reference(x.astype(np.float64), y.astype(np.float64)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", ["host", "emulator:sm_80", "emulator:sm_90a"])
def test_a_model_runs_on_every_target(target: str) -> None:
    text = product("m k,k n,m n", "f8E4M3FN", {"n": 24, "k": 40}).text.replace("@workload", "@main")
    fn = tw.compile(text, {"M": (1, 64)}, target=target)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(ml_dtypes.float8_e4m3fn) for s in ((7, 40), (40, 24)))
    np.testing.assert_allclose(fn(x, y, 7), x.astype(np.float32) @ y.astype(np.float32), rtol=1e-5, atol=1e-5)
