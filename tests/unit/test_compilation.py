from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.host import host_plan
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import DeviceError, OptionError
from tilewright.runtime.host.host_cpu import machine
from tilewright.runtime.load import devices
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target

HOST = Target.parse("host")


def graph() -> ops.Graph:
    g = ops.Graph()
    hidden = ops.dense(g.input("x", ["M", 8]), g.input("w", [8, 8]), activation="relu")
    g.output(ops.softmax(ops.dense(hidden, g.input("v", [8, 8]))))
    return g


def test_what_watches_a_compile_decides_nothing() -> None:
    watched = tw.CompileOptions(progress=print, callback=lambda *_: None, builder=LocalBuilder(HOST))
    plain = tw.CompileOptions()
    assert watched == plain and hash(watched) == hash(plain) and repr(watched) == repr(plain)
    keys = {Compilation(graph(), {"M": (1, 8)}, HOST, options).key() for options in (watched, plain)}
    assert len(keys) == 1


def test_a_model_for_another_architecture_is_saved_and_not_called(tmp_path: Path) -> None:
    fn = tw.compile(graph(), {"M": (1, 8)}, "host:aarch64" if machine() == "x86_64" else "host:x86-64")
    fn.save(tmp_path / "there.tw")
    given = [np.ones(shape, np.float32) for shape in ((3, 8), (8, 8), (8, 8))]
    for call in (fn, fn.call_flat, fn):
        with pytest.raises(DeviceError, match=rf"was compiled for \w+ and this machine is {machine()}: save it"):
            call(*given)
    assert fn.memory({"M": 3}, threads=2) == fn.memory({"M": 3}, threads=np.int64(2))
    assert "host_" in str(fn.explain({"M": 3}))
    with pytest.raises(OptionError, match="threads: wanted an integer >= 1"):
        fn.memory({"M": 3}, threads=0)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the fork handler of the other architecture ran"


def test_a_model_for_a_cpu_with_more_features_is_saved_and_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = "x86-64-v2" if machine() == "x86_64" else "aarch64"  # what any CPU has that the tests run on
    here = tw.compile(graph(), {"M": (1, 8)}, f"host:{level}")
    monkeypatch.setattr(devices, "missing_features", lambda required: ("avx10",) if "+" in required else ())
    fn = tw.compile(graph(), {"M": (1, 8)}, f"host:{level}")
    given = [np.ones(shape, np.float32) for shape in ((3, 8), (8, 8), (8, 8))]
    for call in (fn, fn.call_flat):
        with pytest.raises(DeviceError, match="was compiled for a CPU with avx10 and this one has not: save it"):
            call(*given)
    fn.save(tmp_path / "there.tw")
    loaded = tw.load(tmp_path / "there.tw")  # which looks for itself
    np.testing.assert_array_equal(loaded(*given), here(*given))
    here.reload(tmp_path / "there.tw")
    assert tw.compile(graph(), {"M": (1, 8)})(*given).shape == (3, 8), "nothing is asked of what is for this machine"


def test_a_search_for_another_cpu_is_refused() -> None:
    other = "aarch64" if machine() == "x86_64" else "x86-64"
    with pytest.raises(DeviceError, match=f"target host:{other}: a search measures kernels on this machine, which lacks"):
        tw.tune(graph(), {"M": (1, 8)}, f"host:{other}", seconds=5)


def test_the_budget_of_a_search_counts_from_when_it_was_asked_for() -> None:
    def left(seconds: float | None, ago: float) -> float | None:
        asked = time.monotonic() - ago
        return Compilation(graph(), {"M": (1, 8)}, HOST, tw.CompileOptions(seconds=seconds), asked=asked).seconds_left

    assert left(None, 5.0) is None and left(20.0, 50.0) == 0.0
    assert left(900.0, 300.0) == pytest.approx(600.0, abs=60.0)


def test_everything_else_is_in_the_key() -> None:
    one = np.ones((8, 8), np.float32)
    asked = [
        Compilation(graph(), {"M": (1, 8)}, HOST),
        Compilation(graph(), {"M": (1, 9)}, HOST),
        Compilation(graph(), {"M": (1, 8)}, Target.parse("cuda:sm_80")),
        Compilation(graph(), {"M": (1, 8)}, HOST, tw.CompileOptions(seed=1)),
        Compilation(graph(), {"M": (1, 8)}, HOST, constants={"arg1": one}),
        Compilation(graph(), {"M": (1, 8)}, HOST, constants={"arg1": 2 * one}),
        Compilation(graph(), {"M": (1, 8)}, HOST, constants={"arg2": one}),
        Compilation(graph(), {"M": (1, 8)}, HOST, donate=("arg0",)),
        Compilation(graph(), {"M": (1, 8)}, HOST, function="main"),
    ]
    assert len({c.key() for c in asked}) == len(asked)


def test_a_gpu_target_names_its_architecture() -> None:
    assert full_target("emulator:sm_80") == Target.parse("emulator:sm_80")
    with pytest.raises(OptionError, match="name the architecture, as in emulator:sm_90a"):
        full_target("emulator")


def test_operators_and_their_uses() -> None:
    model = outline(Compilation(graph(), {"M": (1, 8)}, HOST))
    assert len(model.plan.calls) == 3 and len({w.key for w in model.workloads}) == len(model.workloads)
    assert {w.key for w in model.workloads} == {c.workload.key for c in model.plan.calls} == set(model.uses)
    assert all(set(use.values()) == {Expr.dim("M")} for uses in model.uses.values() for use in uses)


def test_the_passes_output_is_planned_once_and_never_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, run, plans, texts = ir.Module.parse, host_plan._Planner.run, [], []

    def counted(text: str, *args: object) -> ir.Module:
        texts.append(text)
        return parse(text, *args)

    def planned(planner: host_plan._Planner) -> host_plan.HostPlan:
        plans.append(planner)
        return run(planner)

    monkeypatch.setattr(ir.Module, "parse", staticmethod(counted))
    monkeypatch.setattr(host_plan._Planner, "run", planned)

    class Unread(LocalBuilder):
        def build(self, candidates, seconds=None):  # type: ignore[no-untyped-def]
            kept = list(texts)
            built = super().build(candidates, seconds)
            texts[:] = kept  # kernels are built from texts of their own
            return built

    tw.compile(graph(), {"M": (1, 8)}, options=tw.CompileOptions(builder=Unread(HOST)))
    assert len(plans) == 1
    assert not [t for t in texts if "tw.key" in t] and len(texts) == 4
