"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.runtime.shape import Expr


@register("torch", "aten.linear.default")
def linear(context: Context, x: ops.Tensor, weight: ops.Tensor, bias: ops.Tensor | None = None) -> ops.Tensor:
    """x @ weight^T + bias; the rows of all leading axes are one matrix."""
    if weight.rank == 1:
        total = ops.matmul(rows(x), ops.reshape(weight, [weight.dims[0], 1]))
        return ops.reshape(total if bias is None else total + bias, context.shape())
    total = ops.matmul(rows(x), weight, transpose_b=True)
    return ops.reshape(total if bias is None else total + bias, context.shape())


def rows(x: ops.Tensor) -> ops.Tensor:
    """[..., K] as a matrix."""
    count = Expr.of(1)
    for d in x.dims[:-1]:
        count = count * d
    return ops.reshape(x, [count, x.dims[-1]])


@register("torch", "aten.mm.default", "aten.bmm.default")
def mm(_: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    return ops.matmul(a, b)


@register("torch", "aten.matmul.default")
def matmul(context: Context, a: ops.Tensor, b: ops.Tensor) -> ops.Tensor:
    """Broadcasts the batch axes; a vector is a row on the left and a column on the right."""
    left = ops.reshape(a, [1, a.dims[0]]) if a.rank == 1 else a
    right = ops.reshape(b, [b.dims[0], 1]) if b.rank == 1 else b
    if (left.rank == 2 and right.rank > 2) or (right.rank > 2 and left.dims[:-2] != right.dims[:-2]):
        shape = list(context.shape())
        batch = shape[: len(shape) - (a.rank > 1) - (b.rank > 1)]
        left, right = (x if x.dims[:-2] == tuple(batch) else ops.broadcast_to(x, [*batch, *x.dims[-2:]]) for x in (left, right))
    return ops.reshape(ops.matmul(left, right), context.shape())


@register("torch", "aten.addmm.default", "aten.baddbmm.default")
def addmm(_: Context, bias: ops.Tensor, a: ops.Tensor, b: ops.Tensor, beta: float = 1, alpha: float = 1) -> ops.Tensor:
    return scaled_sum(bias, ops.matmul(a, b), beta, alpha)


def scaled_sum(bias: ops.Tensor, product: ops.Tensor, beta: float, alpha: float) -> ops.Tensor:
    """beta bias + alpha product; among integers PyTorch takes the factors as integers."""
    if not product.dtype.is_float:
        beta, alpha = int(beta), int(alpha)
    scaled = product if alpha == 1 else product * alpha
    return scaled if beta == 0 else scaled + (bias if beta == 1 else bias * beta)


@register("torch", "aten._grouped_mm.default")
def grouped_mm(
    context: Context, a: ops.Tensor, b: ops.Tensor, offs: ops.Tensor | None = None, bias: ops.Tensor | None = None,
    out_dtype: Any = None,
) -> ops.Tensor:  # fmt: skip
    """A product for each group: of rows of a by matrices of b, of matrices of a by columns of b, or of as many of both."""
    if offs is None:
        found = ops.matmul(a, b)
    elif (a.rank, b.rank) == (2, 3):
        found = ops.grouped_matmul(a, b, offs)
    elif (a.rank, b.rank) == (3, 2):
        found = ops.transpose(ops.grouped_matmul(ops.transpose(b, [1, 0]), ops.transpose(a, [0, 2, 1]), offs), [1, 0])
    else:
        context.refuse("groups of the summed axis give a matrix each, as gradients of weights need them",
                       "write the sum of each group as a product with the other groups' columns set to 0")
    return ops.cast(found if bias is None else found + bias, context.dtype())


@register("torch", "transformers.grouped_mm_fallback.default")
def grouped_mm_of_transformers(_: Context, x: ops.Tensor, weight: ops.Tensor, offs: ops.Tensor) -> ops.Tensor:
    return ops.grouped_matmul(x, weight, offs)


@register("torch", "aten._trilinear.default")
def trilinear(
    context: Context, a: ops.Tensor, b: ops.Tensor, c: ops.Tensor, expand_a: Sequence[int], expand_b: Sequence[int],
    expand_c: Sequence[int], summed: Sequence[int], unroll_dim: int = 1,
) -> ops.Tensor:  # fmt: skip
    """The product of three tensors, each without the axes that it is repeated along, summed over some: torch.nn.Bilinear."""
    rank = a.rank + len(expand_a)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    terms = ["".join(n for i, n in enumerate(letters) if i not in own) for own in (expand_a, expand_b, expand_c)]
    result = "".join(n for i, n in enumerate(letters) if i not in summed)
    return ops.reshape(ops.einsum(f"{','.join(terms)}->{result}", a, b, c), context.shape())
