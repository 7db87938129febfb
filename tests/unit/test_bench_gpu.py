"""tools.bench.gpu without a GPU: its cases build, turns are taken, ratios and errors are right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tools.bench.gpu import compare_gpu as gpu
from tools.bench.gpu import kernels, predicates
from tools.bench.gpu.cases import Case, build, cases, matmul


def test_cases_are_distinct_and_whole() -> None:
    found = list(cases())
    assert len({c.file for c in found}) == len(found)
    assert {c.kind for c in found} == {"matmul", "scores", "values", "softmax", "layernorm", "attention", "bert_layer"}
    for c in found:
        assert max(c.points) <= c.largest, c.name
        assert all(min(shape) >= 1 for at in c.points for shape in c.shapes(at)), c.name
    dense = next(c for c in found if c.name == "dense_768x2304")
    assert dense.shapes(80) == [(80, 768), (768, 2304)]
    assert dense.flops(80) == 2 * 80 * 768 * 2304


@pytest.mark.parametrize("name", ["softmax_768_f32", "attention_f16"])
def test_cases_build_without_a_gpu(name: str, tmp_path: Path) -> None:
    (case,) = gpu.chosen(name)
    build(case, tmp_path, "cuda:sm_90a")
    fn = tw.load(tmp_path / case.file)
    assert fn.program.target == "cuda:sm_90a"
    assert len(fn.inputs) == len(case.inputs)
    assert fn.explain(T=case.points[0]).calls


@pytest.mark.parametrize("name", ["sum of rows", "gemv f16", "attention f16, warpgroups"])
def test_going_by_a_byte_costs_four_instructions(name: str) -> None:
    text, config = {**kernels.cases(), **predicates.attention_cases()}[name]
    found = predicates.cost(name, text, config, "sm_90a")
    assert found.instructions == 4
    assert found.spills <= 0  # -1: there is no ptxas


def test_ratio_is_to_the_best_right_peer() -> None:
    case = matmul("m", "f32", 4, 4, (2,))

    def of(**systems: tuple[float, float]) -> dict[str, Any]:
        return gpu.record(case, 2, {n: {"median_us": t, "error": e} for n, (t, e) in systems.items()}, {})

    found = of(tilewright=(2.0, 1e-6), torch=(3.0, 1e-6), triton=(1.0, 1e-2))
    assert (found["ratio"], found["best_peer"], found["wrong"]) == (1.5, "torch", ["triton"])
    assert found["tflops"] == round(2 * 2 * 4 * 4 / 2.0 * 1e-6, 2)
    assert of(tilewright=(2.0, float("nan")), torch=(3.0, 1e-6))["ratio"] is None
    assert of(tilewright=(2.0, 1e-6))["ratio"] is None


def test_summary() -> None:
    case = Case("softmax", "softmax", "f32", (("T", 4),), (1, 2), 2)
    made = [gpu.record(case, t, {gpu.OURS: {"median_us": 1.0, "error": 0.0}, "torch": {"median_us": u, "error": 0.0}}, {})
            for t, u in ((1, 4.0), (2, 1.0))]
    assert gpu.summary(made).split() == ["softmax", "f32", "geomean", "2.000", "worst", "1.000", "of", "2"]


def test_systems_take_turns() -> None:
    """A clock that only graphs move: each system gets its time, and the rounds begin with another each."""
    now, order = [0.0], []

    class Graph:
        def __init__(self, name: str, each: float) -> None:
            self.name, self.each = name, each

        def replay(self) -> None:
            now[0] += self.each
            order.append(self.name)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = now[0]

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Event) -> float:
            return (other.at - self.at) * 1e3

    get: Callable[..., Any] = lambda index: SimpleNamespace(L2_cache_size=1)  # noqa: E731
    torch = SimpleNamespace(cuda=SimpleNamespace(Event=Event, get_device_properties=get))
    bench = gpu.Bench(torch, rounds=3, seconds=0.0045)
    found = bench.timed({"a": Graph("a", 0.001), "b": Graph("b", 0.002)}, count=2)
    assert found["a"] == pytest.approx([0.0005] * 3)
    assert found["b"] == pytest.approx([0.001] * 3)
    assert "".join(order) == "aaabbb" + "aaaabb" + "bbaaaa" + "aaaabb"


def test_every_set_is_called_before_a_capture() -> None:
    """Each may be of a program of its own, whose first call takes memory."""
    calls: list[tuple[str, bool]] = []
    capturing = [False]

    @contextlib.contextmanager
    def capture(graph: object) -> Iterator[None]:
        capturing[0] = True
        yield
        capturing[0] = False

    cuda: Any = SimpleNamespace(Stream=lambda: SimpleNamespace(wait_stream=lambda other: None), current_stream=lambda: None,
                                stream=lambda stream: contextlib.nullcontext(), synchronize=lambda: None, CUDAGraph=object,
                                graph=capture, get_device_properties=lambda index: SimpleNamespace(L2_cache_size=1))
    bench = gpu.Bench(SimpleNamespace(cuda=cuda), 1, 0.0)
    bench.graph(lambda name: calls.append((name, capturing[0])), [("a",), ("b",), ("c",)])
    assert {name for name, captured in calls if not captured} == {"a", "b", "c"}
    assert [name for name, captured in calls if captured] == ["a", "b", "c"]


def test_bad_usage() -> None:
    for argv in ([], ["--build", "a", "--artifacts", "b"]):
        with pytest.raises(SystemExit):
            gpu.arguments(argv)
