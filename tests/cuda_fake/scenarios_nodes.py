"""Calls through graphs whose nodes are updated, on a fake driver."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cuda_fake.fake_graphs import GRAPH_BYTES, NODE_BYTES
from cuda_fake.fake_state import FakeState
from cuda_fake.models import CHAIN, inputs, product
from cuda_fake.scenarios_calls import torch_of
from cuda_fake.scenarios_graphs import captured, new_stream
from cuda_fake.structured import compare
from cuda_fake.worker import alone

import tilewright as tw
from tilewright.runtime.errors import DeviceError, GraphWarning


def through_graphs(text: str = CHAIN, dims: Any = None, **options: Any) -> tw.CompiledFunction:
    return tw.compile(text, dims or {"M": (0, 4096)}, target="cuda:sm_90a", options={"graphs": "on", **options})


@contextmanager
def on_stream(torch: Any) -> Iterator[Any]:
    """A stream that is torch's current one."""
    stream, before = new_stream(), torch.current
    torch.current = int(stream.handle)
    yield stream
    stream.sync()
    torch.current = before


def given_tensors(torch: Any, rows: int, seed: int = 0) -> list[Any]:
    return [torch.tensor(a) for a in inputs(rows, seed)]


def one_graph_serves_every_shape(fake: FakeState) -> None:
    fn, torch = through_graphs(), torch_of(fake)
    made = fake.instantiated
    with on_stream(torch) as stream:
        rows = [*range(1, 20), 700, 3, 4096, 64]
        results = [(n, fn(*given_tensors(torch, n, n))) for n in rows]
        stream.sync()
        for n, result in results:
            np.testing.assert_array_equal(result.get(), product(*inputs(n, n)))
    (report,) = fn.graphs().streams
    assert fake.instantiated == made + 1 == made + report.instantiated
    assert report.nodes >= 2
    assert report.bytes >= GRAPH_BYTES + NODE_BYTES * report.nodes
    assert report.launches == report.calls == len(rows)
    assert not fake.errors


def only_what_differs_is_updated(fake: FakeState) -> None:
    """The same call again is the launch of the graph alone; another input is an update of the one node that reads it."""
    fn, torch = through_graphs(), torch_of(fake)
    with on_stream(torch) as stream:
        tensors = given_tensors(torch, 9)
        out = torch.empty((9, 16), torch.float32, tensors[0].device)
        for _ in range(3):
            fn(*tensors, out=out)
        fake.updates.clear()
        fake.log.clear()
        fn(*tensors, out=out)
        assert fake.updates == []
        assert [n for n, _ in fake.log if "Graph" in n or "Launch" in n] == ["cuGraphLaunch"]
        fn(*tensors[:2], torch.tensor(inputs(9)[2]), out=out)
        assert len(fake.updates) == 1
        fake.updates.clear()
        fn(*given_tensors(torch, 10)[:1], *tensors[1:])
        assert len(fake.updates) == 2
        stream.sync()
    assert not fake.errors


def updates_do_not_touch_what_is_in_flight(fake: FakeState) -> None:
    """Twenty calls are enqueued before the first runs."""
    fn, torch = through_graphs(), torch_of(fake)
    with on_stream(torch) as stream:
        fn(*given_tensors(torch, 4000))
        results = [(n, fn(*given_tensors(torch, n, n))) for n in (*range(20, 30), *range(29, 19, -1))]
        assert fake.flights > 10
        stream.sync()
        for n, result in results:
            np.testing.assert_array_equal(result.get(), product(*inputs(n, n)))
    assert not fake.errors


def empty_calls_launch_no_graph(fake: FakeState) -> None:
    fn, torch = through_graphs(), torch_of(fake)
    with on_stream(torch) as stream:
        for n in (5, 5, 0, 0, 6):
            result = fn(*given_tensors(torch, n))
            stream.sync()
            np.testing.assert_array_equal(result.get(), product(*inputs(n)))
    (report,) = fn.graphs().streams
    assert (report.launches, report.calls) == (3, 5)
    assert not fake.errors


