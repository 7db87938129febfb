"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.graph import Tensor, same_dtype, shown, want_equal, want_rank
from tilewright.compiler.ops.pointwise import activation_of
from tilewright.compiler.ops.reductions import accumulator_of, narrowed
from tilewright.compiler.ops.reshaping import collapse, expand, reshape
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.shape import Expr


def matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """a @ b over the last two axes: [..., M, K] x [..., K, N] -> [..., M, N].

    The leading (batch) axes are equal, or one side has none. `transpose_a` and `transpose_b` say that the last two axes
    of that operand are swapped. 16-bit floats accumulate in f32 and are rounded once; i8 and i16 give i32.
    """
    return narrowed("matmul", product("matmul", a, b, transpose_a, transpose_b), a.dtype)


def batch_matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """matmul of operands of rank 3 or more with equal batch axes."""
    for what, x in (("the first operand", a), ("the second operand", b)):
        if x.rank < 3:
            raise ShapeError(f"batch_matmul: {what} has rank {x.rank}, shape {shown(x.dims)}; wanted rank 3 or more")
    return narrowed("batch_matmul", product("batch_matmul", a, b, transpose_a, transpose_b), a.dtype)


def dense(
    x: Tensor, w: Tensor, bias: Tensor | None = None, activation: str | None = None, transposed: bool = False
) -> Tensor:
    """activation(x @ w + bias): x [..., K], w [K, N], bias [N] -> [..., N]; activation relu, gelu, silu, tanh or None.

    transposed: w is [N, K], as torch.nn.Linear has it, and is read so without a copy.
    """
    function = activation_of("dense", activation)
    want_rank("dense", "the weight", w, 2)
    if x.rank < 1:
        raise ShapeError(f"dense: the input has rank {x.rank}, shape {shown(x.dims)}; wanted rank 1 or more")
    rows = reshape(x, [1, x.dims[0]]) if x.rank == 1 else collapse(x, [list(range(x.rank - 1)), [x.rank - 1]])
    columns = w.dims[0] if transposed else w.dims[1]
    total = product("dense", rows, w, transpose_b=transposed)
    if bias is not None:
        same_dtype("dense", [x, w, bias])
        want_rank("dense", "the bias", bias, 1)
        want_equal("dense", "the columns of the weight and the bias", columns, bias.dims[0])
    if bias is None and activation is None:
        result = narrowed("dense", total, x.dtype)
    else:
        dtype = x.dtype if x.dtype.is_float else total.dtype
        operands = [total, *(() if bias is None else (bias,))]
        result = x.graph.map_elements("dense", lambda v, *b: function(v + b[0].cast(v.kind) if b else v), operands,
                                      dtype, total.dtype)
    return reshape(result, [columns]) if x.rank == 1 else expand(result, [x.dims[:-1], [columns]])


def product(name: str, a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """The matrix product in the accumulator's type."""
    dtype = accumulator_of(name, same_dtype(name, [a, b]))
    for what, x in (("the first operand", a), ("the second operand", b)):
        if x.rank < 2:
            raise ShapeError(f"{name}: {what} has rank {x.rank}, shape {shown(x.dims)}; wanted rank 2 or more")
    (m, ka), (kb, n) = _matrix(a, transpose_a), _matrix(b, transpose_b)
    want_equal(name, f"the summed extents of {shown(a.dims)} and {shown(b.dims)}", ka, kb)
    if a.rank > 2 and b.rank > 2 and a.dims[:-2] != b.dims[:-2]:
        raise ShapeError(f"{name}: the batch axes of {shown(a.dims)} and {shown(b.dims)} differ")
    if a.rank > 2 and b.rank == 2 and not transpose_a:
        rows = collapse(a, [list(range(a.rank - 1)), [a.rank - 1]])
        return expand(_matmul(rows, b, n, False, transpose_b), [a.dims[:-1], [n]])
    if a.rank == b.rank == 2:
        return _matmul(a, b, n, transpose_a, transpose_b)
    batch = a.dims[:-2] or b.dims[:-2]
    left, right = _one_batch_axis(a), _one_batch_axis(b)
    into = a.graph.filled(0, dtype, [*(left.dims[:-2] or right.dims[:-2]), m, n])
    maps = [_operand_map(left, "m", "k", transpose_a), _operand_map(right, "k", "n", transpose_b), "b, m, n"]
    plain = maps == ["b, m, k", "b, k, n", "b, m, n"]
    kind = "batch_matmul" if left.rank == right.rank else "contract"
    op = f"linalg.{kind}" + ("" if plain else f" indexing_maps = [{_maps('b, m, n, k', maps)}]")
    return expand(a.graph.named(op, [left, right], into), [batch, [m], [n]])


def contract(
    name: str, a: Tensor, b: Tensor, axes_a: Sequence[str], axes_b: Sequence[str], axes: Sequence[str]
) -> Tensor:
    """The sum of products over all named axes that the result does not have, in the accumulator's type.

    Axes of one name have one extent, and each name comes once an operand. ShapeError when extents differ.
    """
    extents: dict[str, Expr] = {}
    for x, own in ((a, axes_a), (b, axes_b)):
        for axis, extent in zip(own, x.dims, strict=True):
            want_equal(name, f"the extents of axis {axis}", extents.setdefault(axis, extent), extent)
    order = [*axes, *(n for n in extents if n not in axes)]
    loops = {n: f"d{i}" for i, n in enumerate(order)}
    maps = [", ".join(loops[n] for n in own) for own in (axes_a, axes_b, axes)]
    into = a.graph.filled(0, accumulator_of(name, same_dtype(name, [a, b])), [extents[n] for n in axes])
    op = f"linalg.contract indexing_maps = [{_maps(', '.join(loops.values()), maps)}]"
    return a.graph.named(op, [a, b], into)


def _matrix(x: Tensor, transposed: bool) -> tuple[Expr, Expr]:
    rows, columns = x.dims[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _matmul(a: Tensor, b: Tensor, n: Expr, transpose_a: bool, transpose_b: bool) -> Tensor:
    m = a.dims[1 if transpose_a else 0]
    into = a.graph.filled(0, accumulator_of("matmul", a.dtype), [m, n])
    maps = [_operand_map(a, "m", "k", transpose_a), _operand_map(b, "k", "n", transpose_b), "m, n"]
    plain = not (transpose_a or transpose_b)
    op = "linalg.matmul" + ("" if plain else f" indexing_maps = [{_maps('m, n, k', maps)}]")
    return a.graph.named(op, [a, b], into)


def _operand_map(x: Tensor, rows: str, columns: str, transposed: bool) -> str:
    return ", ".join([*["b"] * (x.rank - 2), *((columns, rows) if transposed else (rows, columns))])


def _maps(loops: str, maps: list[str]) -> str:
    return ", ".join(f"affine_map<({loops}) -> ({m})>" for m in maps)


def _one_batch_axis(x: Tensor) -> Tensor:
    """Several batch axes merged into one."""
    if x.rank < 4:
        return x
    return collapse(x, [list(range(x.rank - 2)), [x.rank - 2], [x.rank - 1]])
