"""What may happen around graphs that are updated, on a fake driver: tensor maps, conditions in each other, threads, devices,
functions let go, errors on the way."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cuda_fake.fake_graphs import Condition, Executable, nodes_within
from cuda_fake.fake_state import FakeState
from cuda_fake.models import DONATED, inputs, product
from cuda_fake.scenarios_calls import torch_of
from cuda_fake.scenarios_graphs import captured, new_stream, write
from cuda_fake.scenarios_nodes import given_tensors, on_stream, through_graphs
from cuda_fake.worker import alone

import tilewright as tw
from tilewright import ops
from tilewright.runtime.cuda.arena import gpu
from tilewright.runtime.cuda.graph_build import Recorder
from tilewright.runtime.errors import DeviceError, ShapeError


def compiled(g: ops.Graph, dims: Any, **options: Any) -> tw.CompiledFunction:
    return tw.compile(g, dims, target="cuda:sm_90a", options={"graphs": "on", **options})


def tensor_maps_are_encoded_where_an_address_or_extent_changes(fake: FakeState) -> None:
    """And only then; the node that takes a map is updated with it. Of 48 rows the result is another too."""
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["M", 128], "f16"), g.input("w", [128, 128], "f16")))
    fn, torch, made = compiled(g, {"M": (1, 256)}), torch_of(fake), fake.instantiated
    assert [c.family for c in fn.explain(M=32).calls] == ["wgmma"]
    rng = np.random.default_rng(0)
    long, other, w = (rng.integers(-2, 3, s).astype(np.float16) for s in ((64, 128), (32, 128), (128, 128)))
    x, y, weights = torch.tensor(long), torch.tensor(other), torch.tensor(w)
    x32, x48 = (x.as_strided((n, 128), [128, 1]) for n in (32, 48))
    outs = {n: torch.empty((n, 128), torch.float16, x.device) for n in (32, 48)}
    with on_stream(torch) as stream:
        for _ in range(2):
            fn(x32, weights, out=outs[32])
        for given, values, maps, updates in ((x32, long[:32], 0, 0), (y, other, 1, 1), (y, other, 0, 0), (x32, long[:32], 0, 1),
                                             (x48, long[:48], 2, 1), (x48, long[:48], 0, 0), (x32, long[:32], 0, 1)):
            out, before = outs[len(values)], fake.calls("cuTensorMapEncodeTiled")
            fake.updates.clear()
            fn(given, weights, out=out)
            found = fake.calls("cuTensorMapEncodeTiled") - before, len(fake.updates)
            assert found == (maps, updates), (len(values), found)
            stream.sync()
            np.testing.assert_array_equal(out.get(), values @ w)
    assert fake.instantiated == made + 1
    assert not fake.errors


WIDTH = 8


def nested(steps: int = 5) -> ops.Graph:
    """x[N, 8], a bool, a bound -> a branch on the bool with long sides; one is a loop on data, with a short branch in it."""
    g = ops.Graph()
    x, w = g.input("x", ["N", WIDTH], "f32"), g.input("w", [WIDTH, WIDTH], "f32")
    flag, bound = g.input("flag", [], "i1"), g.input("bound", [], "f32")

    def times(a: ops.Tensor) -> ops.Tensor:
        for _ in range(steps):
            a = ops.matmul(a, w)
        return a

    def most(a: ops.Tensor) -> ops.Tensor:
        return ops.max(ops.absolute(a), axis=(0, 1))

    def turn(a: ops.Tensor) -> ops.Tensor:
        (b,) = ops.cond(ops.compare(most(a), bound * 2.0, "gt"), lambda v: v * 0.25, lambda v: v * 0.5, a)
        return times(b)

    (y,) = ops.cond(flag, times, lambda a: ops.while_loop(lambda v: ops.compare(most(v), bound, "gt"), turn, times(a))[0], x)
    g.output(y)
    return g


def nested_reference(x: np.ndarray, w: np.ndarray, flag: bool, bound: float, steps: int = 5) -> np.ndarray:
    """w reorders columns, so that all is exact."""
    power = np.linalg.matrix_power(w, steps)
    y = x @ power
    while not flag and np.abs(y).max() > bound:
        y = (y * np.float32(0.25 if np.abs(y).max() > 2 * bound else 0.5)) @ power
    return y


def finish_conditions(fake: FakeState, wanted: dict[tuple[str, int], int]) -> None:
    """Calls of both sides and of many numbers of turns, enqueued before the first is waited for. wanted: how many conditional
    nodes of each kind and number of bodies."""
    fn, torch, rng = compiled(nested(), {"N": (1, 32)}), torch_of(fake), np.random.default_rng(0)
    w = np.eye(WIDTH, dtype=np.float32)[rng.permutation(WIDTH)]
    weights = torch.tensor(w)
    with on_stream(torch) as stream:
        done = []
        for flag, bound, rows in ((1, 1.0, 3), (0, 1.0, 7), (0, 0.001, 7), (0, 9.0, 1), (1, 0.5, 32), (0, 0.3, 2), (0, 0.01, 31)):
            x = rng.uniform(-3, 3, (rows, WIDTH)).astype(np.float32)
            given = [torch.tensor(x), weights, torch.tensor(np.asarray(bool(flag))), torch.tensor(np.asarray(bound, np.float32))]
            done.append((nested_reference(x, w, bool(flag), np.float32(bound)), fn(*given)))
        stream.sync()
        for found, (reference, result) in enumerate(done):
            np.testing.assert_array_equal(result.get(), reference, str(found))
    (report,) = fn.graphs().streams
    assert (report.instantiated, report.launches) == (1, len(done))
    assert not fake.errors
    live = [o for o in fake._objects.values() if isinstance(o, Executable)]
    kinds = Counter((("IF", "WHILE", "SWITCH")[n.work.kind], len(n.work.bodies)) for o in live for n in nodes_within(o.graph)
                    if isinstance(n.work, Condition))
    assert kinds == wanted, kinds
    said = str(fn.explain(N=5))
    assert "an IF node (driver 12.4 or later)" in said
    assert "a WHILE node (driver 12.4 or later)" in said
    assert "kernels go by the byte, as there are" in said


@alone()
def conditions_in_conditions_with_else(fake: FakeState) -> None:
    finish_conditions(fake, {("IF", 2): 1, ("WHILE", 1): 1})


@alone(version=12040)
def conditions_in_conditions_without_else(fake: FakeState) -> None:
    finish_conditions(fake, {("IF", 1): 2, ("WHILE", 1): 1})


@alone(version=12030)
def conditions_in_conditions_need_a_driver(fake: FakeState) -> None:
    """With an older one `on` says so, and `auto` goes without."""
    torch = torch_of(fake)
    x, w = np.full((3, WIDTH), 2, np.float32), np.eye(WIDTH, dtype=np.float32)
    given = [torch.tensor(a) for a in (x, w, np.asarray(False), np.asarray(0.3, np.float32))]
    with pytest.raises(DeviceError, match=r'graphs="on": a loop .* needs a CUDA driver of 12.4 or later; update the driver'):
        compiled(nested(), {"N": (1, 32)})(*given)
    fn = compiled(nested(), {"N": (1, 32)}, graphs="auto")
    result = fn(*given, stream=(stream := new_stream()))
    stream.sync()
    np.testing.assert_array_equal(result.get(), nested_reference(x, w, False, 0.3))
    assert not fake.errors


def conditional(driver: Any, graph: Any, kind: str, size: int, handle: Any = None) -> int:
    """Add a conditional node; the CUresult."""
    if handle is None:
        code, handle = driver.cuGraphConditionalHandleCreate(graph, gpu(0).device.context, 0, 1)
        if int(code):
            return int(code)
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle, params.conditional.size = handle, size
    params.conditional.type = getattr(driver.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
    params.conditional.ctx = gpu(0).device.context
    return int(driver.cuGraphAddNode(graph, [], None, 0, params)[0])


def the_fake_driver_refuses_what_drivers_refuse(fake: FakeState) -> None:
    """Conditions of too many bodies, used twice or of another graph, executables of unused ones, updates of what is no kernel
    node of the executable."""
    from tilewright.runtime.cuda.driver import start

    driver = start()
    sizes = [("IF", 1, 0), ("IF", 2, 0), ("IF", 3, 1), ("WHILE", 1, 0), ("WHILE", 2, 1), ("SWITCH", 5, 0), ("IF", 0, 1)]
    for kind, size, wanted in sizes:
        assert conditional(driver, driver.cuGraphCreate(0)[1], kind, size) == wanted, (kind, size)
    graph, other = driver.cuGraphCreate(0)[1], driver.cuGraphCreate(0)[1]
    handle = driver.cuGraphConditionalHandleCreate(graph, gpu(0).device.context, 0, 1)[1]
    assert int(driver.cuGraphInstantiate(graph, 0)[0])  # a handle of no node
    assert conditional(driver, other, "IF", 1, handle)
    assert not conditional(driver, graph, "IF", 1, handle)
    assert conditional(driver, graph, "IF", 1, handle)
    code, executable = driver.cuGraphInstantiate(graph, 0)
    assert not int(code)
    (node,) = (n for n in fake._objects[int(graph)].nodes)
    assert int(driver.cuGraphNodeSetEnabled(executable, fake.handle_of[id(node)], 0)[0])
    fn, torch = through_graphs(), torch_of(fake)
    fn(*given_tensors(torch, 5), stream=(stream := new_stream()))
    (loaded,) = fn._caller._loaded.values()
    (of,) = loaded.graphs.streams.values()
    assert of.built is not None
    kernel = of.built._words[0]
    assert int(driver.cuGraphNodeSetEnabled(executable, kernel, 0)[0])  # a node of another graph
    assert not int(driver.cuGraphNodeSetEnabled(of.built["exec"], kernel, 0)[0])
    stream.sync()
    building = stream.create_graph_builder().begin_building("relaxed")
    assert int(driver.cuGraphUpload(of.built["exec"], stream.handle)[0]) == 900
    building.end_building()
    building.close()
    for made in (graph, other):
        driver.cuGraphDestroy(made)
    assert not fake.errors


@alone(version=12040)
def the_fake_driver_of_12_4_has_no_else(fake: FakeState) -> None:
    from tilewright.runtime.cuda.driver import start

    driver = start()
    gpu(0)
    for kind, size, wanted in (("IF", 1, 0), ("IF", 2, 1), ("WHILE", 1, 0), ("SWITCH", 2, 1)):
        assert conditional(driver, driver.cuGraphCreate(0)[1], kind, size) == wanted, (kind, size)


def threads_share_graphs(fake: FakeState) -> None:
    """Six threads, three on one stream and three on streams of their own, each with shapes that change."""
    fn, torch, shared = through_graphs(), torch_of(fake), new_stream()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        try:
            with gpu(0).current():
                own, rng = shared if seed % 2 else new_stream(), np.random.default_rng(seed)
                for rows in rng.integers(1, 40, 6):
                    given = inputs(int(rows), seed)
                    result = fn(*(torch.tensor(a) for a in given), stream=own)
                    own.sync()
                    np.testing.assert_array_equal(result.get(), product(*given))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    streams = fn.graphs().streams
    assert sorted(s.calls for s in streams) == [6, 6, 6, 18]
    assert all(s.launches == s.calls and s.instantiated == 1 for s in streams)
    assert not fake.errors


@alone(archs=["sm_90a", "sm_90a"])
def graphs_are_made_on_the_arrays_device(fake: FakeState) -> None:
    """Also in a call that was learned, of a thread whose own device is another or none."""
    fn, torch = through_graphs(), torch_of(fake)
    given = inputs(7)
    on = [[torch.tensor(a, index) for a in given] for index in (0, 1)]
    fn(*on[1])
    loaded = fn._caller._loaded[1]
    (graph,) = loaded.graphs.streams.values()
    for stack in ([0x1000], [], [0x1001]):
        fake.contexts()[:] = stack
        graph.drop()
        made = fake.graph_bytes.get(1, 0)
        result = fn._caller._quick.call(torch, on[1])
        assert fake.graph_bytes[1] > made
        assert fake.contexts() == stack
        with gpu(1).current():
            gpu(1).stream(0).sync()
        np.testing.assert_array_equal(result.get(), product(*given))
    fake.contexts()[:] = [0x1000]
    assert fn(*on[0]).device.index == 0
    assert {s.device for s in fn.graphs().streams} == {0, 1}
    assert not fake.errors


def a_stream_in_a_call_keeps_its_graph(fake: FakeState) -> None:
    """Another stream that finds no room but for that goes without for as long."""
    probe, torch = through_graphs(), torch_of(fake)
    given = given_tensors(torch, 7)
    probe(*given, stream=new_stream())
    fn, streams = through_graphs(graph_memory=probe.graphs().bytes), [new_stream(), new_stream()]
    fn(*given, stream=streams[0])
    (first,) = fn._caller._loaded[0].contexts.values()
    with first.arena.lock:
        results = [fn(*given, stream=streams[1]) for _ in range(2)]
    assert [s.launches for s in fn.graphs().streams] == [1, 0]
    results.append(fn(*given, stream=streams[1]))
    assert [s.launches for s in fn.graphs().streams] == [1, 1]
    assert [s.bytes > 0 for s in fn.graphs().streams] == [False, True]
    streams[1].sync()
    for result in results:
        np.testing.assert_array_equal(result.get(), product(*inputs(7)))
    assert not fake.errors


def a_function_let_go_leaves_its_queued_calls(fake: FakeState) -> None:
    gc.collect()
    before, torch = dict(fake.graph_bytes), torch_of(fake)
    with on_stream(torch) as stream:
        fn = through_graphs()
        results = [(n, fn(*given_tensors(torch, n, n))) for n in (5, 9, 30, 9)]
        assert fake.graph_bytes[0] > before.get(0, 0)
        del fn
        gc.collect()
        stream.sync()
        for n, result in results:
            np.testing.assert_array_equal(result.get(), product(*inputs(n, n)))
    assert fake.graph_bytes[0] == before.get(0, 0)
    assert not fake.errors


def what_is_raised_while_a_call_is_seen_is_raised(fake: FakeState) -> None:
    """Ctrl-C between two launches of the call that a graph is made of; the next call is as good as ever."""
    fn, torch = through_graphs(), torch_of(fake)
    seen, count = Recorder._launch, [0]

    def interrupted(self: Recorder, *words: int) -> None:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        seen(self, *words)

    with on_stream(torch) as stream:
        given = given_tensors(torch, 9)
        Recorder._launch = interrupted  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt):
                fn(*given)
        finally:
            Recorder._launch = seen  # type: ignore[method-assign]
        assert count == [2]
        assert fn.graphs().bytes == 0
        result = fn(*given)
        stream.sync()
        np.testing.assert_array_equal(result.get(), product(*inputs(9)))
    assert fn.graphs().streams[0].launches == 1
    assert not fake.errors


def a_kernel_that_does_not_load_is_named(fake: FakeState) -> None:
    """In the call that a graph is made of as in any other."""
    from cuda_fake.models import CHAIN

    fn, torch = through_graphs(CHAIN.replace("24", "36")), torch_of(fake)
    given = [torch.tensor(np.ones(s, np.float32)) for s in ((5, 40), (40, 36), (36, 16))]
    with on_stream(torch) as stream:
        fake.fail("cuLibraryLoadData", 2)
        with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
            fn(*given)
        result = fn(*given)
        stream.sync()
        np.testing.assert_array_equal(result.get(), np.full((5, 16), 40 * 36))
    assert not fake.errors


def sides() -> ops.Graph:
    """One side where N is above 8, the other elsewhere."""
    g = ops.Graph()
    x, w = g.input("x", ["N", WIDTH], "f32"), g.input("w", [WIDTH, WIDTH], "f32")
    (y,) = ops.cond(x.dims[0] - 8, lambda a: ops.matmul(ops.matmul(a, w), w), lambda a: ops.exp(a), x)
    g.output(y)
    return g


def what_the_driver_refuses_to_enable_is_enabled_later(fake: FakeState) -> None:
    fn, torch = compiled(sides(), {"N": (1, 64)}), torch_of(fake)
    w = np.eye(WIDTH, dtype=np.float32)[::-1]
    long, short = np.ones((20, WIDTH), np.float32), np.zeros((4, WIDTH), np.float32)
    with on_stream(torch) as stream:
        given = {n: [torch.tensor(a), torch.tensor(np.ascontiguousarray(w))] for n, a in ((20, long), (4, short))}
        for rows in (20, 4, 20):
            fn(*given[rows])
        for after in range(3):  # of the switches between the sides
            fake.fail("cuGraphNodeSetEnabled", 1, after)
            with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
                fn(*given[4])
            fake._failures.clear()
            result = fn(*given[4])
            stream.sync()
            np.testing.assert_array_equal(result.get(), np.exp(short))
            result = fn(*given[20])
            stream.sync()
            np.testing.assert_array_equal(result.get(), long @ w @ w)
    (report,) = fn.graphs().streams
    assert report.instantiated == 1
    assert report.switches >= 9
    assert not fake.errors


def memory_that_another_stream_reads_is_left_alone(fake: FakeState) -> None:
    """A result that is recorded for another stream and let go is not written before that stream has read it."""
    fn, torch, other = compiled(sides(), {"N": (1, 64)}), torch_of(fake), new_stream()
    w = np.eye(WIDTH, dtype=np.float32)
    weights = torch.tensor(w)
    with on_stream(torch) as stream:
        for _ in range(3):
            first = fn(torch.tensor(np.full((20, WIDTH), 3, np.float32)), weights)
        other.wait(stream)
        address = first.data_ptr()
        second = fn(first, weights, stream=other)
        del first
        later = [fn(torch.tensor(np.full((20, WIDTH), n, np.float32)), weights).data_ptr() for n in range(5)]
        assert address not in later
        stream.sync()
        other.sync()
        np.testing.assert_array_equal(second.get(), np.full((20, WIDTH), 3))
        later = [fn(torch.tensor(np.full((20, WIDTH), n, np.float32)), weights).data_ptr() for n in range(5)]
        assert len(set(later)) == 1
    assert not fake.errors


def results_of_a_capture_are_its_graphs(fake: FakeState) -> None:
    """What a captured call wrote to is not given to later calls, though nobody holds it, nor is what earlier calls wrote to."""
    fn, torch, stream = compiled(sides(), {"N": (1, 64)}), torch_of(fake), new_stream()
    w = np.eye(WIDTH, dtype=np.float32)[::-1].copy()
    x, weights = torch.tensor(np.ones((20, WIDTH), np.float32)), torch.tensor(w)
    for _ in range(4):
        fn(x, weights, stream=stream)
    stream.sync()

    def two() -> Any:
        return fn(fn(x, weights, stream=stream), weights, stream=stream)

    building, graph, result = captured(stream, two)
    kept = [fn(torch.tensor(np.full((20, WIDTH), n, np.float32)), weights, stream=stream) for n in range(4)]
    write(fake, x, np.full((20, WIDTH), 5, np.float32))
    graph.launch(stream)
    stream.sync()
    np.testing.assert_array_equal(result.get(), np.full((20, WIDTH), 5))
    for n, values in enumerate(kept):
        np.testing.assert_array_equal(values.get(), np.full((20, WIDTH), n))
    graph.close()
    building.close()
    assert not fake.errors


def unusual_arguments_go_through_graphs(fake: FakeState) -> None:
    """One tensor as both arguments, a given result, a donated tensor, no rows, and shapes outside of the range."""
    torch = torch_of(fake)
    with on_stream(torch) as stream:
        fn = compiled_text(DONATED, {"M": (0, 4096)})
        x = torch.tensor(np.arange(100, dtype=np.float32))
        twice = fn(x, x)
        given = torch.empty((100,), torch.float32, x.device)
        assert fn(x, twice, out=given) is given
        with pytest.raises(ShapeError, match="overlap"):
            fn(x, x, out=x)
        none = torch.tensor(np.zeros(0, np.float32))
        assert fn(none, none).shape == (0,)
        stream.sync()
        np.testing.assert_array_equal(twice.get(), 2 * np.arange(100))
        np.testing.assert_array_equal(given.get(), 3 * np.arange(100))
        donating = compiled_text(DONATED, {"M": (0, 4096)}, donate=("arg0",))
        for turn in range(1, 4):
            assert donating(x, twice) is x
            stream.sync()
            np.testing.assert_array_equal(x.get(), (1 + 2 * turn) * np.arange(100))
        fn = through_graphs(dims={"M": (1, 16)}, out_of_range="fallback")
        for rows in (3, 16, 17, 300, 16, 0, 5):
            result = fn(*given_tensors(torch, rows))
            stream.sync()
            np.testing.assert_array_equal(result.get(), product(*inputs(rows)))
        assert fn.graphs().streams[0].instantiated == 1
        strict = through_graphs(dims={"M": (1, 16)})
        with pytest.raises(ShapeError, match="16"):
            strict(*given_tensors(torch, 17))
    assert not fake.errors


def compiled_text(text: str, dims: Any, **given: Any) -> tw.CompiledFunction:
    return tw.compile(text, dims, target="cuda:sm_90a", options={"graphs": "on"}, **given)
