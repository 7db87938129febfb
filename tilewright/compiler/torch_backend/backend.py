"""`torch.compile(model, backend="tilewright")`: graphs that Dynamo captures, compiled once for all their symbolic sizes.

A captured graph is exported again, so that composite operators stay whole, with the weights inside and every symbolic size as a
dim. What cannot be compiled runs as PyTorch runs it, with one line in the log: the operators that the importer does not know, a
graph that it refuses, a graph that needs gradients, a call at sizes that the compiled function does not serve.
`torch._dynamo.utils.counters["tilewright"]` counts graphs compiled, graphs in parts, graphs and calls in eager mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.torch_backend.capture import Capture, capture, number_inputs
from tilewright.compiler.torch_backend.part import Part, export, tied_symbols
from tilewright.compiler.torch_backend.partition import in_parts
from tilewright.runtime.errors import OptionError, ShapeError, TilewrightError

_LOG = logging.getLogger("tilewright")
_VARIANTS = 8  # most compiled functions of one graph, for different numbers that it is specialised for
Call = Callable[..., Any]


def tilewright(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Call:
    """What torch.compile calls for every graph.

    Args:
        options: of CompileOptions by name, such as {"seconds": 60}; and "target".
        mode: not used by this backend.
    Raises:
        OptionError: an option that is not known, or a mode.
    """
    if mode is not None:
        raise OptionError(f"backend tilewright: mode={mode!r} means nothing here; pass options={{...}} of CompileOptions")
    given = dict(options or {})
    target = given.pop("target", None) or _target(example_inputs)
    asked = CompileOptions(**{"out_of_range": "fallback", **given})
    if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in example_inputs):
        return _eager(gm, "its inputs or weights require gradients, and only inference is compiled: call the model under "
                          "torch.no_grad() or torch.inference_mode()")
    return _Graph(gm, asked, target, example_inputs)


def _target(values: Sequence[Any]) -> str:
    return "cuda" if any(isinstance(v, torch.Tensor) and v.is_cuda for v in values) else "host"


def _eager(gm: GraphModule, why: str) -> Call:
    counters["tilewright"]["eager graphs"] += 1
    _LOG.warning("torch.compile: a graph of %d operators runs in eager mode: %s", _operators(gm), why)
    forward: Call = gm.forward
    return forward


def _operators(gm: GraphModule) -> int:
    return sum(n.op.startswith("call_") for n in gm.graph.nodes)


class _Graph:
    """One captured graph: compiled functions for the weights and numbers that it has met."""

    def __init__(self, gm: GraphModule, options: CompileOptions, target: str, values: Sequence[Any]) -> None:
        self._gm, self._options, self._target = gm, options, target
        self._binds_weights = True
        self._warned = False
        self._variants: dict[tuple[Any, ...], _Variant | None] = {}
        self._numbers = number_inputs(gm)
        self._variant(values)

    def __call__(self, *args: Any) -> Any:
        variant = self._variants.get(tuple(args[i].item() for i in self._numbers)) or self._variant(args)
        if variant is not None and not variant.holds(args):
            self._binds_weights = False  # they change: from now on they are arguments
            self._variants.clear()
            variant = self._variant(args)
        if variant is None or not variant.takes(args):
            return self._gm.forward(*args)
        try:
            return variant(*args)
        except ShapeError as error:
            counters["tilewright"]["eager calls"] += 1
            if not self._warned:
                _LOG.warning("torch.compile: calls at sizes that were not compiled run in eager mode: %s", error)
                self._warned = True
            return self._gm.forward(*args)

    def _variant(self, values: Sequence[Any]) -> _Variant | None:
        """The compiled function for these weights and numbers; None where the graph runs in eager mode."""
        key = tuple(values[i].item() for i in self._numbers)
        if key not in self._variants:
            if len(self._variants) == _VARIANTS:
                return None
            self._variants[key] = self._compiled(capture(self._gm, values, self._numbers, self._binds_weights), values)
        return self._variants[key]

    def _compiled(self, found: Capture, values: Sequence[Any]) -> _Variant | None:
        if not found.made:
            return None
        try:
            with torch._guards.tracing(None):  # what Dynamo knows of its own trace does not hold for the program's
                part = self._part(found)
            if found.rest is not None and isinstance(part, Part) and part.changes_state:
                _eager(self._gm, "it changes its inputs and returns views of them")
                return None
        except TilewrightError as error:
            _eager(self._gm, str(error))
            return None
        counters["tilewright"]["graphs" if isinstance(part, Part) else "graphs in parts"] += 1
        return _Variant(found, part, values)

    def _part(self, found: Capture) -> Part | Call:
        """The graph for all sizes; where it needs equations that Dynamo's guards ensure, with the sizes in them as they are."""
        tied = tied_symbols(found.fakes)
        try:
            return in_parts(export(found.module, found.fakes), self._options, self._target)
        except TilewrightError:
            if not tied:
                raise
        return in_parts(export(found.module, found.fakes, tied), self._options, self._target)


class _Variant:
    """A compiled function for one set of weights and numbers."""

    def __init__(self, found: Capture, part: Call, values: Sequence[Any]) -> None:
        self._found, self._part = found, part
        self._weights = [(i, values[i].data_ptr(), values[i]._version) for i in found.weights]

    def holds(self, args: Sequence[Any]) -> bool:
        """Are the weights those that are inside?"""
        return all(args[i].data_ptr() == at and args[i]._version == version for i, at, version in self._weights)

    def takes(self, args: Sequence[Any]) -> bool:
        """Are the integers among the arguments those that the graph was specialised for?"""
        return not isinstance(self._part, Part) or self._part.takes([args[i] for i in self._found.inputs])

    def __call__(self, *args: Any) -> Any:
        made = self._part(*(args[i] for i in self._found.inputs))
        if self._found.rest is None:
            return tuple(made)
        results: list[Any] = [None] * self._found.results
        for i, value in zip(self._found.made, made, strict=True):
            results[i] = value
        left = [i for i in range(len(results)) if i not in self._found.made]
        for i, value in zip(left, self._found.rest(*args), strict=True):
            results[i] = value
        return tuple(results)
