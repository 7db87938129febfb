"""Calls in captures of CUDA graphs, on a fake driver."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest
from cuda_fake.fake_state import FakeState
from cuda_fake.models import chain, inputs, product
from cuda_fake.scenarios_calls import torch_of
from cuda_fake.worker import alone

from tilewright.runtime.cuda.arena import gpu
from tilewright.runtime.errors import DeviceError


def new_stream() -> Any:
    return gpu(0).device.core.create_stream()


def captured(stream: Any, call: Any, mode: str = "relaxed") -> tuple[Any, Any, Any]:
    """(builder, graph, what the call gave)."""
    building = stream.create_graph_builder().begin_building(mode)
    made = call()
    return building, building.end_building().complete(), made


def write(fake: FakeState, tensor: Any, values: np.ndarray) -> None:
    fake.devices[0].copy_in(tensor.data_ptr(), values)


def a_graph_replays_a_call_on_new_values(fake: FakeState) -> None:
    fn, torch, stream = chain(), torch_of(fake), new_stream()
    given = inputs(9)
    tensors = [torch.tensor(a) for a in given]
    fn(*tensors, stream=stream)
    stream.sync()
    fake.log.clear()
    building, graph, result = captured(stream, lambda: fn(*tensors, stream=stream))
    names = [n for n, _ in fake.log]
    assert "cuMemAllocFromPoolAsync" not in names
    assert "cuStreamSynchronize" not in names
    for seed in (1, 2):
        fresh = inputs(9, seed)
        for tensor, values in zip(tensors, fresh, strict=True):
            write(fake, tensor, values)
        graph.launch(stream)
        stream.sync()
        np.testing.assert_array_equal(result.get(), product(*fresh))
    graph.close()
    building.close()
    assert not fake.errors


def a_first_call_may_be_captured(fake: FakeState) -> None:
    """Kernels are loaded and memory is taken while the strictest kind of capture is under way."""
    from cuda_fake.models import CHAIN

    import tilewright as tw

    torch = torch_of(fake)
    given = [inputs(9)[0], np.ones((40, 28), np.float32), np.ones((28, 16), np.float32)]
    tensors = [torch.tensor(a) for a in given]
    for mode, held in itertools.product(("global", "thread_local"), (False, True)):
        stream = new_stream()
        fn = tw.compile(CHAIN.replace("24", "28"), {"M": (0, 64)}, target="cuda:sm_90a",
                        constants={"arg1": given[1], "arg2": given[2]} if held else {})
        own = tensors[:1] if held else tensors
        building, graph, result = captured(stream, lambda f=fn, a=own, s=stream: f(*a, stream=s), mode)
        graph.launch(stream)
        stream.sync()
        np.testing.assert_array_equal(result.get(), product(*given))
        graph.close()
        building.close()
    assert not fake.errors


def a_model_that_is_collected_leaves_a_capture_alone(fake: FakeState) -> None:
    """What it had is freed later, before the next call that needs memory."""
    from cuda_fake.models import CHAIN

    import tilewright as tw

    torch, stream = torch_of(fake), new_stream()
    kept = chain()
    given = [torch.tensor(a) for a in inputs(9)]
    kept(*given, stream=stream)
    gone = tw.compile(CHAIN.replace("24", "20"), {"M": (0, 64)}, target="cuda:sm_90a")
    gone(given[0], *(torch.tensor(np.ones(s, np.float32)) for s in ((40, 20), (20, 16))), stream=stream)
    stream.sync()
    torch.current = int(stream.handle)
    fake.log.clear()

    def call() -> Any:
        nonlocal gone
        del gone
        gc.collect()
        return kept(*given, stream=stream)

    building, graph, result = captured(stream, call, "global")
    torch.current = 0
    names = [n for n, _ in fake.log]
    assert "cuCtxSynchronize" not in names
    graph.launch(stream)
    stream.sync()
    np.testing.assert_array_equal(result.get(), product(*inputs(9)))
    fake.log.clear()
    kept(*(torch.tensor(a) for a in inputs(60)), stream=new_stream())
    assert "cuCtxSynchronize" in [n for n, _ in fake.log]
    graph.close()
    building.close()
    assert not fake.errors


def a_graph_keeps_memory_of_its_own(fake: FakeState) -> None:
    """Calls on the stream of a capture, and its growing arena, do not touch what the graph writes to."""
    fn, torch, stream, other = chain(), torch_of(fake), new_stream(), new_stream()
    given = inputs(9)
    building, graph, result = captured(stream, lambda: fn(*(torch.tensor(a) for a in given), stream=stream))
    wide = inputs(2000, 3)
    graph.launch(other)
    outside = fn(*(torch.tensor(a) for a in wide), stream=stream)
    other.sync()
    stream.sync()
    np.testing.assert_array_equal(result.get(), product(*given))
    np.testing.assert_array_equal(outside.get(), product(*wide))
    again = fn(*(torch.tensor(a) for a in wide), stream=stream)
    graph.launch(other)
    stream.sync()
    other.sync()
    np.testing.assert_array_equal(result.get(), product(*given))
    np.testing.assert_array_equal(again.get(), product(*wide))
    graph.close()
    building.close()
    assert not fake.errors


def memory_of_a_graph_returns_when_it_is_gone(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    given = [torch.tensor(a) for a in inputs(9)]
    sizes = []
    for _ in range(4):
        stream = new_stream()
        building, graph, _ = captured(stream, lambda s=stream: fn(*given, stream=s))
        graph.launch(stream)
        stream.sync()
        graph.close()
        building.close()
        del graph, building
        gc.collect()
        sizes.append(len(gpu(0).captured))
    assert sizes[-1] == sizes[0]


def calls_in_one_capture_share_memory(fake: FakeState) -> None:
    fn, torch, stream = chain(), torch_of(fake), new_stream()
    given = inputs(9)
    before = len(gpu(0).captured)

    def twice() -> Any:
        first = [torch.tensor(a) for a in given]
        return [fn(*first, stream=stream) for _ in range(3)]

    building, graph, results = captured(stream, twice)
    assert len(gpu(0).captured) - before <= 1
    graph.launch(stream)
    stream.sync()
    for result in results:
        np.testing.assert_array_equal(result.get(), product(*given))
    graph.close()
    building.close()


def host_arrays_cannot_be_captured(fake: FakeState) -> None:
    stream = new_stream()
    building = stream.create_graph_builder().begin_building("relaxed")
    with pytest.raises(DeviceError, match="host arrays cannot be copied"):
        chain()(*inputs(3), stream=stream)
    building.end_building()  # the capture is as good as before
    building.close()
    assert not fake.errors


@alone(archs=["sm_90a", "sm_90a"])
def two_devices_in_turns(fake: FakeState) -> None:
    """Arrays choose the device; the thread's own one is as it was."""
    from tilewright.runtime.cuda.driver import start

    fn, torch = chain(), torch_of(fake)
    gpu(0)
    start().cuCtxSetCurrent(gpu(0).device.context)
    for index in (0, 1, 1, 0):
        given = inputs(7, index)
        result = fn(*(torch.tensor(a, index) for a in given))
        assert result.device.index == index
        assert fake.device() == 0
        with gpu(index).current():
            gpu(index).stream(0).sync()
        np.testing.assert_array_equal(result.get(), product(*given))
    x, w, v = (torch.tensor(a, i) for a, i in zip(inputs(3), (0, 1, 0), strict=True))
    with pytest.raises(DeviceError, match="devices 0 and 1"):
        fn(x, w, v)
    assert not fake.errors
