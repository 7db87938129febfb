"""Programs for whole ranges of dims where torch.export by itself narrows them.

torch.export decides by the example where the layout of a tensor depends on its sizes, as where a feature map of one element
counts as contiguous, and holds the dims to what it has decided. What is computed does not depend on that. Conditions of the model
itself, and those that say how many results an operator has, must hold for every value of the dims.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as symbolic_shapes_config
from torch.utils import _pytree as pytree

from tilewright.compiler.frontends.torch.signature import UNBOUNDED
from tilewright.compiler.frontends.torch.sizes import Sizes, elements
from tilewright.compiler.frontends.torch.traced_calls import TracedCalls
from tilewright.compiler.ops.graph import Graph
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Dim as Range
from tilewright.runtime.shape import Expr

_LOG = logging.getLogger("tilewright")
_TORCH = Path(torch.__file__).parent
# Where in PyTorch conditions stand that its operators make, all about the layout of tensors but for those of _COUNTS: how many
# results there are, and how many windows a pooling has. Those of operators in C++ have a place where they are called.
_OPERATORS = frozenset(("_subclasses", "_prims_common", "_prims", "_refs", "_decomp", "_meta_registrations.py", "fx"))
_CALLERS = frozenset(("_export", "_ops.py"))
_COUNTS = frozenset(("split", "pooling_output_shape_pad_lr"))
_OWN = Path(__file__).with_name("traced_calls.py")  # calls every operator
# Functions of transformers that ask whether a size is 1 to skip what changes nothing then: a causal mask over one query,
# positions that are expanded to a batch of one.
_NEUTRAL_AT_ONE = (
    ("transformers/integrations/sdpa_attention.py", "sdpa_attention_forward"),
    ("transformers/masking_utils.py", "_preprocess_mask_arguments"),
)
_POINTS = 1 << 16  # most values of all dims of a condition that it is tried at
_COMPARISONS: Mapping[Any, Callable[[Any, Any], Any]] = {
    sympy.Eq: operator.eq, sympy.Ne: operator.ne, sympy.Lt: operator.lt, sympy.Le: operator.le, sympy.Gt: operator.gt,
    sympy.Ge: operator.ge,
}  # fmt: skip


def widened(
    export: Callable[[Any, TracedCalls], ExportedProgram], shapes: Any, given: Sequence[Mapping[int, Any]]
) -> ExportedProgram | str:
    """The program for all values of its dims, where it is right for all of them; else why it is not, or "".

    Args:
        export: torch.export of the model with these dynamic shapes, within this mode.
        shapes: the dynamic shapes, with Dim objects. given: for every leaf of the inputs: axis -> its Dim.
    """
    with symbolic_shapes_config.patch(backed_size_oblivious=True):  # layouts by what holds for all sizes but 0 and 1
        try:
            return export(shapes, calls_within_ranges(shapes))
        except Exception as error:  # torch.export raises whatever it meets; the first refusal says more
            _LOG.debug("the module is refused by its ranges: %s", error)
        calls = TracedCalls()
        try:
            free = pytree.tree_map(lambda d: Dim.AUTO if isinstance(d, Dim) else d, shapes, is_leaf=lambda d: isinstance(d, Dim))
            program = export(free, calls)
        except Exception as error:  # as above
            _LOG.debug("the module is refused without its ranges, too: %s", error)
            return ""
    return _refusal(program, given, calls) or program


def calls_within_ranges(shapes: Any) -> TracedCalls:
    """A mode for torch.export with these dynamic shapes that leaves a trace that will be refused for their ranges."""
    leaves = pytree.tree_leaves(shapes, is_leaf=lambda d: isinstance(d, Dim))
    plain = (d is None or isinstance(d, int) or (isinstance(d, Dim) and not hasattr(d, "root")) for d in leaves)
    return TracedCalls(ranged=all(plain))


def _refusal(program: ExportedProgram, given: Sequence[Mapping[int, Any]], calls: TracedCalls) -> str:
    """What to say of a program that is not right for all values of its dims; "" where it is."""
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    symbols: dict[Any, Any] = {}
    for value, axes in zip(values[len(values) - len(given) :], given, strict=True):
        for axis, dim in axes.items():
            size = value.shape[axis]
            expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
            if expr.is_number:
                return _fixed(dim.__name__, int(expr), value, calls)
            if not isinstance(expr, sympy.Symbol):
                return f"the sizes of {dim.__name__} are tied to others by {expr}. "
            symbols[expr] = dim
    for guard, line in _conditions(values, calls):
        broken = _broken(guard, symbols)
        if broken is not None:
            return _branch(guard, line, symbols, broken)
    return ""


def _conditions(values: Iterable[Any], calls: TracedCalls) -> list[tuple[Any, str]]:
    """The conditions on dims that are not about layouts, and the lines that they come from."""
    sizes = [d for v in values if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)]
    if not sizes:
        return []
    shapes = sizes[0].node.shape_env
    found = [(shapes.replace(g.expr), _line(g, calls)) for g in shapes.guards if not _is_of_layout(g)]
    return [(condition, line) for condition, line in found if not _is_neutral(condition, line)]


def _is_neutral(condition: Any, line: str) -> bool:
    """Is it one of those questions for a size of 1 whose answer changes no result?"""
    asks = condition.is_Relational and any(a == 1 for a in condition.args)
    return bool(asks) and any(file in line and line.endswith(f" in {function})") for file, function in _NEUTRAL_AT_ONE)


def _is_of_layout(guard: Any) -> bool:
    frame = guard.sloc.framework_loc
    if not hasattr(frame, "filename") or frame.name in _COUNTS:
        return False
    path = Path(frame.filename)
    part = path.relative_to(_TORCH).parts[0] if path.is_relative_to(_TORCH) else ""
    return part in _OPERATORS or ((part in _CALLERS or path == _OWN) and _is_about_strides(guard.expr))


def _is_about_strides(condition: Any) -> bool:
    """Does it ask whether sizes are 0 or 1, or compare strides of contiguous tensors, which hold the larger of 1 and a size?"""
    if any(type(e).__name__ == "Max" and sympy.Integer(1) in e.args for e in sympy.preorder_traversal(condition)):
        return True
    numbers = [a for a in condition.args if a.is_number]
    if not condition.is_Relational or len(numbers) != 1 or any(type(a).__name__.endswith("Mod") for a in condition.args):
        return False
    return bool(numbers[0] in ((0, 1) if condition.func in (sympy.Eq, sympy.Ne) else (1, 2)))


def _line(guard: Any, calls: TracedCalls) -> str:
    frame = guard.sloc.framework_loc
    if not calls.lines.get(id(guard)) and not hasattr(frame, "filename"):
        return str(guard.sloc)
    return f"({calls.lines.get(id(guard)) or f'{frame.filename}:{frame.lineno} in {frame.name}'})"


def _fixed(name: str, size: int, value: Any, calls: TracedCalls) -> str:
    """What to say of a dim that the model's own code has made a number."""
    lines = [_line(g, calls) for g in value.fake_mode.shape_env.guards if isinstance(g.expr, sympy.Eq) and size in g.expr.args]
    at = f" {lines[0]}" if lines else ""
    return (f"the model takes {name} = {size} of the example for a fixed number{at}, as a loop of so many steps or len() does; "
            "compute with tensors of that size and x.shape, or use a loop of torch. ")


