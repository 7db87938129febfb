"""A tiled matmul in Triton, as its tutorials teach it: blocks in groups of rows, tuned over eight configurations."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# rows, columns and depth of a block, stages, warps
SIZES = ((128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
         (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 64, 5, 2))
CONFIGS = [triton.Config({"bm": m, "bn": n, "bk": k, "group": 8}, num_stages=s, num_warps=w) for m, n, k, s, w in SIZES]
PRODUCTS = {"f32": "ieee", "tf32": "tf32", "f16": "tf32"}


@triton.autotune(configs=CONFIGS, key=["rows", "columns", "depth"])  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def kernel(a, b, c, rows, columns, depth, product: tl.constexpr, bm: tl.constexpr, bn: tl.constexpr,  # type: ignore[no-untyped-def]
           bk: tl.constexpr, group: tl.constexpr):
    """c = a @ b, all dense and row-major."""
    block = tl.program_id(0)
    high, wide = tl.cdiv(rows, bm), tl.cdiv(columns, bn)
    first = block // (group * wide) * group
    height = min(high - first, group)
    m = (first + block % (group * wide) % height) * bm + tl.arange(0, bm)
    n = block % (group * wide) // height * bn + tl.arange(0, bn)
    k = tl.arange(0, bk)
    left = a + (m % rows)[:, None] * depth + k[None, :]
    right = b + k[:, None] * columns + (n % columns)[None, :]
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for step in range(0, tl.cdiv(depth, bk)):
        x = tl.load(left, mask=k[None, :] < depth - step * bk, other=0.0)
        y = tl.load(right, mask=k[:, None] < depth - step * bk, other=0.0)
        total = tl.dot(x, y, total, input_precision=product)
        left += bk
        right += bk * columns
    inside = (m[:, None] < rows) & (n[None, :] < columns)
    tl.store(c + m[:, None] * columns + n[None, :], total.to(c.dtype.element_ty), mask=inside)


def matmul(x: Any, w: Any, precision: str) -> Any:
    """x @ w on the GPU. precision: "f32" keeps all bits of f32 factors, "tf32" does not; of f16 ones it says nothing."""
    (rows, depth), columns = x.shape, w.shape[1]
    made = torch.empty((rows, columns), dtype=x.dtype, device=x.device)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(rows, meta["bm"]) * triton.cdiv(columns, meta["bn"]),)

    kernel[grid](x, w, made, rows, columns, depth, PRODUCTS[precision])
    return made
