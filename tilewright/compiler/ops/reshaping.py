"""Other shapes of the same elements: reshape, transpose, axes added, dropped, merged and split, extents restated."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.graph import Size, Tensor, axes_of, axis_of, shown, size
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr


def transpose(x: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Axis i of the result is axis permutation[i] of `x`; default: all axes reversed."""
    order = list(reversed(range(x.rank))) if permutation is None else [axis_of("transpose", x, a) for a in permutation]
    if sorted(order) != list(range(x.rank)):
        raise OptionError(f"transpose: {list(permutation or ())} is no permutation of the {x.rank} axes")
    if order == list(range(x.rank)):
        return x
    dims = [x.dims[a] for a in order]
    into = x.graph.empty(x.dtype, dims)
    text = f"linalg.transpose ins({x.ssa} : {x.type}) outs({into.ssa} : {into.type}) permutation = {order}"
    return Tensor(x.graph, x.graph.emitter.emit(text), x.dtype, tuple(dims))


def swap_axes(x: Tensor, first: int, second: int) -> Tensor:
    """Two axes exchanged."""
    a, b = axis_of("swap_axes", x, first), axis_of("swap_axes", x, second)
    order = list(range(x.rank))
    order[a], order[b] = b, a
    return transpose(x, order)


def move_axes(x: Tensor, source: int | Sequence[int], target: int | Sequence[int]) -> Tensor:
    """Axes moved to new places, the others in their order, as numpy.moveaxis."""
    given = [[a] if isinstance(a, int) else list(a) for a in (source, target)]
    froms, tos = ([axis_of("move_axes", x, a) for a in axes] for axes in given)
    if len(froms) != len(tos) or len(set(froms)) != len(froms) or len(set(tos)) != len(tos):
        raise OptionError(f"move_axes: axes {given[0]} to {given[1]}; wanted as many different ones")
    order = [a for a in range(x.rank) if a not in froms]
    for to, a in sorted(zip(tos, froms, strict=True)):
        order.insert(to, a)
    return transpose(x, order)


def reshape(x: Tensor, shape: Sequence[Size], assume_equal: bool = False) -> Tensor:
    """The elements in row-major order in another shape; one extent may be -1.

    Where numbers of elements can be equal only because of floored divisions, minima or maxima in the extents, equality is checked
    at every call. assume_equal: any two different expressions are taken as equal, and checked.

    Raises:
        ShapeError: the numbers of elements differ. OptionError: several extents of -1.
    """
    sizes = [None if isinstance(d, int) and d == -1 else size("reshape", d) for d in shape]
    if sizes.count(None) > 1:
        raise OptionError(f"reshape: {list(shape)} leaves more than one extent open")
    if None in sizes:
        known = product_of([d for d in sizes if d is not None])
        if known == Expr.of(0):
            raise ShapeError(f"reshape: an open extent beside an extent of 0 in {list(shape)}")
        sizes[sizes.index(None)] = _open_extent(x.dims, [d for d in sizes if d is not None])
    target = [d for d in sizes if d is not None]
    if tuple(target) == x.dims:
        return x
    total, wanted = product_of(x.dims), product_of(target)
    if total != wanted:
        message = f"reshape: {shown(x.dims)} has {total} elements, {shown(target)} has {wanted}"
        if not (assume_equal or _opaque(total - wanted)):
            raise ShapeError(message)
        x.graph.require_equal(total, wanted, message)
        flat = with_dims(collapse(x, [list(range(x.rank))]), [wanted]) if x.rank else x
        return expand(flat, [target])
    if not target and x.rank:
        return x.graph.result(f"tensor.collapse_shape {x.ssa} [] : {x.type} into ", x.dtype, [])
    groups = _matched_groups(x.dims, target)
    return expand(collapse(x, [g for g, _ in groups]), [[target[i] for i in g] for _, g in groups])


def _open_extent(dims: Sequence[Expr], known: list[Expr]) -> Expr:
    """What is left of a product of extents; equal factors are cancelled first, as they may be sums."""
    left, rest = list(dims), []
    for d in known:
        if d in left:
            left.remove(d)
        else:
            rest.append(d)
    return product_of(left) // product_of(rest)


def _opaque(difference: Expr) -> bool:
    """Does it hold anything but dims and integers?"""
    return any(atom.op != "dim" for factors, _ in difference.terms for atom in factors)


def product_of(dims: Sequence[Expr]) -> Expr:
    """The number of elements of a tensor of these extents."""
    total = Expr.of(1)
    for d in dims:
        total = total * d
    return total


