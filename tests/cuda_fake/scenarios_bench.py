"""tools.bench gpu-graphs on a fake driver: its rules, and its calls of graphs."""

from __future__ import annotations

import numpy as np
from cuda_fake.fake_state import FakeState
from cuda_fake.scenarios_calls import torch_of
from cuda_fake.scenarios_graphs import new_stream
from cuda_fake.scenarios_nodes import on_stream

import tilewright as tw
from tools.bench.gpu import gpu_graphs
from tools.bench.gpu.graph_cases import LOOPS, Form, layers, loop, shapes
from tools.bench.gpu.graph_rules import RULES, WORDS

SMALL = Form(1, 32, 2, 40, 16, 32)


def the_rules_hold_here(fake: FakeState) -> None:
    """As the driver's documentation has them; the device says whether its driver does so."""
    from tilewright.runtime.cuda.arena import gpu
    from tilewright.runtime.cuda.driver import start

    torch = torch_of(fake)
    words, stream = torch.tensor(np.zeros(WORDS, np.int32)), new_stream()
    with gpu(0).current():
        found = list(gpu_graphs.rules(start(), int(stream.handle), words, lambda: words.get().tolist(), 5))
    assert [f["name"] for f in found if f["record"] == "rule"] == list(RULES)
    assert all(f["held"] for f in found if f["record"] == "rule"), found
    one, many = (f["bytes"] for f in found if f["record"] == "bytes")
    assert many > 5 * one > 0
    assert not fake.errors


def a_rule_that_does_not_hold_is_told(fake: FakeState) -> None:
    from tilewright.runtime.cuda.arena import gpu
    from tilewright.runtime.cuda.driver import start

    torch = torch_of(fake)
    words, stream = torch.tensor(np.zeros(WORDS, np.int32)), new_stream()
    with gpu(0).current():
        fake.fail("cuGraphExecKernelNodeSetParams", 801)
        found = {f["name"]: f for f in gpu_graphs.rules(start(), int(stream.handle), words, lambda: [3] * WORDS, 5)
                 if f["record"] == "rule"}
    assert "CUDA_ERROR_NOT_SUPPORTED" in found["function_changes"]["error"]
    assert [n for n, f in found.items() if f["held"]] == ["grids_that_clusters_do_not_divide_are_refused"]


def calls_are_timed_through_graphs(fake: FakeState) -> None:
    """The layers through a graph: bytes on each stream, nodes that are updated, times of calls."""
    torch = torch_of(fake)
    fn = tw.compile(layers(SMALL), {"S": (1, SMALL.longest)}, target="cuda:sm_90a", options={"graphs": "on"})
    weights = [torch.tensor(np.zeros(shape, np.float16)) for shape in shapes(SMALL)]
    x = torch.tensor(np.ones((1, SMALL.longest, SMALL.width), np.float16))
    with on_stream(torch) as stream:
        def call(length: int) -> object:
            return fn(x.as_strided((1, length, SMALL.width), []), *weights)

        told = gpu_graphs.graph_bytes(fn, lambda: call(3), (on_stream(torch) for _ in range(2)), stream.sync)
        assert len(told["bytes"]) == 2 and min(told["bytes"]) > 0 and told["nodes"] >= 5, told
        counts = gpu_graphs.updates(fn, call, [3, 4, 4], stream.sync)
        assert counts[0] > 0
        found = gpu_graphs.spent({"graphs on": call}, [3, 4], stream.sync, 1)
        assert found["graphs on"]["host_us"] <= found["graphs on"]["whole_us"]
    assert not fake.errors


def loops_end_where_their_data_says(fake: FakeState) -> None:
    """All ways of the loop give the same bits."""
    torch, rng = torch_of(fake), np.random.default_rng(0)
    x = rng.standard_normal((SMALL.rows, SMALL.square)).astype(np.float16)
    w = (rng.standard_normal((SMALL.square, SMALL.square)) * SMALL.square**-0.5).astype(np.float16)
    given = torch.tensor(x), torch.tensor(w)
    fns = {name: tw.compile(loop(SMALL, limit), {}, target="cuda:sm_90a", options={"graphs": graphs})
           for name, (limit, graphs) in LOOPS.items()}
    with on_stream(torch) as stream:
        for turns in (0, 1, 3):
            made = {name: fn(*given, torch.tensor(np.asarray(float(turns), np.float32))) for name, fn in fns.items()}
            stream.sync()
            wanted = x.astype(np.float64)
            for _ in range(turns):
                wanted = np.tanh(wanted @ w)
            for name, result in made.items():
                np.testing.assert_allclose(result.get(), wanted, atol=5e-3, err_msg=name)
                np.testing.assert_array_equal(result.get(), made["launches"].get())
    kinds = {name: [s.state for s in fn.graphs().streams] for name, fn in fns.items()}
    assert kinds["predicated"] == kinds["conditional"] == ["through a graph"], kinds
    assert kinds["launches"] == []
    assert not fake.errors
