"""Products and distances of matrices beyond the usual ones."""

from __future__ import annotations

from typing import Any

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import names
from tilewright.compiler.frontends.torch.operators.contractions import scaled_sum
from tilewright.compiler.ops.body import Scalar, computed_in
from tilewright.compiler.ops.reductions import SUM, Reduction, accumulate
from tilewright.compiler.ops.scalar_functions import absolute, power


@register("torch", *names("addbmm"))
def addbmm(context: Context, bias: ops.Tensor, a: ops.Tensor, b: ops.Tensor, *, beta: Any = 1, alpha: Any = 1) -> ops.Tensor:
    """beta bias + alpha times the sum of a batch of products."""
    batch, rows, inner = a.dims
    left = ops.reshape(ops.transpose(a, [1, 0, 2]), [rows, batch * inner])
    return scaled_sum(bias, ops.matmul(left, ops.reshape(b, [batch * inner, b.dims[2]])), beta, alpha)


@register("torch", *names("_cdist_forward"))
def distances(context: Context, a: ops.Tensor, b: ops.Tensor, p: float, compute_mode: int | None = None) -> ops.Tensor:
    """The p-norm of the difference of every row of a and every row of b."""
    shape = context.shape()
    batch = list(shape[:-2])
    left, right = (ops.broadcast_to(t, [*batch, *t.dims[-2:]]) for t in (a, b))
    rows, columns = ops.unsqueeze(left, -2), ops.unsqueeze(right, -3)
    kind = computed_in(a.dtype)

    def gap(x: Scalar, y: Scalar) -> Scalar:
        return absolute(x.cast(kind.value) - y.cast(kind.value))

    def term(x: Scalar, y: Scalar) -> Scalar:
        distance = gap(x, y)
        if p == 0:
            return distance.compare("ne", 0).cast(kind.value)
        return distance if p in (1, float("inf")) else power(distance, float(p))

    gathered = Reduction(Scalar.maximum, 0, kind) if p == float("inf") else Reduction(SUM.combine, 0, kind)
    total = accumulate("cdist", [rows, columns], [rows.rank - 1], gathered, False, term)
    root = total if p in (0, 1, float("inf")) else total.graph.pointwise("cdist", lambda v: power(v, 1 / p), total)
    return ops.cast(root, a.dtype)
