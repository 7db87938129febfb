"""A product of few rows by codes of 4 bits in Triton: codes become floats by masks, tl.dot multiplies, parts of k are summed by
a second launch. Bytes are laid out for it: those of a block of 128 codes hold a code of its first half and one of its second.

Marlin's kernel is no part of torch or Triton; this is what is written by hand in its place, tuned on the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

BLOCK = 128  # codes whose bytes are laid out together
_HALF = BLOCK // 2
Form = tuple[int, int, int, int]
# columns of a block, warps, stages, parts of k
FORMS = ((32, 4, 4, 1), (64, 4, 4, 2), (64, 4, 4, 4), (32, 2, 5, 4), (128, 8, 3, 4))


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def kernel(x, codes, scales, zeros, parts, rows, columns, depth: tl.constexpr, group: tl.constexpr, zero: tl.constexpr,  # type: ignore[no-untyped-def]
           narrow: tl.constexpr, bm: tl.constexpr, bn: tl.constexpr, split: tl.constexpr, half: tl.constexpr):
    """parts[p] = x @ w of every split-th block of k from p on, in f32. narrow: is x of bf16?"""
    n = tl.program_id(0) * bn + tl.arange(0, bn)
    part = tl.program_id(1)
    m = tl.program_id(2) * bm + tl.arange(0, bm)
    j = tl.arange(0, half)
    ones: tl.constexpr = 0x4300 if narrow else 0x6400  # 128 or 1024, whose last bits count ones
    base: tl.constexpr = 128.0 if narrow else 1024.0
    kind = x.dtype.element_ty
    groups = depth // group
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for turn in range(depth // (2 * half * split)):
        step = turn * split + part
        k = step * 2 * half
        byte = tl.load(codes + n[:, None] * (depth // 2) + (step * half + j)[None, :]).to(tl.int16)
        for high in tl.static_range(2):
            code = ((byte >> 4) & 15) if high else (byte & 15)
            value = (code | ones).to(kind, bitcast=True) - base
            if group >= half:
                at = n * groups + (k + high * half) // group
                scale = tl.load(scales + at)[:, None]
                point = tl.load(zeros + at)[:, None] if zero else 8.0
            else:
                place = n[:, None] * groups + ((k + high * half + j) // group)[None, :]
                scale = tl.load(scales + place)
                point = tl.load(zeros + place) if zero else 8.0
            weight = ((value - point) * scale).to(kind)
            left = tl.load(x + m[:, None] * depth + (k + high * half + j)[None, :], mask=m[:, None] < rows, other=0.0)
            total = tl.dot(left, tl.trans(weight), total)
    to = parts + (part * rows + m[:, None]) * columns + n[None, :]
    tl.store(to, total.to(parts.dtype.element_ty), mask=m[:, None] < rows)


@triton.jit(do_not_specialize=["size"])  # type: ignore[untyped-decorator]
def summed(parts, out, size, split: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = the sum of all parts."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    total = tl.load(parts + at, mask=inside, other=0.0)
    for p in tl.static_range(1, split):
        total += tl.load(parts + p * size + at, mask=inside, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@dataclass
class Codes:
    """codes: u8 [n, k / 2] as `laid_out` makes them. scales, zeros: [n, k / group] of the type of x, zeros None: all are 8."""

    codes: Any
    scales: Any
    zeros: Any
    group: int


def laid_out(integers: Any) -> Any:
    """Codes u8 [n, k], one by one, as the kernel reads them."""
    n, k = integers.shape
    block = integers.reshape(n, k // BLOCK, 2, _HALF)
    return (block[:, :, 0] | block[:, :, 1] << 4).reshape(n, k // 2).contiguous()


def matmul(x: Any, w: Codes, form: Form) -> Any:
    """x @ w transposed, in one of FORMS."""
    bn, warps, stages, split = form
    (rows, depth), columns = x.shape, w.codes.shape[0]
    bm = 16
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    parts = out if split == 1 else torch.empty((split, rows, columns), dtype=torch.float32, device=x.device)
    grid = (columns // bn, split, triton.cdiv(rows, bm))
    kernel[grid](x, w.codes, w.scales, w.scales if w.zeros is None else w.zeros, parts, rows, columns, depth, w.group,
                 w.zeros is not None, x.dtype == torch.bfloat16, bm, bn, split, _HALF, num_warps=warps, num_stages=stages)
    if split > 1:
        summed[(triton.cdiv(out.numel(), 1024),)](parts, out, out.numel(), split, 1024)
    return out


def best_form(w: Codes, seconds: Callable[[Form], float]) -> Form:
    """The fastest of FORMS for these weights, as `seconds` times a call; those that the device cannot run are left out."""
    found = dict[Form, float]()
    for form in FORMS:
        if w.codes.shape[0] % form[0] == 0 and w.codes.shape[1] % (_HALF * form[3]) == 0:
            with contextlib.suppress(RuntimeError, TritonError):
                found[form] = seconds(form)
    return min(found, key=found.__getitem__)