def _matched_groups(a: Sequence[Expr], b: Sequence[Expr]) -> list[tuple[list[int], list[int]]]:
    """The finest split of both shapes into runs of axes of equal size."""
    if product_of(a) == Expr.of(0):
        return [(list(range(len(a))), list(range(len(b))))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        ends = [(p, q) for p in range(i + 1, len(a) + 1) for q in range(j + 1, len(b) + 1)
                if product_of(a[i:p]) == product_of(b[j:q])]
        p, q = min(ends, key=sum)
        groups.append((list(range(i, p)), list(range(j, q))))
        i, j = p, q
    rest = list(range(i, len(a))), list(range(j, len(b)))
    if groups:
        groups[-1] = (groups[-1][0] + rest[0], groups[-1][1] + rest[1])
        return groups
    return [rest] if any(rest) else []


def collapse(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Each group of adjacent axes merged into one axis."""
    if all(len(g) == 1 for g in groups) or not x.rank:
        return x
    dims = [product_of([x.dims[a] for a in g]) for g in groups]
    if Expr.of(0) in dims:
        return x.graph.empty(x.dtype, dims)
    shown_groups = [list(g) for g in groups]
    return x.graph.result(f"tensor.collapse_shape {x.ssa} {shown_groups} : {x.type} into ", x.dtype, dims)


def expand(x: Tensor, groups: Sequence[Sequence[Expr]]) -> Tensor:
    """Axis i split into the extents groups[i]; a tensor of rank 0 into one group of ones."""
    if len(groups) == x.rank and all(len(g) == 1 for g in groups):
        return x
    dims = [d for g in groups for d in g]
    if Expr.of(0) in x.dims:
        return x.graph.empty(x.dtype, dims)
    axes, at = [], 0
    for g in groups:
        axes.append(list(range(at, at + len(g))))
        at += len(g)
    shown_axes = axes if x.rank else []
    sizes = x.graph.emitter.sizes(dims)
    text = f"tensor.expand_shape {x.ssa} {shown_axes} output_shape [{sizes}] : {x.type} into "
    return x.graph.result(text, x.dtype, dims)


def squeeze(x: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """Without these axes, each of extent 1; None: without all axes whose extent is the integer 1.

    Raises:
        ShapeError: an axis whose extent is not the integer 1 (`with_dims` states an extent that is 1 at every call).
    """
    one = Expr.of(1)
    chosen = [a for a, d in enumerate(x.dims) if d == one] if axes is None else axes_of("squeeze", x, axes)
    for a in chosen:
        if x.dims[a] != one:
            raise ShapeError(f"squeeze: axis {a} of {shown(x.dims)} has extent {x.dims[a]}, not 1")
    return reshape(x, [d for a, d in enumerate(x.dims) if a not in chosen])


def unsqueeze(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """With axes of extent 1 at these places of the result."""
    given = [axes] if isinstance(axes, int) else list(axes)
    rank = x.rank + len(given)
    places = {a % rank for a in given if -rank <= a < rank}
    if len(places) != len(given):
        raise ShapeError(f"unsqueeze: axes {given} of a result of rank {rank}; wanted different ones of it")
    left = iter(x.dims)
    return reshape(x, [Expr.of(1) if a in places else next(left) for a in range(rank)])


def flatten(x: Tensor, first: int = 0, last: int = -1) -> Tensor:
    """Axes `first` to `last` merged into one; a tensor of rank 0 becomes one of a single element."""
    if not x.rank:
        return reshape(x, [1])
    a, b = axis_of("flatten", x, first), axis_of("flatten", x, last)
    if a > b:
        raise ShapeError(f"flatten: axes {first} to {last} of a tensor of rank {x.rank}")
    return reshape(x, [*x.dims[:a], product_of(x.dims[a: b + 1]), *x.dims[b + 1:]])


def unflatten(x: Tensor, axis: int, sizes: Sequence[Size]) -> Tensor:
    """One axis split into these extents, of which one may be -1."""
    at = axis_of("unflatten", x, axis)
    parts = [None if isinstance(d, int) and d == -1 else size("unflatten", d) for d in sizes]
    if parts.count(None) > 1:
        raise OptionError(f"unflatten: {list(sizes)} leaves more than one extent open")
    known = product_of([p for p in parts if p is not None])
    if None in parts and known == Expr.of(0):
        raise ShapeError(f"unflatten: an open extent beside an extent of 0 in {list(sizes)}")
    full = [x.dims[at] // known if p is None else p for p in parts]
    return reshape(x, [*x.dims[:at], *full, *x.dims[at + 1:]])


def with_dims(x: Tensor, dims: Sequence[Size]) -> Tensor:
    """The same tensor with its extents restated as other expressions of equal value, checked at the call where they may differ.

    So an extent of S // 2 * 2 becomes S where S is even, and one of a known size becomes an integer.

    Raises:
        ShapeError: another rank, or extents that are equal for no shape.
    """
    sizes = [size("with_dims", d) for d in dims]
    if len(sizes) != x.rank:
        raise ShapeError(f"with_dims: {len(sizes)} extents for a tensor of rank {x.rank}")
    for axis, (old, new) in enumerate(zip(x.dims, sizes, strict=True)):
        x.graph.require_equal(old, new, f"with_dims: axis {axis} of {shown(x.dims)} as {shown(sizes)}")
    same = Tensor(x.graph, x.ssa, x.dtype, tuple(sizes))
    if same.type == x.type:
        return same
    return x.graph.result(f"tensor.cast {x.ssa} : {x.type} to ", x.dtype, sizes)
