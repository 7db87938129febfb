"""The door: what dims, options, targets and devices may be written as; functions in notebooks, logs and pickles."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from pickle import dumps, loads
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.runtime import log
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError
from tilewright.runtime.load.devices import Cuda, DeviceName, device_for
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target, TargetKind

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 8), (8, 4)))


def linear() -> ops.Graph:
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["T", 8]), graph.input("w", [8, 4])))
    return graph


@pytest.fixture(scope="module")
def fn() -> Any:
    return tw.compile(linear(), {"T": (1, 9)})


class TorchDim:
    """As torch.export.Dim: a name and two bounds."""

    def __init__(self, name: str, low: Any, high: Any) -> None:
        self.__name__, self.min, self.max = name, low, high

    def __repr__(self) -> str:
        return f"TorchDim({self.__name__}, {self.min}, {self.max})"


# -- dims


@pytest.mark.parametrize(("form", "want"), [
    ((1, 9), tw.Dim(1, 9)), ([1, 9], tw.Dim(1, 9)), ((np.int64(1), np.int32(9)), tw.Dim(1, 9)), (range(1, 10), tw.Dim(1, 9)),
    ((2, 8, 2), tw.Dim(2, 8, 2)), (range(2, 10, 2), tw.Dim(2, 8, 2)), (range(0, 9, 4), tw.Dim(0, 8, 4)),
    (TorchDim("b", 1, 9), tw.Dim(1, 9)), (tw.Dim(1, 9, samples=(4,)), tw.Dim(1, 9, samples=(4,))),
], ids=repr)  # fmt: skip
def test_forms_of_a_range(form: Any, want: tw.Dim) -> None:
    assert tw.Dim(form) == want == tw.Dim.of(form, "dim T")
    assert type(want.lo) is int and hash(tw.Dim(form)) == hash(want)


def test_a_dim_of_torch() -> None:
    torch = pytest.importorskip("torch")
    batch = torch.export.Dim("batch", min=2, max=16)
    assert tw.Dim(batch) == tw.Dim(2, 16)
    with pytest.raises(OptionError, match=r"dim b: wanted both bounds, got torch.export.Dim\('b'\) without a largest value"):
        tw.Dim.of(torch.export.Dim("b"), "dim b")
    with pytest.raises(OptionError, match=r"got 2\*batch, which follows from batch; give the range of batch alone"):
        tw.Dim.of(2 * batch, "dim b")
    with pytest.raises(OptionError, match=r"dim b: wanted .*DimHint"):
        tw.Dim.of(torch.export.Dim.AUTO, "dim b")


def test_places_and_samples_of_a_dim() -> None:
    assert tw.Dim(1, 9, at="x.0").at == ("x.0",) and tw.Dim(range(1, 10), at=["x.0", "y.1"]).at == ("x.0", "y.1")
    assert tw.Dim(tw.Dim(1, 9, at="x.0"), samples=np.arange(2, 4)) == tw.Dim(1, 9, samples=(2, 3), at="x.0")
    fn = tw.compile(linear(), {"T": tw.Dim(1, 9, at="arg0.0")})
    assert fn.program.dims[0].at == ("x.0",)


@pytest.mark.parametrize(("made", "message"), [
    (lambda: tw.Dim(1, "9"), "Dim: hi: wanted an integer, got '9'"),
    (lambda: tw.Dim(1.0, 9), "Dim: lo: wanted an integer, got 1.0"),
    (lambda: tw.Dim(True, 9), "Dim: lo: wanted an integer, got True"),
    (lambda: tw.Dim(1, 9, samples=4), "Dim: samples: wanted integers, got 4"),
    (lambda: tw.Dim(1, 9, samples=(10,)), "sample 10 is not a legal value; wanted values of 1..9"),
    (lambda: tw.Dim(1, 9, at=(0, 1)), "at: wanted places .* got 0; write it as text"),
    (lambda: tw.Dim(5, 7, 4), "wanted a multiple of 4 between 5 and 7"),
    (lambda: tw.Dim(range(0)), r"wanted a range that counts up and is not empty, got range\(0, 0\)"),
    (lambda: tw.Dim.of((5, 7, 4), "dim T"), r"dim T: Dim\(5, 7, multiple_of=4\)"),
])  # fmt: skip
def test_ranges_that_are_none(made: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        made()


def test_a_call_outside_the_range_names_the_argument(fn: Any) -> None:
    with pytest.raises(ShapeError, match=r"argument x, axis 0: dim T = 10 is outside its range 1\.\.9"):
        fn(np.zeros((10, 8), np.float32), W)


# -- options and targets


def test_options_as_a_dict() -> None:
    assert tw.CompileOptions.of({"precision": "bf16"}) == tw.CompileOptions(precision=tw.Precision.BF16)
    assert tw.CompileOptions.of(None) == tw.CompileOptions()
    assert tw.compile(linear(), {"T": (1, 9)}, options={"threads": 1})(X, W).shape == (4, 4)


@pytest.mark.parametrize("text", ["cpu", "llvm", "host"])
def test_other_words_for_the_host(text: str) -> None:
    assert Target.parse(text) == Target(TargetKind.HOST)
    assert Target.parse(f"{text}:x86-64-v3") == Target.parse("host:x86-64-v3")


def test_tune_is_compile_with_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr("tilewright.compiler.api._compile", lambda compilation: taken.append(compilation.options))
    tw.tune(linear(), {"T": (1, 9)})
    tw.tune(linear(), {"T": (1, 9)}, seconds=5, options={"policy": "random"})
    tw.tune(linear(), {"T": (1, 9)}, options={"trials": 7})
    assert [(o.seconds, o.trials, o.policy) for o in taken] == [(60.0, None, "ucb"), (5, None, "random"), (None, 7, "ucb")]
    both = [inspect.signature(f).parameters for f in (tw.compile, tw.tune)]
    assert {k: v for k, v in both[1].items() if k != "seconds"} == both[0]


# -- explain, notebooks, logs


def test_explain_takes_names_or_a_dict(fn: Any) -> None:
    assert fn.explain(T=5) == fn.explain({"T": 5}) == fn.explain(T=np.int64(5)) and fn.explain(T=5).dims == {"T": 5}
    assert fn.memory({"T": 5}) == fn.memory(T=5)


@pytest.mark.parametrize(("shape", "message"), [
    ({"K": 5}, r"the model has no dim 'K'; wanted a value for each of its dims: T \(1\.\.9\); give \(T=1\)"),
    ({}, r"dim T: wanted a value for each of the dims T \(1\.\.9\), got none; give T=1 too"),
    ({"T": 5, "K": 5}, "the model has no dim 'K'"),
    ({"T": "5"}, "dim T: wanted an integer, got '5' of type str"),
    ({"T": 5.0}, "dim T: wanted an integer, got 5.0 of type float"),
    ({"T": 10}, r"dim T = 10 is outside its range 1\.\.9"),
])  # fmt: skip
def test_explain_of_what_is_no_shape(fn: Any, shape: Mapping[str, Any], message: str) -> None:
    for ask in (fn.explain, fn.memory):
        with pytest.raises((OptionError, ShapeError), match=message):
            ask(**shape)


def test_a_shape_beyond_the_range_of_a_function_with_a_fallback() -> None:
    fn = tw.compile(linear(), {"T": (1, 9)}, options={"out_of_range": "fallback"})
    assert fn.explain(T=100).dims == {"T": 100}
    with pytest.raises(ShapeError, match="dim T = -1: wanted a size from 0 on"):
        fn.explain(T=-1)


def test_notebooks_get_tables(fn: Any) -> None:
    page, why = fn._repr_html_(), fn.explain(T=5)._repr_html_()
    assert "<td>x</td><td>f32[T, 8]</td>" in page and "<td>T</td><td>1..9</td>" in page
    assert "host_matmul" in why and "T=5" in why and why.count("<tr>") == 2
    assert "&lt;" in tw.compile("func.func @main(%a: tensor<2xf32> {tw.name = \"<b>\"}) -> tensor<2xf32> {\n"
                                "return %a : tensor<2xf32> }")._repr_html_()  # fmt: skip


def test_a_compile_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    with caplog.at_level(logging.DEBUG, logger="tilewright"):
        tw.compile(linear(), {"T": (1, 9)})
        assert "matmul: " in caplog.text and "host_matmul" in caplog.text and "graph passes: " in caplog.text
        caplog.clear()
        tw.compile(linear(), {"T": (1, 9)})
        assert "taken from the cache" in caplog.text and "graph passes" not in caplog.text


@pytest.mark.parametrize(("level", "shown"), [("0", []), ("1", ["built"]), ("2", ["built", "took"])])
def test_debug_shows_the_log(level: str, shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code = ("from tilewright.runtime.log import LOG, show_as_asked\nshow_as_asked(); show_as_asked()\n"
            "LOG.info('built'); LOG.debug('took')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                          env={**os.environ, "TILEWRIGHT_DEBUG": level, "PYTHONPATH": str(ROOT)})
    assert done.stderr.split("\n") == [*(f"tilewright: {line}" for line in shown), ""] and log.LOG.name == "tilewright"


# -- platforms and devices


@pytest.mark.parametrize("imported", ["tilewright.compiler.api", "tilewright.runtime.load.function"])
def test_another_platform_is_told_in_one_line(imported: str) -> None:
    code = (f"import platform, importlib\nplatform.machine = lambda: 'arm64'\nplatform.system = lambda: 'Darwin'\n"
            f"import tilewright\ntry:\n    importlib.import_module({imported!r})\n"
            "except tilewright.errors.DeviceError as error:\n    print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout.startswith("Tilewright runs on Linux x86-64, and this is Darwin arm64; use ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(("text", "kind", "ordinal"), [
    ("cpu", TargetKind.HOST, 0), ("host", TargetKind.HOST, 0), ("cuda", TargetKind.CUDA, 0), ("cuda:3", TargetKind.CUDA, 3),
    ("emulator", TargetKind.EMULATOR, 0),
])  # fmt: skip
def test_devices_by_name(text: str, kind: TargetKind, ordinal: int) -> None:
    assert DeviceName.parse(text) == DeviceName(kind, ordinal)


def test_load_on_a_device(fn: Any, tmp_path: Path) -> None:
    fn.save(tmp_path / "fn.tw")
    for device in (None, "cpu", "host", fn._device):
        np.testing.assert_array_equal(tw.load(tmp_path / "fn.tw", device=device)(X, W), fn(X, W))
    wrong = {"cpu:0": "leave '0' out", "cuda:x": "wanted 'cpu', 'emulator', or 'cuda' with", "cuad": "'cuda' is",
             0: "got int; write it as text"}  # fmt: skip
    for device, message in wrong.items():
        with pytest.raises(OptionError, match=message):
            tw.load(tmp_path / "fn.tw", device=device)


def test_load_on_a_gpu_of_a_number(tmp_path: Path) -> None:
    """Nothing is asked of the GPU before the first call."""
    fn = tw.compile(linear(), {"T": (1, 9)}, target="cuda:sm_80")
    fn.save(tmp_path / "fn.tw")
    assert tw.load(tmp_path / "fn.tw", device="cuda:1")._device == Cuda(1)
    assert loads(dumps(tw.load(tmp_path / "fn.tw", device="cuda:1")))._device == Cuda(1)


# -- pickles


class Loud(CompiledFunction):
    """A subclass with a call of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return "loud", super().__call__(*args, **kwargs)


