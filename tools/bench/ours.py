"""Tilewright through its public interface: tw.compile with default options, operands and results in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.control.graphs import GRAPHS
from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError
from tools.bench.zoo import modules


class Tilewright:
    """One compile per operator for its whole range.

    Args:
        log: tuning log; None measures the configurations that the rules choose.
    """

    def __init__(self, threads: int, log: str | None = None) -> None:
        self._options = tw.CompileOptions(threads=threads, log=log)
        self._operator: Operator | None = None
        self._fn: Any = None

    def version(self) -> str:
        return f"tilewright {tw.__version__}"

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        self._operator = operator
        self._fn = compiled(operator, constants, self._options)

    def families(self) -> list[str]:
        """Of every workload the families of its kernels."""
        return ["+".join(dict.fromkeys(k.family for k in t.kernels)) for t in self._fn.program.tables]

    def save(self, path: str) -> None:
        self._fn.save(path)

    def load(self, operator: Operator, path: str) -> None:
        """A loaded function keeps to the cores that the process has at the time, not to the threads it was compiled for."""
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(cores)[-(self._options.threads or len(cores)) :])
        try:
            self._operator, self._fn = operator, tw.load(path)
        finally:
            os.sched_setaffinity(0, cores)

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        fn, values = self._fn, tuple(arguments.values())
        if self._operator and self._operator.kind == modules.KIND:
            results = fn(*values)
            outputs = modules.leaves(results)
            return Bound(lambda: fn(*values, out=results), lambda: modules.flat(outputs))
        return Bound(lambda: fn(*values, out=output), lambda: output)


def compiled(operator: Operator, constants: Mapping[str, Array], options: tw.CompileOptions,
             progress: Callable[[Any], None] | None = None) -> Any:
    """The compiled function of an operator; `progress` is told how a search goes."""
    names = {n: f"arg{i}" for i, n in enumerate(operator.inputs)}
    followed = replace(options, progress=progress or options.progress)
    if operator.kind == modules.KIND:
        given = modules.subject(operator)
        return tw.compile(given.module, operator.ranges, options=followed, args=given.example,
                          dynamic_shapes=given.dynamic_shapes)
    bound = {names[n]: a for n, a in constants.items()}
    at = (str(operator.params["at"]),) if "mlir" in operator.params else None
    dims = {n: tw.Dim(lo, hi, at=at) for n, (lo, hi) in operator.ranges.items()}
    model = Path(str(operator.params["mlir"])) if "mlir" in operator.params else graph(operator)
    target = f"host:{operator.level}" if operator.level else "host"
    return tw.compile(model, dims, target=target, options=followed, constants=bound)


def graph(operator: Operator) -> ops.Graph:
    """The operator as our builders make it."""
    if operator.kind not in _KINDS:
        raise UnsupportedError(operator.name)
    g = ops.Graph()
    inputs = {n: g.input(n, list(i.dims), operator.dtype) for n, i in operator.inputs.items()}
    g.output(_KINDS[operator.kind](inputs, operator.params))
    return g


def _conv(a: Mapping[str, ops.Tensor], p: Mapping[str, Any]) -> ops.Tensor:
    return ops.conv2d(a["x"], a["w"], stride=p["stride"], padding=p["padding"], layout=p["layout"])


_KINDS: Mapping[str, Callable[[Mapping[str, ops.Tensor], Mapping[str, Any]], ops.Tensor]] = {
    "dense": lambda a, p: ops.dense(a["x"], a["w"]),
    "dense_nk": lambda a, p: ops.matmul(a["x"], a["w"], transpose_b=True),
    "dense_pool": lambda a, p: ops.dense(a["x"], ops.decode_pool(a["w"], a["p"]), transposed=True),
    "dense_codes": lambda a, p: ops.dense(a["x"], ops.decode(a["w"], a["s"], bits=4, group=32), transposed=True),
    "bmm_nt": lambda a, p: ops.batch_matmul(a["q"], a["k"], transpose_b=True),
    "bmm_nn": lambda a, p: ops.batch_matmul(a["p"], a["v"]),
    "softmax": lambda a, p: ops.softmax(a["x"]),
    "layernorm": lambda a, p: ops.layernorm(a["x"], a["g"], a["b"]),
    "rmsnorm": lambda a, p: ops.rmsnorm(a["x"], a["g"]),
    "attention": lambda a, p: ops.attention(a["q"], a["k"], a["v"], causal=bool(p["causal"])),
    "conv": _conv,
    **{kind: lambda a, p, made=made: made(a) for kind, made in GRAPHS.items()},  # type: ignore[misc]
}
