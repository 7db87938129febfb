"""Counts of calls by their shape, and going on with another artifact while others call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from call_harness import F, compiled

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.call.shape_counts import ShapeCounts
from tilewright.runtime.device import LoadedCode
from tilewright.runtime.errors import ArtifactError, OptionError, ShapeError
from tilewright.runtime.host.cpu import HostDevice, load_native
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import DimInfo
from tilewright.runtime.program.traffic import SeenShape, Traffic, model_of
from tilewright.runtime.target import Target

K, N = 32, 48
RNG = np.random.default_rng(0)
W = RNG.standard_normal((K, N)).astype(np.float32)


def model(weights: np.ndarray = W, most: int = 40, **options: object) -> CompiledFunction:
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["M", K]), graph.input("w", [K, N])))
    chosen = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")), **options)  # type: ignore[arg-type]
    return tw.compile(graph, {"M": (1, most)}, constants={"w": weights}, options=chosen)


@pytest.fixture(scope="module")
def fn() -> CompiledFunction:
    return model()


def x(rows: int) -> np.ndarray:
    return RNG.standard_normal((rows, K)).astype(np.float32)


def two_dims(ranges: Sequence[int] = (1 << 20, 1 << 20)) -> CompiledFunction:
    dims = [DimInfo(n, 0, hi, at=(f"arg{i}.0",)) for i, (n, hi) in enumerate(zip("AB", ranges, strict=True))]
    return compiled([(F, ("A",)), (F, ("B",))], [(F, ("A",))], dims)


def seen(fn: CompiledFunction) -> dict[tuple[int, ...], int]:
    return {tuple(s.dims.values()): s.calls for s in fn.traffic().shapes}


def test_native_and_other_calls_are_counted_once_each(fn: CompiledFunction) -> None:
    fn(x(2))
    fn.count()
    for rows, calls in ((3, 5), (40, 2), (1, 1)):
        for _ in range(calls):
            fn(x(rows))
    fn(x(3)[::-1])  # with gaps: native code copies it
    fn(x(3).astype(">f4"))  # another byte order: Python takes it
    fn(x=x(3))
    for wrong in (x(41), x(0)):
        with pytest.raises(ShapeError):
            fn(wrong)
    assert seen(fn) == {(3,): 8, (40,): 2, (1,): 1}
    traffic = fn.traffic()
    assert traffic.calls == sum(leaf.launches for leaf in traffic.leaves) == 11
    assert [s.calls for s in traffic.shapes] == [8, 2, 1]
    fn.count(False)
    fn(x(3))
    with pytest.raises(OptionError, match=r"nothing is counted; call count\(\)"):
        fn.traffic()
    fn.count()
    assert seen(fn) == {}


def test_failed_calls_are_not_counted() -> None:
    fn = compiled([(F, ("T",))], [(F, ("T",))], [DimInfo("T", 0, 100, at=("arg0.0",))], lambda *_: -1)
    fn.count()
    with pytest.raises(tw.errors.DeviceError):
        fn(np.ones(4, np.float32))
    assert seen(fn) == {}


def test_many_shapes_of_two_dims_and_a_full_table() -> None:
    fn = two_dims()
    fn.count(shapes=64)
    wanted: dict[tuple[int, ...], int] = {}
    for _ in range(2000):
        a, b = (int(v) for v in RNG.integers(0, 30, 2))
        wanted[a, b] = wanted.get((a, b), 0) + 1
        fn(np.ones(a, np.float32), np.ones(b, np.float32))
    traffic = fn.traffic()
    found = seen(fn)
    assert traffic.calls == 2000 and traffic.others > 0 and 40 <= len(found) <= 64
    assert all(found[key] <= wanted[key] for key in found)
    fn.count(shapes=4096)
    for key, calls in list(wanted.items())[:500]:
        for _ in range(min(calls, 2)):
            fn(*(np.ones(v, np.float32) for v in key))
    assert seen(fn) == {k: min(c, 2) for k, c in list(wanted.items())[:500]} and fn.traffic().others == 0


def test_no_dims_at_all() -> None:
    fn = compiled([(F, ("3",))], [(F, ("3",))], [])
    fn.count(shapes=1)
    for _ in range(3):
        fn(np.ones(3, np.float32))
    assert seen(fn) == {(): 3}


def test_threads_lose_no_count(fn: CompiledFunction) -> None:
    fn.count()
    inputs = [x(n) for n in (1, 2, 3, 4)]

    def work() -> None:
        for _ in range(300):
            for given in inputs:
                fn(given)
            fn(inputs[0].astype(">f4"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen(fn) == {(1,): 2400, (2,): 1200, (3,): 1200, (4,): 1200}


@pytest.mark.parametrize("shapes", [0, -1, True, 1.5, 1 << 40])
def test_a_number_of_shapes_that_is_none(shapes: int) -> None:
    with pytest.raises(OptionError, match=r"wanted an integer from 1"):
        ShapeCounts(1, shapes)


def test_traffic_as_a_file(tmp_path: Path) -> None:
    one = Traffic((SeenShape({"M": 3}, 3), SeenShape({"M": 4}, 1)), others=2)
    one.save(tmp_path / "t.json")
    assert Traffic.read(tmp_path / "t.json") == one
    assert one.weights() == [({"M": 3}, 0.75), ({"M": 4}, 0.25)]
    both = one.merged(Traffic((SeenShape({"M": 4}, 5),)))
    assert [(s.dims["M"], s.calls) for s in both.shapes] == [(4, 6), (3, 3)] and both.calls == 11
    tw.CompileOptions(traffic=one.weights())
    for text in ("", "{}", '{"shapes": [{"dims": {"M": -1}, "calls": 1}]}', '{"shapes": [], "schema": 3}', "[1]", "\xff"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ArtifactError, match="no traffic of schema 2 or before"):
            Traffic.read(tmp_path / "bad.json")
    with pytest.raises(ArtifactError, match="cannot be read"):
        Traffic.read(tmp_path / "none.json")


def test_traffic_says_of_which_model_it_is(fn: CompiledFunction, tmp_path: Path) -> None:
    other = two_dims()
    for one in (fn, other):
        one.count()
    here, there = fn.traffic(), other.traffic()
    assert here.model is not None and here.model == model_of(model(2 * W, deterministic="batch").program)
    assert here.model.entry == f"(f32[M, {K}]) -> (f32[M, {N}])"
    with pytest.raises(OptionError, match=r"wanted calls of the same model.*f32\[M, 32\].*got those of.*f32\[A\]"):
        here.merged(there)
    assert here.merged(there.of_any_model()).model == here.model
    (tmp_path / "old.json").write_text('{"shapes": [{"dims": {"M": 3}, "calls": 2}], "schema": 1}')
    before = Traffic.read(tmp_path / "old.json")
    assert before.model is None and before.merged(here).model == here.model == here.merged(before).model
    before.refuse_other_model(here.model, "m")


def test_reload_and_rollback(tmp_path: Path) -> None:
    fn, other = model(), model(2 * W)
    fn.save(tmp_path / "same.tw")
    other.save(tmp_path / "other.tw")
    given = x(7)
    first = fn(given)
    fn.count()
    fn.reload(tmp_path / "other.tw")
    np.testing.assert_allclose(fn(given), 2 * first, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fn(x=given), 2 * first, rtol=1e-5, atol=1e-5)
    fn.reload(tmp_path / "same.tw")
    np.testing.assert_array_equal(fn(given), first)
    assert fn.traffic().calls == 3  # counts go on
    fn.rollback()
    np.testing.assert_allclose(fn(given), 2 * first, rtol=1e-5, atol=1e-5)
    fn.rollback()
    np.testing.assert_array_equal(fn(given), first)
    with pytest.raises(OptionError, match="no reload"):
        fn.rollback()


def test_constants_that_both_hold_are_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, loaded = model(), list[int]()
    fn.save(tmp_path / "same.tw")
    fn(x(1))
    before = fn._caller.constant_pointers  # type: ignore[attr-defined]

    def load(device: HostDevice, objects: Sequence[bytes], kernels: Sequence[bytes] = ()) -> LoadedCode:
        loaded.append(len(objects))
        return load_native(objects, kernels)

    monkeypatch.setattr(HostDevice, "load", load)
    fn.reload(tmp_path / "same.tw")
    assert len(loaded) == 1  # and code is loaded once, while others call
    fn(x(1))
    assert fn._caller.constant_pointers == before  # type: ignore[attr-defined]


def test_what_is_no_version_is_refused(fn: CompiledFunction, tmp_path: Path) -> None:
    given = x(5)
    first = fn(given)
    model(most=41).save(tmp_path / "range.tw")
    model(deterministic="batch").save(tmp_path / "batch.tw")
    (tmp_path / "damaged.tw").write_bytes((tmp_path / "range.tw").read_bytes()[:5000])
    for name, reason in (("range", "its dims"), ("batch", "order of sums"), ("damaged", "")):
        with pytest.raises(ArtifactError, match=reason):
            fn.reload(tmp_path / f"{name}.tw")
    np.testing.assert_array_equal(fn(given), first)


def test_reload_while_threads_call(tmp_path: Path) -> None:
    fn, other = model(), model(2 * W)
    paths = [tmp_path / "a.tw", tmp_path / "b.tw"]
    fn.save(paths[0])
    other.save(paths[1])
    given = x(9)
    wanted = [fn(given), other(given)]
    stop, wrong, calls = threading.Event(), list[str](), [0] * 4

    def work(number: int) -> None:
        while not stop.is_set():
            got = fn(given)
            calls[number] += 1
            if not any(np.array_equal(got, w) for w in wanted):
                wrong.append("neither version")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for i in range(12):
        fn.reload(paths[(i + 1) % 2])
    fn.rollback()
    stop.set()
    for t in threads:
        t.join()
    assert not wrong and min(calls) > 0
