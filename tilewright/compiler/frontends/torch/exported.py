"""From a model to an ExportedProgram whose operators the table knows, and the dims' names that its user gave."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from tilewright.compiler.frontends.registry import lowerings
from tilewright.compiler.frontends.torch.context import operator_name
from tilewright.compiler.frontends.torch.control_flow import CONTROL
from tilewright.compiler.frontends.torch.in_place import functional_name
from tilewright.compiler.frontends.torch.lengths import lengths_as_sizes
from tilewright.compiler.frontends.torch.local_decomposition import decomposed_in_place
from tilewright.compiler.frontends.torch.traced_calls import NarrowedError, TracedCalls
from tilewright.compiler.frontends.torch.widened import calls_within_ranges, size_of, widened
from tilewright.compiler.frontends.torch.written_views import without_writes
from tilewright.runtime.errors import IngestError, OptionError
from tilewright.runtime.shape import Dim as Range
from tilewright.runtime.shape import Expr

Ranges = Mapping[str, Range]
ELEMENTS = ("aten.item.default", "aten._local_scalar_dense.default")  # a tensor's element as a number
INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def export_module(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any, ranges: Ranges
) -> ExportedProgram:
    """The program of a module in eval mode; axes named by strings become dims of the ranges given.

    Raises:
        IngestError: the module is in training mode, or torch.export refuses it; says why.
    """
    if model.training:
        raise IngestError(f"{model._get_name()} is in training mode, where dropout and batch norm act differently; "
                          "call model.eval() first")
    shapes = _with_dims(dynamic_shapes, ranges)
    try:
        return _export(model, args, kwargs, shapes, calls_within_ranges(shapes))
    except IngestError:
        raise
    except Exception as error:  # torch.export raises whatever the model and its own checks raise
        narrow = _is_of_ranges(error)
        given = given_dims(model, args, kwargs, shapes) if narrow else ()
        found = widened(lambda free, calls: _export(model, args, kwargs, free, calls), shapes, given) if narrow else ""
        if isinstance(found, ExportedProgram):
            return found
        if not found and isinstance(error, NarrowedError):
            return _whole_export(model, args, kwargs, shapes)  # for what torch.export says
        why = found.rstrip() or _why(error)
        raise IngestError(f"torch.export refuses {model._get_name()}: {why}") from error


def _whole_export(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any) -> ExportedProgram:
    """An export to the end."""
    try:
        return _export(model, args, kwargs, shapes, TracedCalls())
    except IngestError:
        raise
    except Exception as error:  # as above
        raise IngestError(f"torch.export refuses {model._get_name()}: {_why(error)}") from error


def _why(error: Exception) -> str:
    """What torch.export says; of a condition on data its line and what to do, in place of torch's advice."""
    text = str(error)
    condition = re.search(r"data-dependent expression (.+?)(?: \(unhinted|\.?\s*$)", text, re.MULTILINE)
    kind = re.search(r"Found <class '(.+?)'> in output, which is not a known type", text)
    if kind is not None:
        return (f"it returns a {kind[1]}, which PyTorch cannot take apart; register it, by torch.export.register_dataclass"
                f"({kind[1].rpartition('.')[2]}) where it is a dataclass, or return tuples and dicts")
    if condition is None or not isinstance(error, GuardOnDataDependentSymNode):
        return f"{type(error).__name__}: {text}"
    line = re.search(r'File "([^"]+)", line (\d+), in (\w+)\s+(.+)', text)
    at = f" at {line[1]}:{line[2]} in {line[3]} ({line[4].strip()})" if line else ""
    return (f"the model decides by data, {condition[1]},{at}; u0, zuf0 and such are numbers read from tensors, as by .item(), "
            "int() or torch.div of sizes. Compute sizes from x.shape in Python (with //), and branch on data by torch.cond or "
            "torch.where")


def _is_of_ranges(error: Exception) -> bool:
    """Does torch.export refuse the ranges of dims? It fails over ranges that it would propose, too, where they hold no size."""
    violated = isinstance(error, UserError) and error.error_type is UserErrorType.CONSTRAINT_VIOLATION
    empty = isinstance(error, AssertionError) and "Cannot create Dim with inconsistent" in str(error)
    return violated or empty or isinstance(error, NarrowedError)


def _export(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any, calls: TracedCalls
) -> ExportedProgram:
    with torch.no_grad(), calls, lengths_as_sizes(model):
        return torch.export.export(model, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False)


def _with_dims(shapes: Any, ranges: Ranges) -> Any:
    """Strings in dynamic_shapes as Dim objects, one for each name."""
    dims: dict[str, Any] = {}

    def dim(name: str) -> Any:
        if name not in dims:
            if not name.isidentifier():
                raise OptionError(f"dynamic_shapes: {name!r} is no name for a dim; use an identifier such as batch")
            known = ranges.get(name)
            dims[name] = Dim(name, min=known.lo, max=known.hi) if known else Dim(name)
        return dims[name]

    def walk(spec: Any) -> Any:
        if isinstance(spec, str):
            return dim(spec)
        if isinstance(spec, Mapping):
            return {k: walk(v) for k, v in spec.items()}
        if isinstance(spec, (tuple, list)):
            return type(spec)(walk(v) for v in spec)
        return spec

    return walk(shapes)


