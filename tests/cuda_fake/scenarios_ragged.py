"""Ragged calls by block tables, lengths on the host and on the device, on a fake driver."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_fake.fake_state import FakeState
from cuda_fake.scenarios_calls import torch_of
from cuda_fake.scenarios_graphs import captured
from cuda_fake.scenarios_nodes import on_stream

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate_ragged
from tilewright.runtime.errors import DeviceError, ShapeError

BATCHES = ((5, 0, 17), (40,), (1, 2, 3, 4, 5, 6, 7), ())


def model(graphs: str) -> tw.CompiledFunction:
    g = ops.Graph()
    x = g.input("x", ["B", "S", 16])
    rows = ops.dense(x, g.input("w", [16, 16]))
    g.output(ops.add(ops.softmax(rows, 1), x), ops.max(rows, 1))
    return tw.compile(g, {"B": (0, 8), "S": tw.Ragged(0, 40, over="B")}, target="cuda:sm_90a", options={"graphs": graphs})


def given(lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(lengths))
    x, w = rng.standard_normal((sum(lengths), 16)), rng.standard_normal((16, 16)) / 4
    return x.astype(np.float32), w.astype(np.float32), np.append(0, np.cumsum(lengths)).astype(np.int64)


def lengths_may_lie_on_the_device(fake: FakeState) -> None:
    """The same results from offsets of the host and of the device, launch by launch and through one graph for all batches."""
    torch, plain, graph = torch_of(fake), model("off"), model("on")
    with on_stream(torch) as stream:
        done = []
        for lengths in BATCHES:
            x, w, offsets = given(lengths)
            values = torch.tensor(x), torch.tensor(w)
            calls = [fn(*values, o) for fn in (plain, graph) for o in (offsets, torch.tensor(offsets))]
            calls.append(plain(*values, S_offsets=torch.tensor(offsets)))
            done.append((x, w, lengths, calls))
        stream.sync()
        for x, w, lengths, calls in done:
            wanted = evaluate_ragged(plain.program.source, "B", [x, w], {"S": lengths}) if lengths else [np.zeros(0)] * 2
            for results in calls:
                for a, b in zip(results, wanted, strict=True):
                    np.testing.assert_allclose(a.get().reshape(-1), b, 1e-4, 1e-5)
    (report,) = graph.graphs().streams
    assert report.instantiated == 1
    assert not fake.errors


def learned_calls_read_the_offsets_they_are_given(fake: FakeState) -> None:
    """Shapes that were seen: only launches, and a copy of offsets of the host, by position or by name; other lengths, other
    results; each copy is read before the next one comes."""
    torch, fn = torch_of(fake), model("off")
    with on_stream(torch) as stream:
        x, w, offsets = given((5, 12))
        values = torch.tensor(x), torch.tensor(w)
        fn(*values, offsets)
        fn(*values, torch.tensor(offsets))
        stream.sync()
        assert all(fn._caller._quick.call(torch, (*values, o)) is not None for o in (offsets, torch.tensor(offsets)))
        made = []
        for lengths in ((12, 5), (0, 17), (17, 0), (5, 12)):
            ends = np.append(0, np.cumsum(lengths))
            on_device, out = torch.tensor(ends), [torch.tensor(np.zeros(n, np.float32)) for n in ((17, 16), (2, 16))]
            calls = ((lambda e=ends: fn(*values, e), 1), (lambda d=on_device: fn(*values, d), 0),
                     (lambda e=ends: fn(*values, S_offsets=e), 1), (lambda d=on_device: fn(*values, S_offsets=d), 0),
                     (lambda e=ends, o=out: fn(*values, e, out=o), 1))
            for call, copies in calls:
                fake.log.clear()
                made.append((lengths, call()))
                names = [n for n, _ in fake.log]
                assert names.count("cuMemcpyHtoDAsync") == copies and names.count("cuLaunchKernelEx") >= 3
                assert {*names} <= {"cuCtxGetCurrent", "cuStreamGetCaptureInfo", "cuStreamGetId", "cuMemcpyHtoDAsync",
                                    "cuLaunchKernelEx"}, names
            ends[:] = -1  # the driver has read it
        stream.sync()
        for lengths, results in made:
            for a, b in zip(results, evaluate_ragged(fn.program.source, "B", [x, w], {"S": lengths}), strict=True):
                np.testing.assert_allclose(a.get().reshape(-1), b, 1e-4, 1e-5)
        with pytest.raises(ShapeError, match="S_offsets: the last sequence ends at 16"):
            fn.call_flat(*values, np.array([0, 5, 16]))
        with pytest.raises(ShapeError, match="S_offsets"):
            fn(*values, np.array([0, 18, 17]))
        with pytest.raises(ShapeError, match="S_offsets"):
            fn(*values, np.array([1, 5, 17]))
        for spread in (np.array([0, 9, 5, 9, 17])[::2], np.array([0, 5, 17], np.int32), [0, 5, 17]):
            again = fn(*values, spread)
            stream.sync()
            np.testing.assert_array_equal(again[0].get(), made[-1][1][0].get())
    assert not fake.errors


def wrong_lengths_of_the_host_are_named(fake: FakeState) -> None:
    torch, fn = torch_of(fake), model("off")
    x, w, _ = given((5, 12))
    values = torch.tensor(x), torch.tensor(w)
    with pytest.raises(ShapeError, match="S = 41 of sequence 0"):
        fn(*values, S_lengths=[41, 12])
    with pytest.raises(ShapeError, match="S_offsets: the last sequence ends at 16"):
        fn.call_flat(*values, np.array([0, 5, 16]))
    assert not fake.errors


def a_capture_takes_offsets_of_the_device(fake: FakeState) -> None:
    """Those of the host would be copied again when the graph runs, from memory that is gone."""
    torch, fn = torch_of(fake), model("off")
    x, w, offsets = given((5, 12))
    values, held = (torch.tensor(x), torch.tensor(w)), torch.tensor(offsets)
    with on_stream(torch) as stream:
        fn(*values, held)
        stream.sync()
        building, graph, results = captured(stream, lambda: fn(*values, held))
        graph.launch(stream)
        stream.sync()
        wanted = evaluate_ragged(fn.program.source, "B", [x, w], {"S": (5, 12)})
        for a, b in zip(results, wanted, strict=True):
            np.testing.assert_allclose(a.get().reshape(-1), b, 1e-4, 1e-5)
        graph.close()
        building.close()
        building = stream.create_graph_builder().begin_building("relaxed")
        with pytest.raises(DeviceError, match="S_offsets is an array of the host"):
            fn(*values, offsets)
        building.end_building()
        building.close()
