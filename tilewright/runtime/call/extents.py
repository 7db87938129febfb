"""Size expressions turned into one Python function, so that a call evaluates all its shapes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Atom, Expr

Shapes = tuple[tuple[int, ...], ...]


def compile_shapes(shapes: Sequence[Sequence[Expr]], names: Sequence[str]) -> Callable[[Sequence[int]], Shapes]:
    """A function from dim values, in the order of `names`, to the concrete shapes.

    Raises:
        OptionError: an expression uses a dim that is not among `names`.
    """
    index = {name: i for i, name in enumerate(names)}
    rows = "".join(f"({''.join(_source(e, index) + ',' for e in shape)})," for shape in shapes)
    function: Callable[[Sequence[int]], Shapes] = eval(
        f"lambda d: ({rows})", {"__builtins__": {"min": min, "max": max}}
    )
    return function


def _source(expr: Expr, index: dict[str, int]) -> str:
    terms = ["*".join([f"({c})", *(_atom(a, index) for a in factors)]) for factors, c in expr.terms]
    return f"({'+'.join(terms) or '0'})"


def _atom(atom: Atom, index: dict[str, int]) -> str:
    if atom.op == "dim":
        if atom.name not in index:
            raise OptionError(f"a size uses the dim {atom.name}, which is not among {', '.join(index) or 'none'}")
        return f"d[{index[atom.name]}]"
    a, b = (_source(x, index) for x in atom.args)
    return {"floordiv": f"({a}//{b})", "mod": f"({a}%{b})"}.get(atom.op, f"{atom.op}({a},{b})")
