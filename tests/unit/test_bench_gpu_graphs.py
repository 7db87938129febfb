"""tools.bench.gpu.gpu_graphs without a GPU: torch's side on the CPU, at a small size; ours is in tests/cuda_fake."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tilewright.runtime.program.graph_report import GraphReport, StreamReport
from tools.bench.gpu import gpu_graphs, graph_cases
from tools.bench.gpu.compare_gpu import relative
from tools.bench.gpu.graph_cases import LOOPS, Form

torch = pytest.importorskip("torch")
SMALL = Form(2, 32, 2, 40, 16, 32)


class Through:
    """A function of this CPU that says what one through a graph says."""

    def __init__(self, fn: Any) -> None:
        self._fn, self._calls = fn, 0

    def __call__(self, *given: Any) -> Any:
        self._calls += 1
        return self._fn(*given)

    def graphs(self) -> GraphReport:
        n = self._calls
        return GraphReport((StreamReport(0, 0, "through a graph", 9, 1 << 20, n, 1, n, 2 * n, 0, 0),))


class Captured:
    """A graph of torch: here it runs what was captured again."""

    def replay(self) -> None:
        pass

    def pool(self) -> int:
        return 1


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda as far as captures need it."""
    for name, made in {"Stream": object, "stream": lambda s: contextlib.nullcontext(), "synchronize": lambda: None,
                       "mem_get_info": lambda: (1 << 30, 1 << 31), "memory_reserved": lambda: 0, "CUDAGraph": Captured,
                       "graph": lambda graph, pool: contextlib.nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, made)


def nothing() -> None:
    pass


def test_a_whole_run_writes_its_records(tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rules that cannot be checked here, and the records of everything behind them."""
    from tilewright.runtime.cuda import cuda_device, driver

    monkeypatch.setattr(cuda_device, "properties_of", lambda ordinal: {"name": "none"})
    monkeypatch.setattr(driver, "driver_version", lambda: "13.0")
    monkeypatch.setattr(driver, "start", lambda: None)
    monkeypatch.setattr(gpu_graphs, "rules", lambda *_: iter([{"record": "rule", "name": "a", "held": True}]))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=0))
    loaded = {graph_cases.file_of(f"layers_{mode}"): graph_cases.layers(SMALL) for mode in ("on", "off")}
    loaded |= {graph_cases.file_of(f"loop_{n}"): graph_cases.loop(SMALL, limit) for n, (limit, _) in LOOPS.items()}
    dims = {"layers": {"S": (1, SMALL.longest)}, "loop": {}}
    monkeypatch.setattr(tw, "load", lambda path: Through(tw.compile(loaded[path.name], dims[path.name.split("_")[1]])))
    out = tmp_path / "out.jsonl"
    args = gpu_graphs.arguments(["--artifacts", str(tmp_path), "--json", str(out), "--rounds", "1",
                                 "--deadline", "600", "--budget", "600"])
    records = gpu_graphs.run(args, SMALL, "cpu")
    assert [json.loads(line) for line in out.read_text().splitlines()] == json.loads(json.dumps(records))
    kinds = [r["record"] for r in records]
    assert kinds == ["run", "rule", "bytes", "right", "lengths", *["loop"] * len(gpu_graphs.TURNS), "bytes"]
    assert not [r for r in records if "error" in r and isinstance(r["error"], str)]


def test_torchs_layers_are_ours(on_cpu: None) -> None:
    """The records of a length, with the same model for this CPU in the place of ours."""
    fn = Through(tw.compile(graph_cases.layers(SMALL), {"S": (1, SMALL.longest)}))
    with torch.no_grad():
        parts = list(gpu_graphs.layer_parts(torch, SMALL, {"on": fn, "off": fn}, "cpu", 1, nothing))
        told = {(t["record"], t.get("S")): make() for t, make in parts}
    assert json.dumps(list(told.values()))
    assert set(told) == {("bytes", None), ("right", 1), ("lengths", 1)}
    assert told["right", 1]["equal"]
    assert told["right", 1]["error"] < 5e-3
    assert told["right", 1]["torch_error"] < 5e-3
    assert told["bytes", None]["bytes"] == [1 << 20]
    lengths = told["lengths", 1]
    assert lengths["updates"] == [2] * (gpu_graphs.STEPS - 1)
    assert set(lengths["systems"]) == {"graphs on", "graphs off", "torch", "torch graph a length", "torch graph, no copy"}
    assert len(lengths["torch_graph_bytes"]) == gpu_graphs.STEPS


def test_the_layers_of_torch_are_right_in_f64() -> None:
    weights = [w.double() for w in graph_cases.weights_of(torch, SMALL, "cpu")]
    assert len(weights) == len(graph_cases.shapes(SMALL)) == 24
    x = torch.randn(1, 7, SMALL.width, dtype=torch.float64)
    whole = graph_cases.eager(torch, SMALL, x, weights)
    first = graph_cases.eager(torch, SMALL, x[:, :3], weights)
    assert relative(torch, whole[:, :3], first) < 1e-12  # causal


def test_loops_are_told_by_turns() -> None:
    fns = {name: Through(tw.compile(graph_cases.loop(SMALL, limit), {})) for name, (limit, _) in LOOPS.items()}
    with torch.no_grad():
        found = [(told, make()) for told, make in gpu_graphs.loop_parts(torch, SMALL, fns, "cpu", 1, nothing)]
    assert [t["turns"] for t, _ in found if t["record"] == "loop"] == list(gpu_graphs.TURNS)
    for told, made in found[:-1]:
        assert made["equal"], told
        assert made["error"] < 5e-3
        assert set(made["systems"]) == {*LOOPS, "torch"}
    assert set(found[-1][1]) == set(LOOPS)
    assert json.dumps(found)


def test_summary_tells_rules_and_times() -> None:
    times = {"host_us": 1.0, "whole_us": 2.0, "stream_us": 1.5}
    records: list[dict[str, Any]] = [
        {"record": "rule", "name": "a", "held": True}, {"record": "rule", "name": "b", "held": False, "error": "no"},
        {"record": "loop", "turns": 4, "systems": {"torch": times}}, {"record": "lengths", "S": 100, "systems": {"x": times}}]
    lines = gpu_graphs.summary(records).splitlines()
    assert lines[:2] == ["rule a: holds", "rule b: no"]
    assert [line.split()[:3] for line in lines[2:]] == [["4", "turns", "torch"], ["S", "100", "x"]]


def test_turns_of_the_calls_are_counted() -> None:
    calls: list[tuple[str, int]] = []
    ways = {n: (lambda p, n=n: calls.append((n, p))) for n in "ab"}
    found = gpu_graphs.spent(ways, [1, 2], nothing, 1)
    assert len(calls) == 2 * 3 * 4  # two systems, three rounds of which two are unseen, each point twice
    assert SimpleNamespace(**found["a"]).host_us >= 0