def _branch(condition: Any, line: str, dims: Mapping[Any, Any], broken: Mapping[str, int]) -> str:
    """What to say of a condition that holds for the example and not for all sizes."""
    named = condition.xreplace({s: sympy.Symbol(str(size_of(dims[s]))) for s in condition.free_symbols if s in dims})
    at = ", ".join(f"{name} = {value}" for name, value in broken.items()) or "other data"
    return (f"the model takes one path where {named} {line}, as for the example, and another at {at}; give a range in which it "
            "takes one, write both as one computation, or branch by torch.cond. ")


def size_of(dim: Any) -> Expr:
    """The size of an axis by what dynamic_shapes says: a dim, or a linear form of the one that it is derived from."""
    if isinstance(dim, str) or not hasattr(dim, "root"):
        return Expr.dim(dim if isinstance(dim, str) else dim.__name__)
    first = int(dim.fn(sympy.Integer(0)))
    return Expr.dim(dim.root.__name__) * (int(dim.fn(sympy.Integer(1))) - first) + first


def _broken(condition: Any, dims: Mapping[Any, Any]) -> Mapping[str, int] | None:
    """Values of its dims at which a condition does not hold, of a grid that has the ends of their ranges; None where it holds at
    all, no values where it depends on more than dims."""
    if condition == sympy.true:
        return None
    if not condition.free_symbols <= dims.keys():
        return {}
    roots = [getattr(dims[s], "root", dims[s]) for s in condition.free_symbols]  # several symbols may be one dim
    own = {root.__name__: Range(max(int(root.min), 1), root.max if isinstance(root.max, int) else UNBOUNDED) for root in roots}
    each = max(2, int(_POINTS ** (1 / len(own))))
    axes = [np.array(r.values(each), dtype=np.int64) for r in own.values()]
    grid = dict(zip(own, np.meshgrid(*axes, indexing="ij"), strict=True))
    sizes = Sizes({}, Graph(), {s: size_of(dims[s]) for s in condition.free_symbols})
    try:
        places = np.argwhere(~np.broadcast_to(_holds(condition, sizes, grid), [len(a) for a in axes]))
    except IngestError as error:
        _LOG.debug("the condition %s is not followed: %s", condition, error)
        return {}
    return {name: int(a[i]) for name, a, i in zip(own, axes, places[0], strict=True)} if len(places) else None


def _holds(condition: Any, sizes: Sizes, grid: Mapping[str, Any]) -> Any:
    """Where on a grid of dims a condition holds."""
    if isinstance(condition, (sympy.And, sympy.Or)):
        parts = [_holds(a, sizes, grid) for a in condition.args]
        return reduce(np.logical_and if isinstance(condition, sympy.And) else np.logical_or, parts)
    if isinstance(condition, sympy.Not):
        return ~_holds(condition.args[0], sizes, grid)
    if type(condition) not in _COMPARISONS:
        raise IngestError(f"{condition} is no comparison")
    (a, b), (c, d) = (sizes.ratio(side) for side in condition.args)  # a/b and c/d, of sizes
    return _COMPARISONS[type(condition)](elements(a * d, grid), elements(c * b, grid))