def given_sizes(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[dict[int, Expr]]:
    """For every leaf of the model's inputs, in torch.export's order, what dynamic_shapes says: axis -> its size by dims."""
    given = given_dims(model, args, kwargs, dynamic_shapes)
    return [{axis: size_of(dim) for axis, dim in axes.items()} for axes in given]


def given_ranges(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any) -> dict[str, Range]:
    """The ranges of the Dim objects of dynamic_shapes that have an upper bound."""
    found: dict[str, Range] = {}
    for axes in given_dims(model, args, kwargs, dynamic_shapes):
        for dim in axes.values():
            root = getattr(dim, "root", dim)
            if not isinstance(dim, str) and isinstance(root.max, int):
                found[root.__name__] = Range(max(root.min, 1), root.max)
    return found


def given_dims(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[dict[int, Any]]:
    """For every leaf of the model's inputs: axis -> the Dim or name that dynamic_shapes has for it."""
    signature = inspect.signature(model.forward)
    bound = dict(signature.bind(*args, **kwargs).arguments)
    if isinstance(dynamic_shapes, (tuple, list)):
        dynamic_shapes = dict(zip(bound, dynamic_shapes, strict=False))
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and name in bound:  # torch.export names each by itself
            bound |= bound.pop(name)
            inside = (dynamic_shapes or {}).get(name) if isinstance(dynamic_shapes, Mapping) else None
            dynamic_shapes = {**dynamic_shapes, **inside} if isinstance(inside, Mapping) else dynamic_shapes
    leaves, _ = pytree.tree_flatten_with_path(bound)
    return [_dims_at(dynamic_shapes, path) for path, _ in leaves]


def _dims_at(spec: Any, path: Sequence[Any]) -> dict[int, Any]:
    for key in path:
        if spec is None:
            return {}
        name = next(getattr(key, part) for part in ("key", "idx", "name") if hasattr(key, part))
        if isinstance(spec, Mapping):
            spec = spec.get(name)
        else:
            spec = spec[name] if isinstance(spec, (tuple, list)) and isinstance(name, int) and name < len(spec) else None
    axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec) if isinstance(spec, (tuple, list)) else ()
    return {axis: dim for axis, dim in axes if isinstance(dim, (str, Dim))}


def with_known_operators(program: ExportedProgram) -> ExportedProgram:
    """The same program without in-place operators, and with the operators that the table does not know decomposed.

    By PyTorch's core decompositions, and what these leave by all others, as far as they can be traced.

    Raises:
        IngestError: torch.export cannot take the in-place operators out.
    """
    traced_again = False  # what is no operator is gone then: casts of autocast, and axes that torch.vmap hides
    for node in nodes(program.graph_module):
        if operator_name(node.target) == "wrap_with_autocast":
            traced_again |= bool(node.args[2])
        elif getattr(node.target, "__module__", "") == "torch._functorch.predispatch":
            traced_again = True
        elif isinstance(node.target, torch._ops.HigherOrderOperator) and operator_name(node.target) not in (*INLINED, *CONTROL):
            return program  # another one, which is refused where it stands
    unknown = _unknown(program)
    if not traced_again and any(op._schema.is_mutable for op in unknown):
        program = without_writes(program) or program
        unknown = _unknown(program)
    changes = traced_again or any(op._schema.is_mutable for op in unknown)
    if not unknown and not changes:
        return program
    core = _decomposed(program, torch.export.default_decompositions().materialize(), changes)
    return _decomposed(core, decomposition_table, False) if any(op in decomposition_table for op in _unknown(core)) else core


def _unknown(program: ExportedProgram) -> list[torch._ops.OpOverload]:
    """The operators of a program that the table does not know, neither as they are nor as what they are built as."""
    known = (*lowerings("torch"), *ELEMENTS)
    targets = [node.target for node in nodes(program.graph_module) if makes_tensors(node) and functional_name(node) not in known]
    return [t for t in targets if isinstance(t, torch._ops.OpOverload) and operator_name(t) not in known]


def _decomposed(program: ExportedProgram, table: Mapping[Any, Any], required: bool) -> ExportedProgram:
    """The program with the operators decomposed that `table` can decompose and ours does not know; unchanged where that fails and
    is not required: the operators are then refused by name."""
    known = (*lowerings("torch"), *ELEMENTS)
    unknown = {op: function for op, function in table.items() if operator_name(op) not in known}
    here = None if required else decomposed_in_place(program, [op for op in _unknown(program) if op in unknown], unknown)
    if here is not None:
        return here
    unguarded = copy.copy(program)
    unguarded._guards_code = []  # of no use here, and torch cannot run those that name an argument of **kwargs
    try:
        with torch.no_grad():
            return unguarded.run_decompositions(unknown)
    except Exception as error:  # whatever a decomposition raises
        if required:
            raise IngestError(f"torch.export cannot take the in-place operators out of the model: {error}; write it without "
                              "them") from error
        return program


def makes_tensors(node: torch.fx.Node) -> bool:
    """Is it neither a size or another Python number, nor an assertion?"""
    value = node.meta.get("val")
    numbers = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return not isinstance(value, numbers) and not (value is None and not node.users)


def nodes(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """All nodes of a program that call something, those of wrapped parts too."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            found.append(node)
            for argument in node.args:
                if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
                    inner = getattr(module, str(argument.target))
                    found += nodes(inner) if isinstance(inner, torch.fx.GraphModule) else []
    return found
