"""Typical mistakes, each answered with what was wanted, what came, and what to do.

The rubric: for each mistake the test lists one phrase for each of the three, and the message of the error scores one point for
each that it holds, so 0 to 3. The mean over all mistakes is 2.5 or more, none scores less than 2, and each error is one of
Tilewright's own classes: nothing raw of Python, NumPy, msgspec or MLIR reaches a caller.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.runtime.errors import TilewrightError

RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 8), (8, 4), (4,)))
DIMS = {"T": (1, 9)}
Y = np.zeros((3, 4), np.float32)
VECTOR = "func.func @main(%x: tensor<?xf32> {{{}}}) -> tensor<?xf32> {{\n  return %x : tensor<?xf32>\n}}"


class Given(NamedTuple):
    """What every mistake is made with."""

    model: ops.Graph
    fn: Any
    folder: Path


class Mistake(NamedTuple):
    name: str
    make: Callable[[Given], object]
    wanted: str
    came: str
    remedy: str

    def score(self, message: str) -> int:
        return sum(phrase in message for phrase in (self.wanted, self.came, self.remedy))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    graph = ops.Graph()
    x, w, b = graph.input("x", ["T", 8]), graph.input("w", [8, 4]), graph.input("bias", [4])
    graph.output(ops.matmul(x, w) + b)
    folder = tmp_path_factory.mktemp("mistakes")
    fn = tw.compile(graph, DIMS)
    fn.save(folder / "model.tw")
    (folder / "cut.tw").write_bytes((folder / "model.tw").read_bytes()[:-100])
    (folder / "model.mlir").write_text(graph.module_text())
    (folder / "page.mlir").write_text("<!DOCTYPE html>\n<html><body>404</body></html>\n")
    (folder / "empty.mlir").touch()
    (folder / "latin.mlir").write_bytes(graph.module_text().encode() + "// Größe".encode("latin-1"))
    (folder / "weights.npz").write_bytes(b"PK\x03\x04")
    (folder / "binary.pt2").write_bytes(bytes(range(64)))
    (folder / "binary.mlir").write_bytes(bytes(range(64)))
    return Given(graph, fn, folder)


def compiled(**named: Any) -> Callable[[Given], object]:
    return lambda g: tw.compile(g.model, **{"dynamic_dims": DIMS, **named})


def of(model: Callable[[Given], Any]) -> Callable[[Given], object]:
    return lambda g: tw.compile(model(g), DIMS)


def called(*args: Any, **named: Any) -> Callable[[Given], object]:
    return lambda g: g.fn(*args, **named)


MODELS = [
    ("a typo in a path", of(lambda g: g.folder / "modle.mlir"), "wanted the path of a file", "modle.mlir",
     "'model.mlir' is meant"),
    ("a folder", of(lambda g: g.folder), "wanted a file", "got a folder", "name the file in it"),
    ("a web page", of(lambda g: g.folder / "page.mlir"), "wanted MLIR text", "<!DOCTYPE html>", "download the file itself"),
    ("HTML as text", of(lambda g: "<html>\n<body></body></html>"), "wanted MLIR text", "<html>", "download the file itself"),
    ("an empty file", of(lambda g: g.folder / "empty.mlir"), "wanted MLIR text", "is empty", "export the model again"),
    ("an empty text", of(lambda g: ""), "wanted MLIR text", "an empty text", "pass one of these"),
    ("a binary file", of(lambda g: g.folder / "binary.mlir"), "wanted its text or bytecode", "other binary content",
     "export the"),
    ("a text that does not parse", of(lambda g: "func.func @main( {\n}"), "valid MLIR", '"-":1:17', "correct it there"),
    ("a saved model", of(lambda g: g.folder / "model.tw"), "wanted a model to compile", "got what save() wrote", "tw.load("),
    ("a file of weights", of(lambda g: g.folder / "weights.npz"), "wanted a model", "got a .npz file", "constants="),
    ("a state dict", of(lambda g: {"w": W}), "wanted MLIR text", "from dict", "pass the torch.nn.Module"),
    ("a list of models", of(lambda g: [g.model]), "wanted MLIR text", "from list", "compile each model by itself"),
    ("an array", of(lambda g: W), "wanted MLIR text", "from ndarray", "goes to the compiled function"),
    ("a class", of(lambda g: ops.Graph), "wanted MLIR text", "the class Graph", "pass an instance, Graph(...)"),
    ("a function", of(lambda g: lambda x: x), "wanted MLIR text", "from function", "tw.ops"),
    ("no model", of(lambda g: None), "wanted MLIR text", "from NoneType", "pass one of these"),
    ("no .onnx file", of(lambda g: "none.onnx"), "wanted the path of a file", "none.onnx", "check the path"),
    ("tw.dims of another form", of(lambda g: VECTOR.format('tw.dims = "T"')), "wanted a name, size", 'tw.dims = "T"',
     "write it as"),
    ("tw.name of another form", of(lambda g: VECTOR.format("tw.name = 3")), "wanted a text", "tw.name = 3", "write it as"),
    ("a file that is no archive", of(lambda g: g.folder / "binary.pt2"), "torch.export.save wrote", "no archive", "save it"),
    ("example inputs for a graph", compiled(args=(X,)), "for a torch.nn.Module", "got Graph", "leave them out"),
    ("a file that is no UTF-8", of(lambda g: g.folder / "latin.mlir"), "wanted .mlir", "is no text in UTF-8",
     "the name of a file"),
    ("half a character", of(lambda g: "func.func @main() {\n} // \udc80"), "wanted characters", "got '\\udc80'",
     "decode the file"),
    ("a name of bytes", of(lambda g: VECTOR.format('tw.name = "\\FF"')), "name in UTF-8", r'"\FF" is no text', "write the name"),
    ("an array of index", of(lambda g: VECTOR.format("").replace("?xf32", "4xindex")),
     "a caller has no arrays of index", "tensor<4xindex>", "cast it to i64"),
    ("an axis that is none", of(lambda g: "func.func @main(%x: tensor<4xf32>) -> index {\n  %c = arith.constant 7 : index\n"
                                "  %d = tensor.dim %x, %c : tensor<4xf32>\n  return %d : index\n}"),
     "wanted one from 0 to 0", "axis 7", "correct the model"),
    ("groups of no axes", of(lambda g: "func.func @main(%x: tensor<1x4xf32>) -> tensor<4xf32> {\n  %c = tensor.collapse_shape %x "
                               "[[-9223372036854775808, 1]] : tensor<1x4xf32> into tensor<4xf32>\n"
                               "  return %c : tensor<4xf32>\n}"),
     "wanted each of the 2 axes of tensor<1x4xf32> once", "[[-9223372036854775808, 1]]", "correct the model"),
    ("another function", compiled(function="forward"), "public: @main", "no function @forward", 'choose it with function="name"'),
]
DIM_MISTAKES = [
    ("no dims", compiled(dynamic_dims=None), "The dimensions of @main are", "no range is given for T", "paste and edit"),
    ("another dim", compiled(dynamic_dims={"S": (1, 9)}), "at x.0", "S fits no dimension", 'paste and edit: dynamic_dims={"T"'),
    ("an unknown argument", compiled(dynamic_dims={"y.0": (1, 9)}), "arguments x, w, bias", "'y.0' is not", "place such as x.0"),
    ("a static axis", compiled(dynamic_dims={**DIMS, "w.0": (1, 9)}), "no dynamic axis", "always 8", "leave it out"),
    ("an axis too many", compiled(dynamic_dims={"T": tw.Dim(1, 9, at="x.5")}), "no dynamic axis", "'x.5'", "name one of x.0"),
    ("lo > hi", compiled(dynamic_dims={"T": (9, 1)}), "wanted 0 <= lo <= hi", "lo = 9 and hi = 1", "swap them, (1, 9)"),
    ("a range as text", compiled(dynamic_dims={"T": "1:9"}), "dim T: wanted (lo, hi)", "'1:9'", "give both ends"),
    ("one number", compiled(dynamic_dims={"T": 9}), "dim T: wanted (lo, hi)", "the number 9", "(1, 9)"),
    ("an open range", compiled(dynamic_dims={"T": (1, None)}), "wanted an integer", "got None", "convert it with int()"),
    ("a range that begins off its step", compiled(dynamic_dims={"T": range(1, 9, 2)}), "wanted multiples of the step 2",
            "range(1, 9, 2)", "give (1, 7)"),
    ("a range without end", compiled(dynamic_dims={"T": (1, 10**30)}), "wanted sizes below 2**63", "got 1000", "the largest"),
    ("a range beyond 63 bits", compiled(dynamic_dims={"T": (1, 2**63)}), "wanted sizes below 2**63", f"got {2**63}",
     "the largest"),
    ("an infinite range", compiled(dynamic_dims={"T": (1, float("inf"))}), "wanted an integer", "got inf",
     "convert it with int()"),
    ("dims as a list", compiled(dynamic_dims=[(1, 9)]), "wanted a dict", "got list", "give each dim its name and range"),
    ("a number as a dim's name", compiled(dynamic_dims={0: (1, 9)}), "wanted the name of a dim", "got 0", "write it as text"),
]
OPTION_MISTAKES = [
    ("a typo in an option", compiled(options={"secnods": 60}), "wanted threads, seconds", "'secnods'", "'seconds' is meant"),
    ("a typo by keyword", lambda g: tw.CompileOptions(thread=1), "wanted threads, seconds", "'thread'", "'threads' is meant"),
    ("seconds in place of options", compiled(options=60), "wanted tw.CompileOptions or a dict", "got 60", "name the option"),
    ("no target", compiled(target=None), "wanted a text such as 'host'", "got None", "write it as text"),
    ("a fraction beyond all floats", compiled(options={"max_regret": 10**400}), "wanted a fraction", "max_regret=1000",
     "leave it out"),
    ("no threads", compiled(options={"threads": 0}), "wanted an integer >= 1", "threads=0", "leave it out"),
    ("seconds as text", compiled(options={"seconds": "60"}), "wanted a number of seconds", "'60'", "leave it out"),
    ("a precision of another name", compiled(options={"precision": "fp16"}), "wanted one of 'f32'", "'fp16'", "'f16' is meant"),
    ("a target of another name", compiled(target="gpu"), "wanted one of host, cuda", "target 'gpu'", "write 'cuda'"),
    ("an architecture alone", compiled(target="sm_90a"), "wanted one of host, cuda", "target 'sm_90a'", "write 'cuda:sm_90a'"),
    ("an unknown architecture", compiled(target="cuda:sm90"), "wanted an architecture such as", "got 'sm90'",
     "as in cuda:sm_90a"),
    ("an unknown CPU", compiled(target="cpu:avx512"), "wanted host or one of", "level 'avx512'", "host:x86-64-v4"),
    ("a target that is no text", compiled(target=0), "wanted a text such as 'host'", "got 0", "write it as text"),
    ("a callback that is none", compiled(options={"callback": 5}), "wanted a function", "callback=5", "leave it out"),
    ("a file as a store", compiled(options={"log": f"{__file__}/"}), "wanted a folder", "is a file", "leave the / at its end"),
    ("a constant by number", compiled(constants={2: B}), "name one of x, w, bias", "constants name 2", "name one of"),
    ("a donation by number", compiled(donate=(0,)), "name one of x, w, bias", "donate names 0", "name one of"),
    ("a constant of another name", compiled(constants={"baias": B}), "name one of x, w, bias", "'baias'", "'bias' is meant"),
    ("a constant transposed", compiled(constants={"w": W.T}), "wanted shape (8, 4)", "got (4, 8)", "transpose or reshape it"),
    ("a constant of f64", compiled(constants={"w": W.astype("d")}), "wanted float32", "got float64", ".astype('float32')"),
    ("a constant as a path", compiled(constants={"w": "w.npy"}), "wanted an array of numbers", "str 'w.npy'", "load or convert"),
    ("a constant with a dim", compiled(constants={"x": X}), "only tensors of static shape", "f32[T, 8]", "pass it in each call"),
    ("a constant under half a character", compiled(constants={"\udc80": W}), "name one of x, w, bias", "constants name",
     "name one"),
    ("constants as a list", compiled(constants=[W]), "wanted a dict", "got list", "name of its argument"),
    ("a donation of another name", compiled(donate=("y",)), "name one of x, w, bias", "donate names 'y'", "name one of"),
    ("a donation as text", compiled(donate="x"), "wanted names of arguments", "got 'x'", "('x',)"),
    ("a donation that no result takes", compiled(donate=("w",)), "wanted a result of its type", "f32[T, 4]", "leave it out"),
]
CALLS = [
    ("too few", called(X, W), "wanted 3 arguments", "got 2", "pass bias too"),
    ("too many", called(X, W, B, B), "wanted 3 arguments", "got 4", "leave the rest out"),
    ("a typo in a keyword", called(X, W, bais=B), "wanted the arguments", "got bais=", "'bias' is meant"),
    ("one argument twice", called(X, W, B, x=X), "wanted one value", "got two", "give it once"),
    ("f64 for f32", called(X.astype("d"), W, B), "wanted f32", "got float64", "x.astype('float32')"),
    ("another rank", called(X[0], W, B), "wanted rank 2", "shape (8,)", "reshape it to [T, 8]"),
    ("another extent", called(X, W[:7], B), "wanted extent 8", "got 7", "pass an array of that extent"),
    ("outside the range", called(np.zeros((10, 8), np.float32), W, B), "its range 1..9", "T = 10", "compile with a wider range"),
    ("a list for an array", called(X.tolist(), W, B), "wanted an array", "got list", "numpy.asarray"),
    ("None for an array", called(X, W, None), "wanted an array", "got NoneType", "numpy.asarray"),
    ("out of another shape", called(X, W, B, out=np.zeros((3, 5), np.float32)), "wanted shape (3, 4)", "got (3, 5)",
     "numpy.empty("),
    ("out of f64", called(X, W, B, out=np.zeros((3, 4))), "wanted f32", "got float64", "numpy.empty("),
    ("out that is not contiguous", called(X, W, B, out=np.zeros((3, 8), np.float32)[:, ::2]), "wanted C-contiguous memory",
            "strides (32, 8)", "numpy.empty("),
    ("out for two results", called(X, W, B, out=(Y, Y)), "wanted 1 arrays", "got 2", "pass one"),
    ("out over an input", called(X, W, B, out=X.reshape(-1)[:12].reshape(3, 4)), "out overlaps", "the input x",
     "pass other memory"),
    ("threads as text", called(X, W, B, threads="2"), "wanted an integer >= 1", "threads='2'", "give a number"),
    ("a stream on the host", called(X, W, B, stream=1), "wanted None", "stream=1", "leave it out"),
    ("explain of an unknown dim", lambda g: g.fn.explain(K=5), "wanted a value for each of its dims: T (1..9)", "'K'",
     "give (T=1)"),
    ("explain of a fraction", lambda g: g.fn.explain(T=5.5), "wanted an integer", "got 5.5", "convert it with int()"),
    ("explain by position", lambda g: g.fn.explain(5), "wanted each dim by its name", "got 5", "give it as T=5"),
    ("explain outside the range", lambda g: g.fn.explain(T=50), "its range 1..9", "T = 50", "compile with a wider range"),
]
FILES = [
    ("load of a model's text", lambda g: tw.load(g.folder / "model.mlir"), "that save() wrote", "not a Tilewright",
     "tw.compile("),
    ("load of a truncated file", lambda g: tw.load(g.folder / "cut.tw"), "wanted", "found", "copy or save it again"),
    ("load of no file", lambda g: tw.load("no.tw"), "that save() wrote", "No such file", "check the path"),
    ("load of a folder", lambda g: tw.load(g.folder), "that save() wrote", "it is a folder", "model.tw"),
    ("load on another device", lambda g: tw.load(g.folder / "model.tw", device="cuda"), "none for cuda", "code for host",
            "compile it for cuda"),
    ("load on no device", lambda g: tw.load(g.folder / "model.tw", device="tpu"), "wanted one of cpu, cuda", "'tpu'", "or None"),
    ("load of a null byte", lambda g: tw.load("a\0b"), "wanted the path", "a null byte", "leave it out"),
    ("load of a function", lambda g: tw.load(g.fn), "wanted the path", "got CompiledFunction", "give it as text"),
    ("save in no folder", lambda g: g.fn.save(g.folder / "no" / "m.tw"), "m.tw", "does not exist", "create it first"),
    ("save over a folder", lambda g: g.fn.save(g.folder), "give a file name", "it is a folder", "such as"),
    ("save where nothing may be written", lambda g: g.fn.save("/proc/model.tw"), "may be written", "cannot write",
     "choose a folder"),
]
ALL = [Mistake(*row) for row in (*MODELS, *DIM_MISTAKES, *OPTION_MISTAKES, *CALLS, *FILES)]


def message(mistake: Mistake, given: Given) -> str:
    with pytest.raises(TilewrightError) as caught:
        mistake.make(given)
    return str(caught.value)


@pytest.mark.parametrize("mistake", ALL, ids=lambda m: m.name)
def test_a_mistake_is_answered(mistake: Mistake, given: Given) -> None:
    said = message(mistake, given)
    assert mistake.score(said) >= 2, said


def test_the_mean_of_all(given: Given) -> None:
    assert len({m.name for m in ALL}) == len(ALL) >= 40
    assert sum(m.score(message(m, given)) for m in ALL) / len(ALL) >= 2.5
