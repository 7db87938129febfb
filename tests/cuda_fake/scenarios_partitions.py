"""Partitions as arms of a search for a GPU, on a fake driver, whose events count a microsecond a launch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from cuda_fake.fake_state import FakeState
from cuda_fake.models import DONATED, chain, inputs, product

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.compilation.compilation import Compilation, full_target
from tilewright.compiler.compilation.outlined_model import Cut, outline
from tilewright.compiler.compilation.partitions import alternatives_of, partitions_of
from tilewright.compiler.verification import gpu_models, partition_arms
from tilewright.compiler.verification.gpu_models import GpuModels
from tilewright.compiler.verification.models_beside import Shapes
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.runtime.cuda.cuda_caller import CudaCaller
from tilewright.runtime.cuda.placed_call import PlacedCall
from tilewright.runtime.cuda.replays import Replays, times_beside
from tilewright.runtime.host.benchmark import Timing
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.target import Target
from tilewright.search.database.records import TuningLog

TARGET = "cuda:sm_90a"
RANGE = {"T": (1, 32)}
SHORT = Timing(warmup=0.0, turn=1e-6, fewest=4, longest=60.0)
TESTS = Path(__file__).parents[1]


def rows_of_product() -> ops.Graph:
    """Two launches untuned, and one where a product is to be a kernel with the work on its rows."""
    g = ops.Graph()
    y = ops.matmul(g.input("x", ["T", 64], dtype="f16"), g.input("w", [64, 64], dtype="f16"))
    g.output(y - ops.max(y, [-1], keepdims=True))
    return g


def compilation(log: Path) -> Compilation:
    found = tw.CompileOptions(seconds=2000.0, log=log, builder=LocalBuilder(Target.parse(TARGET)))
    return Compilation(rows_of_product(), RANGE, full_target(TARGET), found)


def caller_of(fn: tw.CompiledFunction) -> CudaCaller:
    found = fn._caller
    assert isinstance(found, CudaCaller)
    return found


def whole_calls_are_timed_in_turns(fake: FakeState) -> None:
    """Two launches against two, and against one: what events say; and a replayed call gives what a call gives."""
    g = ops.Graph()
    x = g.input("x", ["M", 40])
    g.output(ops.exp(x))
    one, two, given = tw.compile(g, {"M": (1, 64)}, target=TARGET), chain(), inputs(9)
    placed = [PlacedCall(caller_of(two), given), PlacedCall(caller_of(two), given), PlacedCall(caller_of(one), given[:1])]
    device = placed[0].device
    for call in placed:
        call.enqueue(device.stream)
    graphs = [Replays(device, call.enqueue) for call in placed]
    fake.log.clear()
    assert graphs[0].seconds(3, before=1) == pytest.approx(6e-6)
    called = [name for name, _ in fake.log if name in ("cuGraphLaunch", "cuEventRecord")]
    assert called == ["cuGraphLaunch", "cuEventRecord", *["cuGraphLaunch"] * 3, "cuEventRecord"]
    assert times_beside(graphs[0], graphs[1], SHORT) == pytest.approx([1.0] * 4)
    assert times_beside(graphs[0], graphs[2], SHORT) == pytest.approx([2.0] * 4)
    fresh = inputs(9, 1)
    for address, values in zip(placed[0]._inputs, fresh, strict=True):
        device.copy_in(address, values)
    graphs[0].seconds(1)
    np.testing.assert_array_equal(device.copy_out(placed[0]._outputs[0], (9, 16), np.float32), product(*fresh))
    for graph, call in zip(graphs, placed, strict=True):
        graph.close()
        call.close()
    assert not fake.errors


def donated_arguments_are_results_where_they_lie(fake: FakeState) -> None:
    fn = tw.compile(DONATED, {"M": (1, 64)}, target=TARGET, donate=("arg0",))
    x = np.arange(8, dtype=np.float32)
    placed = PlacedCall(caller_of(fn), [x, np.ones(8, np.float32)])
    graph = Replays(placed.device, lambda stream: [placed.enqueue(placed.device.stream), placed.enqueue(stream)][1])
    graph.seconds(1)
    assert placed._outputs[0] == placed._inputs[0]
    np.testing.assert_array_equal(placed.device.copy_out(placed._outputs[0], 8, np.float32), x + 2)
    graph.close()
    placed.close()


def products_with_their_rows_are_arms(fake: FakeState, folder: Path) -> None:
    asked = compilation(folder / "log.jsonl")
    own = outline(asked)
    arms = {a.cut.strips: a for a in alternatives_of(own, 8)}
    assert own.graph and len(own.plan.calls) == 2 and StripChoice.WIDELY in arms and StripChoice.NEVER not in arms
    cut = arms[StripChoice.WIDELY].cut
    assert len(outline(asked, cut).plan.calls) == 1 and (cut.way, cut.apart) == (own.cut.way, own.cut.apart)
    assert arms[StripChoice.WIDELY].predicted > 1


def what_gains_on_the_gpu_is_taken_and_the_log_tells_it_elsewhere(fake: FakeState, folder: Path) -> None:
    """One launch in place of two; the process that measures has a driver of its own."""
    path = folder / "log.jsonl"
    arms = [a for a in alternatives_of(outline(compilation(path)), 8) if a.cut.strips is StripChoice.WIDELY]
    with (mock.patch.object(gpu_models, "MODEL_WORKER", "cuda_fake.model_worker"),
          mock.patch.dict(os.environ, PYTHONPATH=str(TESTS)),
          mock.patch.object(partition_arms, "alternatives_of", lambda *_: arms)):
        found, _ = partition_arms.measured_cut(compilation(path), LocalBuilder(Target.parse(TARGET)))
        [record] = TuningLog(path).cuts
        assert not record.wrong and record.taken and record.ratio == pytest.approx(0.5), record
        assert record.device == "cuda:sm_90a fake sm_90a, 132 multiprocessors"
        assert found.cut.strips is StripChoice.WIDELY and found.cut.measured == pytest.approx(0.5)
        again, _ = partition_arms.measured_cut(compilation(path), LocalBuilder(Target.parse(TARGET)))
    assert len(TuningLog(path).cuts) == 1 and again.cut == found.cut and again.cut.measured == pytest.approx(0.5)
    with mock.patch.object(partition_arms, "environment", lambda _: pytest.fail("a compile with a log needs no GPU")):
        fn = tw.compile(rows_of_product(), RANGE, target=TARGET, options={"log": path})
    assert len(fn.program.calls) == 1 and fn.program.asked.measured == pytest.approx(0.5)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((7, 64)).astype(np.float16), (rng.standard_normal((64, 64)) / 8).astype(np.float16)
    y = x.astype(np.float64) @ w
    np.testing.assert_allclose(fn(x, w), y - y.max(-1, keepdims=True), atol=2e-2)
    limits = GpuLimits.of("sm_90a")
    assert [len(p.areas) for p in (partitions_of(fn.program.source, limits, fn.program.asked)[-1],
                                   partitions_of(fn.program.source, limits)[-1])] == [1, 2]


def a_model_that_fails_there_is_not_taken(fake: FakeState, folder: Path) -> None:
    """Its process is replaced; other results are told."""
    near, far = (tw.compile(f"""
        func.func @main(%x: tensor<?xf32> {{tw.dims = ["M"]}}, %y: tensor<?xf32> {{tw.dims = ["M"]}}) -> tensor<?xf32> {{
          %s = linalg.{name} ins(%x, %y : tensor<?xf32>, tensor<?xf32>) outs(%x : tensor<?xf32>) -> tensor<?xf32>
          return %s : tensor<?xf32>
        }}""", {"M": (1, 64)}, target=TARGET) for name in ("add", "sub"))
    shapes, end = Shapes([{"M": 9}], False), time.monotonic() + 60
    with (mock.patch.object(gpu_models, "MODEL_WORKER", "cuda_fake.model_worker"),
          mock.patch.dict(os.environ, PYTHONPATH=str(TESTS)), GpuModels() as models):
        same = models.compare(near, near, shapes, end)
        assert not same.wrong and same.ratio == pytest.approx(1.0) and same.rounds >= 8
        assert "norm of the difference" in models.compare(near, far, shapes, end).wrong
        assert models._process is not None
        models._process.kill()
        models._process._process.wait()
        assert not models.compare(near, near, shapes, end).wrong
        with mock.patch.object(gpu_models, "MODEL_WORKER", "no_such_module"):
            models._end()
            assert "measures models was lost" in models.compare(near, near, shapes, end).wrong
        assert not models.compare(near, near, shapes, end).wrong


def the_emulator_has_no_clock_for_models(fake: FakeState, folder: Path) -> None:
    path = folder / "log.jsonl"
    found = tw.CompileOptions(seconds=400.0, log=path, builder=LocalBuilder(Target.parse("emulator:sm_90a")))
    asked = Compilation(rows_of_product(), RANGE, full_target("emulator:sm_90a"), found)
    built, _ = partition_arms.measured_cut(asked, LocalBuilder(Target.parse("emulator:sm_90a")))
    assert built.cut == Cut() and not path.exists()