def each_stream_has_its_own_graph(fake: FakeState) -> None:
    fn, torch = through_graphs(), torch_of(fake)
    results = []
    for seed in range(3):
        with on_stream(torch):
            results.append((seed, [fn(*given_tensors(torch, 7, seed)) for _ in range(3)][-1]))
    for seed, result in results:
        np.testing.assert_array_equal(result.get(), product(*inputs(7, seed)))
    assert len(fn.graphs().streams) == 3
    assert fn.graphs().bytes == sum(s.bytes for s in fn.graphs().streams) > 0


def the_budget_drops_the_graph_used_least_recently(fake: FakeState) -> None:
    probe, torch = through_graphs(), torch_of(fake)
    with on_stream(torch):
        for _ in range(2):
            probe(*given_tensors(torch, 7))
    size = probe.graphs().bytes
    gc.collect()  # graphs of functions that are gone, from scenarios before this one
    before = dict(fake.graph_bytes)
    fn = through_graphs(graph_memory=2 * size)
    for _ in range(4):
        with on_stream(torch) as stream:
            for _ in range(2):
                result = fn(*given_tensors(torch, 7))
            stream.sync()
            np.testing.assert_array_equal(result.get(), product(*inputs(7)))
    assert [s.bytes for s in fn.graphs().streams] == [0, 0, size, size]
    assert fake.graph_bytes[0] - before[0] == 2 * size
    assert not fake.errors


def a_budget_below_one_graph_is_named(fake: FakeState) -> None:
    fn, torch = through_graphs(graph_memory=1000), torch_of(fake)
    with on_stream(torch), pytest.raises(DeviceError, match=r'graph_memory is 1000; give graph_memory="\d+'):
        for _ in range(2):
            fn(*given_tensors(torch, 7))


DEEP = 9
_STEP = ("%y{1} = linalg.matmul ins(%y{0}, %w : tensor<?x8xf32>, tensor<8x8xf32>) outs(%i : tensor<?x8xf32>) "
         "-> tensor<?x8xf32>")


def deep(**options: Any) -> tw.CompiledFunction:
    """Nine products one after the other."""
    lines = "\n  ".join(_STEP.format(i, i + 1) for i in range(DEEP))
    text = f"""func.func @main(%y0: tensor<?x8xf32> {{tw.dims = ["M", 8]}}, %w: tensor<8x8xf32> {{tw.dims = [8, 8]}})
    -> tensor<?x8xf32> {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %y0, %c0 : tensor<?x8xf32>
  %e = tensor.empty(%m) : tensor<?x8xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<?x8xf32>) -> tensor<?x8xf32>
  {lines}
  return %y{DEEP} : tensor<?x8xf32>
}}
"""
    return tw.compile(text, {"M": (1, 512)}, target="cuda:sm_90a", options=options)


def permutations(rows: int, torch: Any) -> tuple[list[Any], np.ndarray]:
    """Rows and a matrix that reorders their values, which is exact; the result of nine products."""
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 8)).astype(np.float32), np.eye(8, dtype=np.float32)[rng.permutation(8)]
    return [torch.tensor(x), torch.tensor(w)], x @ np.linalg.matrix_power(w, DEEP)


def auto_measures_and_decides(fake: FakeState) -> None:
    """With graphs where those calls took less time, without where they did not."""
    torch = torch_of(fake)
    for seconds, wanted in ((1e-6, "through a graph"), (1e-4, "without graphs: a call takes 100.0 us with a graph")):
        fn = deep()
        with on_stream(torch) as stream:
            ticks = _ticks(fn, seconds)
            for n in range(1, 28):
                given, result = permutations(n, torch)
                found = fn(*given)
                if n == 1:
                    next(iter(fn._caller._loaded.values())).graphs.clock = ticks
            stream.sync()
            np.testing.assert_array_equal(found.get(), result)
        (report,) = fn.graphs().streams
        assert report.state.startswith(wanted), report
        assert (report.bytes > 0) == (wanted == "through a graph")
    assert not fake.errors


