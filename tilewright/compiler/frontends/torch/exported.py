"""From a model to an ExportedProgram whose operators the table knows, and the dims' names that its user gave."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._decomp import decomposition_table
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from tilewright.compiler.frontends.registry import lowerings
from tilewright.compiler.frontends.torch.context import operator_name
from tilewright.compiler.frontends.torch.control_flow import CONTROL
from tilewright.compiler.frontends.torch.in_place import functional_name
from tilewright.compiler.frontends.torch.recurrent_layers import RecurrentLayers
from tilewright.runtime.errors import IngestError, OptionError
from tilewright.runtime.shape import Dim as Range

Ranges = Mapping[str, Range]
ELEMENTS = ("aten.item.default", "aten._local_scalar_dense.default")  # a tensor's element as a number
# where the conditions stand that torch.export makes for the layout of tensors
_LAYOUT = re.compile(r"\((_subclasses|_prims_common|_prims|_refs|_decomp|_meta_registrations|fx)\b")
_SAMPLES = 64  # values of a dim that a condition is tried at
_LOG = logging.getLogger("tilewright")
INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def export_module(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any, ranges: Ranges
) -> ExportedProgram:
    """The program of a module in eval mode; axes named by strings become dims of the ranges given.

    Raises:
        IngestError: the module is in training mode, or torch.export refuses it; says why.
    """
    if model.training:
        raise IngestError(f"{type(model).__name__} is in training mode, where dropout and batch norm act differently; "
                          "call model.eval() first")
    shapes = _with_dims(dynamic_shapes, ranges)
    try:
        return _export(model, args, kwargs, shapes)
    except IngestError:
        raise
    except Exception as error:  # torch.export raises whatever the model and its own checks raise
        narrow = isinstance(error, UserError) and error.error_type is UserErrorType.CONSTRAINT_VIOLATION
        found = _unconstrained(model, args, kwargs, shapes) if narrow else ""
        if isinstance(found, ExportedProgram):
            return found
        raise IngestError(f"torch.export refuses {type(model).__name__}: {found}{type(error).__name__}: {error}") from error


def _export(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any) -> ExportedProgram:
    with torch.no_grad(), RecurrentLayers():
        return torch.export.export(model, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False)


def _unconstrained(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any) -> ExportedProgram | str:
    """The program without the bounds of its dims, where it is right within them nevertheless; else why it is not, or "".

    torch.export narrows dims for the layout of its own tensors, as where a feature map of one element counts as contiguous. What
    is computed does not depend on that. Conditions of the model itself must hold for every value of the dims.
    """
    found = [d for d in pytree.tree_leaves(shapes, is_leaf=lambda d: isinstance(d, Dim)) if isinstance(d, Dim)]
    if any(hasattr(d, "root") for d in found):
        return ""
    try:
        free = pytree.tree_map(lambda d: Dim.AUTO if isinstance(d, Dim) else d, shapes, is_leaf=lambda d: isinstance(d, Dim))
        program = _export(model, args, kwargs, free)
    except Exception as error:  # torch.export raises whatever it meets; the first refusal says more
        _LOG.debug("the module is refused without its ranges, too: %s", error)
        return ""
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    given = given_dims(model, args, kwargs, shapes)
    symbols: dict[Any, Any] = {}
    for value, axes in zip(values[len(values) - len(given) :], given, strict=True):
        for axis, dim in axes.items():
            size = value.shape[axis]
            expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
            if expr.is_number:
                return _fixed(dim.__name__, int(expr), value)
            if not isinstance(expr, sympy.Symbol):
                return ""
            symbols[expr] = dim
    for guard, line in _guards(values):
        broken = _broken(guard, symbols)
        if broken is not None:
            return _branch(guard, line, symbols, broken)
    return program


def _guards(values: Sequence[Any]) -> list[tuple[Any, str]]:
    """The conditions of the model itself on its dims, and the lines that they come from."""
    sizes = [d for v in values if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)]
    if not sizes:
        return []
    shapes = sizes[0].node.shape_env
    return [(shapes.replace(g.expr), str(g.sloc)) for g in shapes.guards if not _LAYOUT.match(str(g.sloc))]


def _fixed(name: str, size: int, value: Any) -> str:
    """What to say of a dim that the model's own code has made a number."""
    lines = [str(g.sloc) for g in value.fake_mode.shape_env.guards if isinstance(g.expr, sympy.Eq) and size in g.expr.args]
    at = f" {lines[0]}" if lines else ""
    return (f"the model takes {name} = {size} of the example for a fixed number{at}, as a loop of so many steps does; compute "
            "with tensors of that size, or use a loop of torch. ")


def _branch(condition: Any, line: str, dims: Mapping[Any, Any], broken: Mapping[str, int]) -> str:
    """What to say of a condition that holds for the example and not for all sizes."""
    named = condition.xreplace({s: sympy.Symbol(dims[s].__name__) for s in condition.free_symbols if s in dims})
    at = ", ".join(f"{name} = {value}" for name, value in broken.items()) or "other data"
    return (f"the model takes one path where {named} {line}, as for the example, and another at {at}; give a range in which it "
            "takes one, write both as one computation, or branch by torch.cond. ")


def _broken(condition: Any, dims: Mapping[Any, Any]) -> Mapping[str, int] | None:
    """Values of its dims at which a condition does not hold, of a grid that has the ends of their ranges; None where it holds at
    all, no values where it depends on more than dims."""
    if condition == sympy.true:
        return None
    if not condition.free_symbols <= dims.keys():
        return {}
    own = {dims[s].__name__: dims[s] for s in condition.free_symbols}  # several symbols may be one dim
    grids = [Range(max(int(d.min), 1), int(d.max)).values(_SAMPLES) for d in own.values()]
    for point in itertools.product(*grids):
        at = dict(zip(own, map(sympy.Integer, point), strict=True))
        if condition.xreplace({s: at[dims[s].__name__] for s in condition.free_symbols}) != sympy.true:
            return {name: int(value) for name, value in at.items()}
    return None


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


def given_names(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[dict[int, str]]:
    """For every leaf of the model's inputs, in torch.export's order, what dynamic_shapes says: axis -> name of a dim."""
    given = given_dims(model, args, kwargs, dynamic_shapes)
    return [{axis: _name(dim) for axis, dim in axes.items()} for axes in given]


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
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    leaves, _ = pytree.tree_flatten_with_path(bound)
    if isinstance(dynamic_shapes, (tuple, list)):
        dynamic_shapes = dict(zip(bound, dynamic_shapes, strict=False))
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


def _name(dim: Any) -> str:
    """The name of a dim, that of its root when it is derived from one."""
    return dim if isinstance(dim, str) else str(getattr(dim, "root", dim).__name__)


def with_known_operators(program: ExportedProgram) -> ExportedProgram:
    """The same program without in-place operators, and with the operators that the table does not know decomposed.

    By PyTorch's core decompositions, and what these leave by all others, as far as they can be traced.

    Raises:
        IngestError: torch.export cannot take the in-place operators out.
    """
    changes = False
    for node in nodes(program.graph_module):
        if operator_name(node.target) == "wrap_with_autocast":
            changes |= bool(node.args[2])
        elif isinstance(node.target, torch._ops.HigherOrderOperator) and operator_name(node.target) not in (*INLINED, *CONTROL):
            return program  # another one, which is refused where it stands
    unknown = _unknown(program)
    changes |= any(op._schema.is_mutable for op in unknown)
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
    try:
        with torch.no_grad():
            return program.run_decompositions(unknown)
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
