"""Equal work on many tensors in one launch, what differs passed by value, on a fake driver."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cuda_fake.fake_state import FakeState
from cuda_fake.scenarios_calls import torch_of
from cuda_fake.scenarios_graphs import captured
from cuda_fake.scenarios_nodes import on_stream
from cuda_fake.worker import alone

import tilewright as tw
from tilewright.compiler import ops
from tilewright.runtime.errors import DeviceError

SIZES = ((7,), (2,), (33, 5), (64,), (129,))


def model(graphs: str, sizes: Sequence[Sequence[int]] = SIZES) -> tw.CompiledFunction:
    g = ops.Graph()
    for n, size in enumerate(sizes):
        g.output(g.input(f"x{n}", list(size)) * 2.0 + 1.0, name=f"y{n}")
    return tw.compile(g, target="cuda:sm_90a", options={"graphs": graphs})


def given(seed: int, sizes: Sequence[Sequence[int]] = SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) for size in sizes]


def they_are_one_launch_and_one_node(fake: FakeState) -> None:
    """The node's entries are those of each call: other arrays give other results."""
    torch, plain, graph = torch_of(fake), model("off"), model("on")
    with on_stream(torch) as stream:
        done = []
        for seed in range(3):
            arrays = given(seed)
            values = [torch.tensor(x) for x in arrays]
            before = len(fake.launches)
            results = plain(*values)
            stream.sync()
            assert len(fake.launches) == before + 1
            done.append((arrays, values, results, graph(*values)))
        stream.sync()
        for arrays, _, *calls in done:
            for results in calls:
                for x, y in zip(arrays, results, strict=True):
                    np.testing.assert_allclose(y.get(), x * 2 + 1, 1e-6)
    (report,) = graph.graphs().streams
    assert report.instantiated == 1 and report.nodes == 1
    assert not fake.errors


def results_lie_where_donated_tensors_did(fake: FakeState) -> None:
    """A step of an optimizer is one launch and no copy."""
    torch, g = torch_of(fake), ops.Graph()
    for n, size in enumerate(SIZES):
        g.output(g.input(f"x{n}", list(size)) * 2.0 + g.input(f"y{n}", list(size)), name=f"z{n}")
    fn = tw.compile(g, target="cuda:sm_90a", donate=[f"x{n}" for n in range(len(SIZES))], options={"graphs": "off"})
    arrays = [a for pair in zip(given(1), given(2), strict=True) for a in pair]
    values = [torch.tensor(x) for x in arrays]
    with on_stream(torch) as stream:
        fake.log.clear()
        results = fn(*values)
        stream.sync()
        done = [name for name, _ in fake.log if "Launch" in name or "DtoD" in name]
        assert done == ["cuLaunchKernelEx"], done
        assert all(r is v for r, v in zip(results, values[::2], strict=True))
        for x, y, z in zip(arrays[::2], arrays[1::2], results, strict=True):
            np.testing.assert_allclose(z.get(), x * 2 + y, 1e-6)
    assert not fake.errors


def a_capture_keeps_what_it_was_given(fake: FakeState) -> None:
    """The launch in the graph has its entries by value, from a stack that is gone when it runs."""
    torch, fn = torch_of(fake), model("off")
    arrays = given(5)
    values = [torch.tensor(x) for x in arrays]
    with on_stream(torch) as stream:
        fn(*values)
        stream.sync()
        _building, graph, results = captured(stream, lambda: fn(*values))
        fn(*[torch.tensor(x) for x in given(6)])
        graph.launch(stream)
        stream.sync()
        for x, y in zip(arrays, results, strict=True):
            np.testing.assert_allclose(y.get(), x * 2 + 1, 1e-6)
    assert not fake.errors


MANY = tuple((n,) for n in range(2, 150))


def assert_one_launch(sizes: Sequence[Sequence[int]], fake: FakeState) -> None:
    torch, fn, arrays = torch_of(fake), model("off", sizes), given(0, sizes)
    with on_stream(torch) as stream:
        before = len(fake.launches)
        results = fn(*map(torch.tensor, arrays))
        stream.sync()
        assert len(fake.launches) == before + 1
        for x, y in zip(arrays, results, strict=True):
            np.testing.assert_allclose(y.get(), x * 2 + 1, 1e-6)


@alone(version=12000)
def an_old_driver_has_no_room_for_very_many(fake: FakeState) -> None:
    """It takes few tensors in a launch; of many the first call says what is in the way, before anything is on the device."""
    assert_one_launch(SIZES, fake)
    torch = torch_of(fake)
    wanted = (r"the CUDA driver is for CUDA 12\.0 and the kernel \w+, which serves many tensors at once, has \d{4} bytes of "
              r"parameters; above 4096 CUDA 12\.1 or later is needed, update the driver")
    fn, values = model("off", MANY), [torch.tensor(x) for x in given(0, MANY)]
    for _ in range(2):
        with pytest.raises(DeviceError, match=wanted):
            fn(*values)
    assert not fake.errors


@alone(version=12010)
def the_next_driver_has_room_for_them(fake: FakeState) -> None:
    assert_one_launch(MANY, fake)
    assert not fake.errors