def _ticks(fn: tw.CompiledFunction, through: float) -> Any:
    """A clock by which a call with a graph takes so long, and one without 10 us."""
    now = [0.0]

    def clock() -> float:
        graph = next(iter(next(iter(fn._caller._loaded.values())).graphs.streams.values()))
        now[0] += (through if len(graph._plain) >= 10 else 1e-5)
        return now[0]

    return clock


def auto_says_once_that_there_is_no_room(fake: FakeState) -> None:
    fn, torch = deep(graph_memory="1K"), torch_of(fake)
    with on_stream(torch) as stream, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in range(1, 30):
            given, result = permutations(n, torch)
            found = fn(*given)
        stream.sync()
        np.testing.assert_array_equal(found.get(), result)
    assert [w.category for w in said] == [GraphWarning]
    assert fn.graphs().bytes == 0


def auto_leaves_short_programs_alone(fake: FakeState) -> None:
    fn = tw.compile(CHAIN, {"M": (0, 4096)}, target="cuda:sm_90a")
    torch = torch_of(fake)
    before = fake.instantiated
    with on_stream(torch):
        for n in range(1, 30):
            fn(*given_tensors(torch, n))
    assert fake.instantiated == before
    assert "fewer than 8 launches" in str(fn.graphs())


def the_users_captures_are_launches_of_their_own(fake: FakeState) -> None:
    fn, torch = through_graphs(), torch_of(fake)
    given = inputs(9)
    tensors = [torch.tensor(a) for a in given]
    stream = new_stream()
    for _ in range(2):
        fn(*tensors, stream=stream)
    stream.sync()
    before, launched = fake.instantiated, fn.graphs().streams[0].launches
    building, graph, result = captured(stream, lambda: fn(*tensors, stream=stream))
    assert fake.instantiated == before + 1  # the user's
    assert fn.graphs().streams[0].launches == launched
    graph.launch(stream)
    again = fn(*tensors, stream=stream)
    stream.sync()
    for found in (result, again):
        np.testing.assert_array_equal(found.get(), product(*given))
    graph.close()
    building.close()
    assert not fake.errors


def a_capture_that_begins_during_a_call_is_named(fake: FakeState) -> None:
    fn, torch, stream = through_graphs(), torch_of(fake), new_stream()
    for _ in range(2):
        fn(*given_tensors(torch, 9), stream=stream)
    stream.sync()
    building = stream.create_graph_builder()
    fake.at("cuGraphExecKernelNodeSetParams", lambda: building.begin_building("relaxed"))
    with pytest.raises(DeviceError, match=r"launch a call as a CUDA graph.*CAPTURE"):
        fn(*given_tensors(torch, 10), stream=stream)
    building.end_building()
    building.close()
    result = fn(*given_tensors(torch, 10), stream=stream)
    stream.sync()
    np.testing.assert_array_equal(result.get(), product(*inputs(10)))
    assert not fake.errors


def what_the_driver_refuses_of_an_update_goes_without(fake: FakeState) -> None:
    """`auto` leaves graphs; `on` says what the driver said."""
    torch = torch_of(fake)
    fn = deep()
    with on_stream(torch) as stream:
        for n in range(1, 15):
            fn(*permutations(n, torch)[0])
        loaded = next(iter(fn._caller._loaded.values()))
        graph = next(iter(loaded.graphs.streams.values()))
        while graph.built is None:
            fn(*permutations(3, torch)[0])
        fake.fail("cuGraphExecKernelNodeSetParams", 1)
        given, result = permutations(21, torch)
        found = fn(*given)
        stream.sync()
        np.testing.assert_array_equal(found.get(), result)
        assert "CUDA_ERROR_INVALID_VALUE" in fn.graphs().streams[0].state
    fn = through_graphs()
    with on_stream(torch):
        for n in range(1, 4):
            fn(*given_tensors(torch, n))
        fake.fail("cuGraphExecKernelNodeSetParams", 1)
        with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
            fn(*given_tensors(torch, 9))
        result = fn(*given_tensors(torch, 9))
    np.testing.assert_array_equal(result.get(), product(*inputs(9)))
    assert not fake.errors


