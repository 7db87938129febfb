"""einsum: sums of products over named axes, as matrix products wherever two tensors meet."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.contractions import contract
from tilewright.compiler.ops.elements import remapped
from tilewright.compiler.ops.graph import Tensor, shown
from tilewright.compiler.ops.pointwise import cast, multiply
from tilewright.compiler.ops.reductions import narrowed, sum  # noqa: A004
from tilewright.compiler.ops.reshaping import reshape, transpose
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(equation: str, *tensors: Tensor) -> Tensor:
    """numpy.einsum: "bij,bjk->bik" names the axes of every tensor and of the result; other axes are summed over.

    "..." stands for leading axes that broadcast; a letter that comes twice in one tensor takes its diagonal; without "->" the
    result has the letters that come once, in their order. Tensors are taken two at a time from the left. Element types are
    promoted; 16-bit floats accumulate in f32.

    Raises:
        OptionError: an equation that cannot be read. ShapeError: ranks or extents do not fit it.
    """
    inputs, output = _parsed(equation, tensors)
    common = tensors[0].graph.common_type("einsum", *tensors)
    left, axes = _diagonal(cast(tensors[0], common), inputs[0])
    left, axes = _summed(left, axes, "".join(inputs[1:]) + output)
    for number, (x, own) in enumerate(zip(tensors[1:], inputs[1:], strict=True), 2):
        right, names = _diagonal(cast(x, left.dtype), own)
        later = "".join(inputs[number:]) + output
        right, names = _summed(right, names, axes + later)
        left, axes = _pair(left, axes, right, names, later)
    left, axes = _summed(left, axes, output)
    result = transpose(left, [axes.index(n) for n in output])
    return narrowed("einsum", result, common) if result.dtype is not common else result


def _parsed(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """The axes' letters of every tensor and of the result, with letters of their own for what "..." stands for."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if not tensors or len(inputs) != len(tensors):
        raise OptionError(f"einsum: {equation!r} names {len(inputs)} tensors, {len(tensors)} came")
    used = set(text)
    free = [c for c in _LETTERS if c not in used]
    longest = 0
    for own, x in zip(inputs, tensors, strict=True):
        letters = own.replace("...", "")
        if not all(c.isalpha() and c.isascii() for c in letters) or own.count("...") > 1:
            raise OptionError(f"einsum: cannot read {own!r} of {equation!r}; wanted letters and at most one '...'")
        rest = x.rank - len(letters)
        if rest < 0 or (rest and "..." not in own):
            raise ShapeError(f"einsum: {own!r} for a tensor {shown(x.dims)}")
        longest = max(longest, rest if "..." in own else 0)
    dots = "".join(free[:longest])
    full = []
    for own, x in zip(inputs, tensors, strict=True):
        rest = x.rank - len(own.replace("...", ""))
        full.append(own.replace("...", dots[longest - rest:]))
    if arrow:
        output = right.replace("...", dots)
    else:
        every = "".join(full)
        output = dots + "".join(sorted(c for c in set(every) - set(dots) if every.count(c) == 1))
    if len(set(output)) != len(output) or not set(output) <= set("".join(full)):
        raise OptionError(f"einsum: the result {right!r} of {equation!r}; wanted letters of the tensors, each once")
    return full, output


def _diagonal(x: Tensor, axes: str) -> tuple[Tensor, str]:
    """Axes of one letter joined to their diagonal."""
    names = "".join(dict.fromkeys(axes))
    if names == axes:
        return x, axes
    for name in names:
        extents = {x.dims[a] for a, n in enumerate(axes) if n == name}
        if len(extents) > 1:
            raise ShapeError(f"einsum: the axes {name!r} of {shown(x.dims)} have different extents")
    dims = [x.dims[axes.index(n)] for n in names]
    return remapped(x, dims, lambda _, loops: [loops[names.index(n)] for n in axes]), names


def _summed(x: Tensor, axes: str, wanted: str) -> tuple[Tensor, str]:
    """Without the axes that nothing after this wants."""
    done = [a for a, n in enumerate(axes) if n not in wanted]
    if not done:
        return x, axes
    return cast(sum(x, done), x.dtype), "".join(n for n in axes if n in wanted)


def _pair(a: Tensor, axes_a: str, b: Tensor, axes_b: str, wanted: str) -> tuple[Tensor, str]:
    """The product of two tensors, summed over the axes that nothing after this wants."""
    one = Expr.of(1)
    for name in set(axes_a) & set(axes_b):
        first, second = a.dims[axes_a.index(name)], b.dims[axes_b.index(name)]
        if first == one != second:
            a, axes_a = _without(a, axes_a, name)
        elif second == one != first:
            b, axes_b = _without(b, axes_b, name)
    kept = [n for n in dict.fromkeys(axes_a + axes_b) if n in wanted]
    if all(n in wanted for n in axes_a + axes_b):
        order = "".join(dict.fromkeys(axes_a + axes_b))
        return multiply(a.on(*map(order.index, axes_a)), b.on(*map(order.index, axes_b))), order
    shared = [n for n in kept if n in axes_a and n in axes_b]
    names = "".join([*shared, *(n for n in kept if n not in shared)])
    total = contract("einsum", a, b, axes_a, axes_b, names)
    return narrowed("einsum", total, a.dtype), names


def _without(x: Tensor, axes: str, name: str) -> tuple[Tensor, str]:
    """An axis of extent 1 dropped, so that it broadcasts."""
    at = axes.index(name)
    return reshape(x, [d for i, d in enumerate(x.dims) if i != at]), axes.replace(name, "")
