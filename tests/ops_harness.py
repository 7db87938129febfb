"""Many builders of tw.ops in one graph: compiled once, run at several shapes, each result against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.reference import evaluate
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Array = np.ndarray[Any, Any]
Sizes = Sequence["int | str"]


@dataclass(frozen=True)
class Given:
    """An input: extents, element type, and (optionally) how its array is made from a generator and a shape."""

    dims: Sizes
    dtype: str = "f32"
    make: Callable[[np.random.Generator, tuple[int, ...]], Array] | None = None

    def array(self, random: np.random.Generator, sizes: Mapping[str, int]) -> Array:
        shape = tuple(Expr.parse(str(d)).evaluate(sizes) for d in self.dims)
        kind = DType(self.dtype)
        if self.make is not None:
            return self.make(random, shape).astype(kind.numpy)
        if kind is DType.I1:
            return random.integers(0, 2, shape).astype(bool)
        if kind.is_float:
            return random.standard_normal(shape).astype(kind.numpy)
        return random.integers(0 if kind.is_unsigned else -9, 10, shape).astype(kind.numpy)


@dataclass
class Checks:
    """Builders over named inputs with what NumPy says; `run` compiles them as one function."""

    inputs: Mapping[str, Given]
    dims: Mapping[str, tuple[int, int]]
    graph: ops.Graph = field(default_factory=ops.Graph)
    names: list[str] = field(default_factory=list)
    wants: list[Callable[[Mapping[str, Array], Mapping[str, int]], Array]] = field(default_factory=list)
    tensors: dict[str, ops.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = {name: self.graph.input(name, g.dims, g.dtype) for name, g in self.inputs.items()}

    def __getitem__(self, name: str) -> ops.Tensor:
        return self.tensors[name]

    def add(self, name: str, got: ops.Tensor, want: Callable[[Mapping[str, Array], Mapping[str, int]], Any]) -> None:
        """want(arrays, dims) in NumPy; its dtype must be that of the result too."""
        self.graph.output(got)
        self.names.append(name)
        self.wants.append(want)

    def run(self, shapes: Sequence[Mapping[str, int]], tolerance: float = 2e-5, **options: Any) -> Any:
        fn = tw.compile(self.graph, self.dims, **options)
        self._compare(fn, shapes, tolerance)
        return fn

    def evaluate(self, shapes: Sequence[Mapping[str, int]]) -> None:
        """The graph by the reference interpreter: what it means, without the seconds that its kernels take to compile."""
        text = self.graph.module_text()
        self._compare(lambda *arrays: tuple(evaluate(text, arrays, dtype_outputs=True)), shapes, 2e-5)

    def _compare(self, function: Callable[..., Any], shapes: Sequence[Mapping[str, int]], tolerance: float) -> None:
        for number, sizes in enumerate(shapes):
            random = np.random.default_rng(number)
            arrays = {n: g.array(random, sizes) for n, g in self.inputs.items()}
            results = function(*arrays.values())
            results = results if isinstance(results, tuple) else (results,)
            for name, want, got in zip(self.names, self.wants, results, strict=True):
                with np.errstate(all="ignore"):
                    wanted = np.asarray(want(arrays, sizes))
                agree(f"{name} at {dict(sizes)}", got, wanted, tolerance)


def agree(what: str, got: Array, wanted: Array, tolerance: float) -> None:
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    assert got.dtype == wanted.dtype, f"{what}: {got.dtype}, wanted {wanted.dtype}"
    if got.dtype.kind in "biu":
        assert np.array_equal(got, wanted), f"{what}: {got}, wanted {wanted}"
        return
    a, b = got.astype("f8"), wanted.astype("f8")
    assert np.array_equal(np.isnan(a), np.isnan(b)), f"{what}: NaN elsewhere"
    assert np.array_equal(np.isinf(a), np.isinf(b)) and np.array_equal(a[np.isinf(a)], b[np.isinf(b)]), f"{what}: inf elsewhere"
    finite = np.isfinite(b)
    limit = {2: 4e-3, 1: 0.1}.get(got.dtype.itemsize, tolerance)
    if got.dtype.itemsize == 2 and got.dtype != np.float16:
        limit = 2e-2
    error = np.abs(a[finite] - b[finite]).max(initial=0)
    scale = max(1.0, np.abs(b[finite]).max(initial=0))
    assert error <= limit * scale, f"{what}: error {error} of {scale}"
