"""Systems: what each process of the harness measures. This module has the protocol, the registry and NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from tools.bench.control.formulas import FORMULAS
from tools.bench.operator_spec import Array, Operator, Shape

OURS = "tilewright"
# name -> class; the part before the colon is the peer that --peers names, the rest a variant of it.
SYSTEMS: Mapping[str, str] = {
    OURS: "tools.bench.ours:Tilewright",
    "step": "tools.bench.control.own_step:Stepped",
    "numpy": "tools.bench.peers:NumPy",
    "numpy:avx2": "tools.bench.peers:NumPyAvx2",
    "torch": "tools.bench.torch_peers:Eager",
    "torch:compile": "tools.bench.control.torch_compile:Compiled",
    "onednn": "tools.bench.torch_peers:OneDnn",
    "ort": "tools.bench.ort_peers:Plain",
    "ort:fused": "tools.bench.ort_peers:Fused",
    "ort:module": "tools.bench.zoo.ort_system:OrtModule",
    "eager": "tools.bench.zoo.torch_systems:Eager",
    "inductor": "tools.bench.zoo.torch_systems:Inductor",
}


class UnsupportedError(Exception):
    """A system does not compute this operator; not a failure."""


@dataclass(frozen=True)
class Bound:
    """A call with its operands and result in place, and what reads the result of the last call."""

    call: Callable[[], object]
    result: Callable[[], Array]


class System(Protocol):
    """One implementation. Made once per process; `prepare` once per operator, `bind` once per shape."""

    def __init__(self, threads: int) -> None: ...

    def version(self) -> str: ...

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        """Compile, pack, or nothing; UnsupportedError when it cannot compute this."""

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound: ...


@runtime_checkable
class Explaining(Protocol):
    """A system that says what it computes an operator with."""

    def families(self) -> list[str]:
        """The families of the kernels of what was prepared, one for each kind of kernel."""


@runtime_checkable
class Saving(System, Protocol):
    """A system that can keep what it prepared in a file, and load that in place of preparing."""

    def save(self, path: str) -> None: ...

    def load(self, operator: Operator, path: str) -> None: ...


def make(name: str, threads: int) -> System:
    """The system of a name, in this process; ImportError when its package is absent."""
    module, _, member = SYSTEMS[name].partition(":")
    system: System = getattr(importlib.import_module(module), member)(threads)
    return system


def chosen(peers: str) -> list[str]:
    """Names of the systems for a comma-separated list of peers, ours first; a peer is all its variants, or one by full name."""
    wanted = [OURS, *(p.strip() for p in peers.split(",") if p.strip())]
    known = {name.partition(":")[0] for name in SYSTEMS}
    unknown = sorted(set(wanted) - known - set(SYSTEMS))
    if unknown:
        raise ValueError(f"unknown peer {', '.join(unknown)}; known: {', '.join(sorted(known - {OURS}))}")
    return [name for name in SYSTEMS if name in wanted or name.partition(":")[0] in wanted]


class NumPy:
    """NumPy with OpenBLAS. Constant weights gain nothing: its products take no packed operand."""

    level = ""

    def __init__(self, threads: int) -> None:
        from threadpoolctl import threadpool_limits

        self._limits = threadpool_limits(threads)
        self._operator: Operator | None = None
        self._constants: Mapping[str, Array] = {}

    def version(self) -> str:
        from threadpoolctl import threadpool_info

        blas: dict[str, str] = next((i for i in threadpool_info() if i.get("user_api") == "blas"), {})
        return f"numpy {np.__version__}, {blas.get('internal_api')} {blas.get('version')} {blas.get('architecture')}"

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        if operator.kind not in _NUMPY or operator.dtype != "f32" or operator.level != self.level:
            raise UnsupportedError(operator.name)
        self._operator, self._constants = operator, constants

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        assert self._operator
        call = _NUMPY[self._operator.kind]({**arguments, **self._constants}, output)
        return Bound(call, lambda: output)


class NumPyAvx2(NumPy):
    """With OpenBLAS's kernels for AVX2, which its process is started for (tools/bench/harness/interleave.py)."""

    level = "x86-64-v3"


def _matmul(a: Array, b: Array, out: Array) -> Callable[[], object]:
    return lambda: np.matmul(a, b, out=out)


def _written(formula: Callable[[Mapping[str, Array]], Array], a: Mapping[str, Array], out: Array) -> Callable[[], object]:
    return lambda: np.copyto(out, formula(a))


def _softmax(x: Array, out: Array) -> Callable[[], object]:
    def call() -> None:
        np.subtract(x, x.max(-1, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, out.sum(-1, keepdims=True), out=out)

    return call


def _layernorm(x: Array, g: Array, b: Array, out: Array) -> Callable[[], object]:
    def call() -> None:
        np.subtract(x, x.mean(-1, keepdims=True), out=out)
        scale = np.einsum("ij,ij->i", out, out)[:, None] / np.float32(x.shape[-1]) + np.float32(1e-5)
        np.multiply(out, 1 / np.sqrt(scale), out=out)
        np.multiply(out, g, out=out)
        np.add(out, b, out=out)

    return call


def _rmsnorm(x: Array, g: Array, out: Array) -> Callable[[], object]:
    def call() -> None:
        scale = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[-1]) + np.float32(1e-6)
        np.multiply(x, 1 / np.sqrt(scale), out=out)
        np.multiply(out, g, out=out)

    return call


_NUMPY: Mapping[str, Callable[[Mapping[str, Array], Array], Callable[[], object]]] = {
    "dense": lambda a, o: _matmul(a["x"], a["w"], o),
    "dense_nk": lambda a, o: _matmul(a["x"], a["w"].T, o),
    "bmm_nt": lambda a, o: _matmul(a["q"], a["k"].swapaxes(-1, -2), o),
    "bmm_nn": lambda a, o: _matmul(a["p"], a["v"], o),
    "softmax": lambda a, o: _softmax(a["x"], o),
    "layernorm": lambda a, o: _layernorm(a["x"], a["g"], a["b"], o),
    "rmsnorm": lambda a, o: _rmsnorm(a["x"], a["g"], o),
    **{kind: partial(_written, formula) for kind, formula in FORMULAS.items()},
}