@alone(version=12000)
def node_updates_need_no_later_driver(fake: FakeState) -> None:
    one_graph_serves_every_shape(fake)


def results_come_from_a_ring(fake: FakeState) -> None:
    """A step whose result is let go gives its memory to the step after next; one that is kept is never written again."""
    fn, torch = through_graphs(), torch_of(fake)
    with on_stream(torch) as stream:
        x, *weights = given_tensors(torch, 9)
        fn(x, *weights)
        places, allocated = [], torch.taken
        held = [fn(x, *weights), None]
        for _ in range(12):
            held = [fn(x, *weights), held[0]]
            places.append(held[0].data_ptr())
        assert torch.taken - allocated <= 3
        assert len(set(places)) <= 3
        assert places[3:] == places[:-3] or places[2:] == places[:-2]
        kept = [fn(torch.tensor(inputs(9, seed)[0]), *weights) for seed in range(6)]
        stream.sync()
        for seed, result in enumerate(kept):
            np.testing.assert_array_equal(result.get(), inputs(9, seed)[0] @ inputs(9)[1] @ inputs(9)[2])
        longer = [fn(torch.tensor(inputs(n)[0]), *weights).data_ptr() for n in range(20, 24)]
        assert len(set(longer)) == 1  # lengths that grow share memory
    (report,) = fn.graphs().streams
    assert report.hits >= 12
    assert not fake.errors


def arrays_of_no_library_come_from_a_ring(fake: FakeState) -> None:
    from tilewright.runtime.cuda.arena import gpu
    from tilewright.runtime.cuda.cuda_arrays import CudaArray

    fn, stream = through_graphs(), new_stream()
    given = [CudaArray(gpu(0), stream, a.shape, a.dtype) for a in inputs(9)]
    for array, values in zip(given, inputs(9), strict=True):
        fake.devices[0].copy_in(array.address, values)
    places, kept = [], fn(*given, stream=stream)
    for _ in range(8):
        places.append(fn(*given, stream=stream).address)
    np.testing.assert_array_equal(kept.numpy(), product(*inputs(9)))
    assert kept.address not in places[1:]
    assert len(set(places)) <= 2
    capsule = kept.__dlpack__(stream=-1)
    address = kept.address
    del kept
    assert all(fn(*given, stream=stream).address != address for _ in range(4))
    del capsule
    assert fn.graphs().streams[0].hits >= 8
    assert not fake.errors


def structured_programs_through_graphs(fake: FakeState) -> None:
    """Branches and loops in each other, on shapes and on data: the bits of the emulator that reads each condition."""
    torch = torch_of(fake)
    for seed in (1, 3):
        assert not compare(fake, torch, seed)
    assert not fake.errors


@alone(version=12020)
def structured_programs_with_an_old_driver(fake: FakeState) -> None:
    """Without conditional nodes."""
    assert not compare(fake, torch_of(fake), 3)


@alone(version=12040)
def structured_programs_without_else(fake: FakeState) -> None:
    assert not compare(fake, torch_of(fake), 3)


