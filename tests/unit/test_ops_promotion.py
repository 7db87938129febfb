"""Promotion of element types, casts, and unsigned integers: compiled, against NumPy and torch."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.compiler.ops.promotion import Promotion, promote_types, result_type
from tilewright.runtime.errors import DTypeError
from tilewright.runtime.tensor import DType

pytestmark = pytest.mark.usefixtures("built_here")

COMMON = [d for d in DType if d.value not in ("f8E4M3FN", "f8E5M2", "bf16", "ui16", "ui32", "ui64")]


def test_the_lattice_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    known = {d: getattr(torch, d.numpy.name) for d in [*COMMON, DType.BF16]}
    back = {t: d for d, t in known.items()}
    for a, b in itertools.product(known, known):
        assert promote_types(a, b) is back[torch.promote_types(known[a], known[b])], (a, b)


def test_the_lattice_is_numpy_s() -> None:
    kinds = [*COMMON, DType.U16, DType.U32, DType.U64]
    for a, b in itertools.product(kinds, kinds):
        assert promote_types(a, b, "numpy").numpy == np.promote_types(a.numpy, b.numpy), (a, b)


@pytest.mark.parametrize(("dtype", "number", "torch", "numpy"), [
    (DType.I1, True, DType.I1, DType.I1), (DType.I1, 2, DType.I64, DType.I64), (DType.I8, 2, DType.I8, DType.I8),
    (DType.I32, 0.5, DType.F32, DType.F64), (DType.F16, 0.5, DType.F16, DType.F16), (DType.F16, 3, DType.F16, DType.F16),
])
def test_numbers_promote_across_categories_only(dtype: DType, number: float, torch: DType, numpy: DType) -> None:
    assert result_type("x", [dtype], [number]) is torch
    assert result_type("x", [dtype], [number], "numpy") is numpy


def test_a_strict_graph_promotes_nothing() -> None:
    g = ops.Graph(promotion=Promotion.STRICT)
    x, i = g.input("x", ["N"]), g.input("i", ["N"], "i32")
    with pytest.raises(DTypeError, match="add: operands of f32 and i32; cast"):
        x + i
    with pytest.raises(DTypeError, match="add: a number of f32 beside operands of i32"):
        i + 0.5
    with pytest.raises(DTypeError, match="no integer type holds both ui64 and i8"):
        promote_types("ui64", "i8")


KINDS = ["i1", "i8", "i32", "i64", "ui8", "ui32", "ui64", "f16", "f32", "f64"]


def spread(kind: str) -> Given:
    """Values near the ends of the type and around zero; floats beyond what narrow integers hold, but within i64."""
    dtype = DType(kind)

    def make(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if dtype is DType.I1:
            return random.integers(0, 2, shape).astype(bool)
        if dtype.is_float:
            return (random.uniform(-1, 1, shape) * random.choice([0.7, 90, 40000], shape)).astype(dtype.numpy)
        lo, hi = dtype.limits
        near = np.array([lo, lo + 1, hi, hi - 1, hi // 2, 3, 0], object)
        return near[random.integers(0, len(near), shape)].astype(dtype.numpy)

    return Given(["N"], kind, make)


def test_every_cast() -> None:
    checks = Checks({f"x{k}": spread(k) for k in KINDS}, {"N": (0, 64)})
    for source, target in itertools.permutations(KINDS, 2):
        kind = DType(target).numpy

        def want(a: dict[str, np.ndarray], _: object, source: str = source, kind: np.dtype = kind) -> np.ndarray:
            x = a[f"x{source}"]
            if DType(source).is_float and kind.kind in "iu":  # as C on x86: through i32 or i64, then the low bits
                wide = x.astype("f8")
                if kind == np.uint64:
                    return wide.astype("i8").astype(kind)
                through = "i8" if kind.kind == "u" or kind.itemsize == 8 else "i4"
                return wide.astype(through).astype(kind)
            return x.astype(kind)

        checks.add(f"{source} to {target}", ops.cast(checks[f"x{source}"], target), want)
    checks.run([{"N": 0}, {"N": 1}, {"N": 61}])


def test_floats_that_no_integer_holds() -> None:
    def make(_: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.resize(np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e19, 1.5e19, -1e19, 7.9]), shape)

    checks = Checks({"x": Given(["N"], "f64", make), "y": Given(["N"], "f32", make)}, {"N": (1, 40)})
    least = {"i32": -(1 << 31), "i64": -(1 << 63)}
    for target, low in least.items():
        for name in "xy":
            def want(a: dict[str, np.ndarray], _: object, low: int = low, name: str = name) -> np.ndarray:
                fits = (a[name] >= low) & (a[name] < -low)
                whole = np.where(fits, a[name], 0).astype("i8")
                return np.where(fits, whole, low).astype("i4" if low == least["i32"] else "i8")

            checks.add(f"{name} to {target}", ops.cast(checks[name], target), want)
    checks.add("large to ui64", ops.cast(ops.maximum(ops.minimum(checks["x"], 1.5e19), 0.0) * 1.0, "ui64"),
               lambda a, _: np.where(np.isnan(a["x"]), 1 << 63,
                                     np.nan_to_num(np.clip(a["x"], 0, 1.5e19)).astype("u8")).astype("u8"))
    checks.run([{"N": 9}, {"N": 33}])


def test_mixed_operands_meet_in_the_promoted_type() -> None:
    kinds = ["i1", "i8", "ui8", "i32", "i64", "f16", "f32", "f64"]
    checks = Checks({f"x{k}": Given(["N"], k) for k in kinds}, {"N": (1, 40)})
    for a, b in itertools.combinations(kinds, 2):
        dtype = promote_types(a, b).numpy
        for name, function in (("add", operator.add), ("multiply", operator.mul)):
            checks.add(f"{a} {name} {b}", function(checks[f"x{a}"], checks[f"x{b}"]),
                       lambda v, _, a=a, b=b, f=function, d=dtype: f(v[f"x{a}"].astype(d), v[f"x{b}"].astype(d)))
    checks.add("i32 + 0.5", checks["xi32"] + 0.5, lambda v, _: (v["xi32"] + 0.5).astype("f4"))
    checks.add("bool + 2", checks["xi1"] + 2, lambda v, _: v["xi1"] + np.int64(2))
    checks.add("where", ops.where(checks["xi1"], checks["xi32"], checks["xf16"]),
               lambda v, _: np.where(v["xi1"], v["xi32"], v["xf16"]).astype("f2"))
    checks.run([{"N": 1}, {"N": 37}])


def test_unsigned_arithmetic_wraps_and_orders_without_a_sign() -> None:
    checks = Checks({f"{n}{k}": spread(k) for k in ("ui8", "ui16", "ui32", "ui64") for n in "ab"}, {"N": (1, 64)})
    for kind in ("ui8", "ui16", "ui32", "ui64"):
        a, b = checks[f"a{kind}"], checks[f"b{kind}"]
        pairs = [(a + b, np.add), (a - b, np.subtract), (a * b, np.multiply), (ops.maximum(a, b), np.maximum),
                 (ops.minimum(a, b), np.minimum), (ops.compare(a, b, "lt"), np.less), (ops.compare(a, b, "ge"), np.greater_equal),
                 (ops.divide(a, ops.maximum(b, 1)), lambda a, b: a // np.maximum(b, 1)), (ops.max(a), lambda a, _: a.max()),
                 (ops.min(a), lambda a, _: a.min())]
        for number, (tensor, want) in enumerate(pairs):
            checks.add(f"{kind} {number}", tensor, lambda v, _, w=want, k=kind: w(v[f"a{k}"], v[f"b{k}"]))
    checks.run([{"N": 1}, {"N": 50}])


def test_unsigned_constants_and_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    import tilewright as tw

    g = ops.Graph()
    x = g.input("x", ["N", 3], "ui8")
    g.output(x + g.constant(np.array([250, 1, 2], np.uint8)), ops.cast(x, "f32"))
    fn = tw.compile(g, {"N": (1, 8)})
    given = torch.tensor([[200, 255, 0], [6, 5, 4]], dtype=torch.uint8)
    plus, floats = fn(given)
    assert plus.dtype is torch.uint8 and torch.equal(plus, given + torch.tensor([250, 1, 2], dtype=torch.uint8))
    assert torch.equal(floats, given.float())
    with pytest.raises(DTypeError, match="uint8"):
        fn(given.to(torch.int8))
