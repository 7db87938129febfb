"""Decoding by a step of ours, which a loop of Python calls: what one call of the whole saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tools.bench.control import decoding
from tools.bench.operator_spec import Array, Operator, Shape
from tools.bench.peers import Bound, UnsupportedError

_WEIGHTS = ("e", *(f"{n}{layer}" for layer in range(decoding.LAYERS) for n in decoding.WEIGHTS))


class Stepped:
    """One compile of a step, for any length of the cache, which grows by a row at each call."""

    def __init__(self, threads: int) -> None:
        self._options = tw.CompileOptions(threads=threads)

    def version(self) -> str:
        return f"a step of tilewright {tw.__version__}, called from Python"

    def prepare(self, operator: Operator, constants: Mapping[str, Array]) -> None:
        if operator.kind not in decoding.KINDS:
            raise UnsupportedError(operator.name)
        self._beams = decoding.KINDS[operator.kind]
        graph, names = _graph(self._beams)
        bound = {f"arg{n}": constants[name] for n, name in enumerate(names) if name in _WEIGHTS}
        self._step = tw.compile(graph, {"L": (0, operator.ranges["T"][1])}, options=self._options, constants=bound)

    def bind(self, shape: Shape, arguments: Mapping[str, Array], output: Array) -> Bound:
        step, places, beams = self._step, arguments["x"], self._beams

        def decode() -> None:
            token = np.zeros(beams, np.int64)
            score = np.array([0.0] + [decoding.NONE] * (beams - 1), np.float32)
            caches: list[Any] = [np.empty((beams, 0, 2 * decoding.MODEL), np.float32)] * decoding.LAYERS
            for t, place in enumerate(places):
                token, score, *caches, output[t] = step(place, token, score, *caches)

        return Bound(decode, lambda: output)


def _graph(beams: int) -> tuple[ops.Graph, list[str]]:
    """A step, and the names of its arguments."""
    g = ops.Graph()
    model = decoding.MODEL
    place, token, score = g.input("place", [model]), g.input("token", [beams], "i64"), g.input("score", [beams])
    caches = tuple(g.input(f"cache{n}", [beams, "L", 2 * model]) for n in range(decoding.LAYERS))
    weights = {n: g.input(n, list(given.dims)) for n, given in decoding.inputs().items() if n in _WEIGHTS}
    h, logits, kept = decoding.grown(weights, place, token, caches)
    row = ops.select(h, 0, 0)
    if beams == 1:
        g.output(ops.argmax(logits, -1), score + 0.0, *kept, row)
    else:
        token, score, parent = decoding.best(score, logits)
        g.output(token, score, *(ops.gather(c, parent, 0) for c in kept), row)
    return g, ["place", "token", "score", *(f"cache{n}" for n in range(decoding.LAYERS)), *weights]