HALVING = """func.func @main(%x: tensor<?xf32> {tw.dims = ["N"]}, %least: tensor<f32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %half = arith.constant 0.5 : f32
  %low = arith.constant -1.0e+30 : f32
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %room = tensor.empty(%n) : tensor<?xf32>
  %word = tensor.empty() : tensor<f32>
  %r = scf.while (%a = %x) : (tensor<?xf32>) -> tensor<?xf32> {
    %start = linalg.fill ins(%low : f32) outs(%word : tensor<f32>) -> tensor<f32>
    %most = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}
        ins(%a : tensor<?xf32>) outs(%start : tensor<f32>) {
    ^bb0(%p: f32, %o: f32):
      %k = arith.maximumf %p, %o : f32
      linalg.yield %k : f32
    } -> tensor<f32>
    %value = tensor.extract %most[] : tensor<f32>
    %bound = tensor.extract %least[] : tensor<f32>
    %more = arith.cmpf ogt, %value, %bound : f32
    scf.condition(%more) %a : tensor<?xf32>
  } do {
  ^bb0(%b: tensor<?xf32>):
    %y = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
        ins(%b : tensor<?xf32>) outs(%room : tensor<?xf32>) {
    ^bb0(%p: f32, %o: f32):
      %q = arith.mulf %p, %half : f32
      linalg.yield %q : f32
    } -> tensor<?xf32>
    scf.yield %y : tensor<?xf32>
  }
  return %r : tensor<?xf32>
}
"""
"""x halved until none of it is above a bound: a loop whose turns nobody knows beforehand."""


def halved(x: np.ndarray, bound: float) -> np.ndarray:
    while x.max() > bound:
        x = x * np.float32(0.5)
    return x


def halvings(fake: FakeState, graphs: str) -> tw.CompiledFunction:
    """Calls of 0 to 40 turns in random order, all enqueued before the first is waited for where there is a graph."""
    fn, torch = through_graphs(HALVING, {"N": (1, 64)}, graphs=graphs), torch_of(fake)
    rng = np.random.default_rng(0)
    with on_stream(torch) as stream:
        done = []
        for turns in (3, 0, 1, 2, 7, 8, 9, 16, 15, 40, 0, 1):
            x = rng.uniform(0.5, 1, rng.integers(1, 64)).astype(np.float32)
            x[0] = 1
            bound = np.float32(2.0**-turns)
            done.append((x, bound, fn(torch.tensor(x), torch.tensor(np.asarray(bound)))))
        stream.sync()
        for x, bound, result in done:
            np.testing.assert_array_equal(result.get(), halved(x, bound))
    assert not fake.errors
    return fn


def loops_of_unknown_length_are_while_nodes(fake: FakeState) -> None:
    waits = fake.calls("cuStreamSynchronize")
    fn = halvings(fake, "on")
    assert fake.calls("cuStreamSynchronize") - waits <= 3  # of loading, and of the test
    (report,) = fn.graphs().streams
    assert (report.instantiated, report.launches) == (1, 12)
    assert "WHILE node (driver 12.4 or later)" in str(fn.explain(N=5))


def loops_without_graphs_are_enqueued_ahead(fake: FakeState) -> None:
    """The number of turns is read once for each eight of them."""
    waits = fake.calls("cuStreamSynchronize")
    halvings(fake, "off")
    assert 12 <= fake.calls("cuStreamSynchronize") - waits <= 30


@alone(version=12030)
def a_driver_without_conditional_nodes_is_named(fake: FakeState) -> None:
    torch = torch_of(fake)
    with pytest.raises(DeviceError, match=r'graphs="on": a loop .* needs a CUDA driver of 12.4 or later; update the driver'):
        through_graphs(HALVING, {"N": (1, 64)})(torch.tensor(np.ones(3, np.float32)), torch.tensor(np.ones((), np.float32)))
    halvings(fake, "auto")


def a_loop_of_unknown_length_cannot_be_captured(fake: FakeState) -> None:
    fn, torch, stream = through_graphs(HALVING, {"N": (1, 64)}, graphs="off"), torch_of(fake), new_stream()
    given = [torch.tensor(np.ones(3, np.float32)), torch.tensor(np.asarray(0.25, np.float32))]
    fn(*given, stream=stream)
    building = stream.create_graph_builder().begin_building("relaxed")
    with pytest.raises(DeviceError, match="capture a loop whose end depends on data and that has no largest number of turns"):
        fn(*given, stream=stream)
    building.end_building()
    building.close()
    result = fn(*given, stream=stream)
    stream.sync()
    np.testing.assert_array_equal(result.get(), np.full(3, 0.25, np.float32))