def test_a_pickle_is_the_function_again() -> None:
    fn = tw.compile(linear(), {"T": (1, 9)}, constants={"w": W}, options={"threads": 1})
    again = loads(dumps(fn))
    assert type(again) is type(fn) and again.program == fn.program and again._caller.most_threads == 1
    np.testing.assert_array_equal(again(X), fn(X))
    np.testing.assert_array_equal(loads(dumps(again))(x=X), fn(X))


def test_a_pickle_of_a_subclass(fn: Any) -> None:
    bundle = fn._bundle
    loud = Loud(bundle.program, bundle.code, bundle.constants, device_for(bundle.program, bundle.code))
    assert type(loads(dumps(loud))) is Loud and loads(dumps(loud))(X, W)[0] == "loud"


def test_a_damaged_pickle(fn: Any) -> None:
    restore, (kind, data, device, threads) = fn.__reduce__()
    with pytest.raises(tw.errors.ArtifactError, match="the pickled function is truncated"):
        restore(kind, data[:-1], device, threads)


def test_a_function_goes_to_another_process(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(fn, (X, W)), fn(X, W))


def test_out_may_be_an_input_s_name() -> None:
    """Such an input is given by position; the keyword is the result's memory."""
    graph = ops.Graph()
    graph.output(graph.input("out", ["T"]) + 1.0)
    fn = tw.compile(graph, {"T": (1, 9)})
    assert list(fn(np.zeros(2, np.float32))) == [1, 1]
    with pytest.raises(DTypeError, match="pass out too"):
        fn(out=np.zeros(2, np.float32))
