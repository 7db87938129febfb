"""The loops over k of host kernels keep their sums in registers, whatever follows them."""

from __future__ import annotations

import re

import pytest
from kernel_harness import filled, workload
from matmul_workloads import T

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.codegen import compile_assembly
from tilewright.runtime.target import Target

LIGHT = """%h = arith.constant 0.17 : f32
%i = arith.constant 0.5 : f32
%j = arith.constant 0.1 : f32
%k = arith.constant 1.2 : f32
%l = arith.mulf %x, %h : f32
%m = arith.addf %l, %i : f32
%n = arith.maximumf %m, %j : f32
%u = arith.minimumf %n, %k : f32
%q = arith.mulf %x, %u : f32"""
SILU = """%h = arith.constant 1.0 : f32
%i = arith.negf %x : f32
%j = math.exp %i : f32
%k = arith.addf %j, %h : f32
%q = arith.divf %x, %k : f32"""
TANH = "%q = math.tanh %x : f32"


def product_then(body: str) -> str:
    """[T, 256] x [256, 256], then `body` of %x into %q."""
    a, b, out = T("f32", ("T", 256)), T("f32", (256, 256)), T("f32", ("T", 256))
    return workload({"a": a, "b": b}, ["T"], f"""{filled("zero", out, "0.0")}
%p = linalg.matmul ins(%a, %b : {a.type()}, {b.type()}) outs(%zero : {out.type()}) -> {out.type()}
%r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
  iterator_types = ["parallel", "parallel"]}} ins(%p : {out.type()}) outs(%zero_empty : {out.type()}) {{
^bb0(%x: f32, %o: f32):
{body}
linalg.yield %q : f32
}} -> {out.type()}""", {"r": out})


def loops(assembly: str) -> list[list[str]]:
    """The lines of every loop without a loop or a branch in it."""
    found, lines, labels = [], [line.split("#")[0].strip() for line in assembly.splitlines()], {}
    for at, line in enumerate(lines):
        if line.endswith(":"):
            labels[line[:-1]] = at
        elif (back := re.fullmatch(r"j(?!mp)\w+\s+(\S+)", line)) and back[1] in labels:
            body = [x for x in lines[labels[back[1]] + 1 : at] if x]
            if not any(re.match(r"j\w+\s", x) for x in body):
                found.append(body)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", ["exact-tails=true", "exact-tails=false"])
@pytest.mark.parametrize("body", [LIGHT, SILU, TANH], ids=["light", "silu", "tanh"])
def test_no_sum_of_a_full_block_is_in_memory(body: str, rows: str) -> None:
    target = Target.parse("host:x86-64-v3")
    built = build_kernel(product_then(body), "", "kernel", f"host_matmul{{mr=4 nv=3 lanes=8 {rows}}}", target)
    full = [x for x in loops(compile_assembly(built.llvm_ir, target)) if sum("vfmadd" in line for line in x) == 12
            and sum("vbroadcastss" in line for line in x) == 4]
    assert full
    for each in full:
        assert not [line for line in each if re.search(r"ymm\d+, -?\d*\(%rsp\)", line)], "\n".join(each)


def test_no_address_of_rows_of_any_length_is_in_memory() -> None:
    """The columns of a block are a number of bytes from one another, however far apart rows are."""
    a, b, out = T("f32", ("G", "T", 64)), T("f32", ("G", 64, "N")), T("f32", ("G", "T", "N"))
    text = workload({"a": a, "b": b}, ["G", "T", "N"], f"""{filled("zero", out, "0.0")}
%r = linalg.batch_matmul ins(%a, %b : {a.type()}, {b.type()}) outs(%zero : {out.type()}) -> {out.type()}""", {"r": out})
    target = Target.parse("host:x86-64-v3")
    built = build_kernel(text, "", "kernel", "host_matmul{mr=4 nv=3 lanes=8 prefetch=8 exact-tails=true}", target)
    full = [x for x in loops(compile_assembly(built.llvm_ir, target)) if sum("vfmadd" in line for line in x) == 12
            and sum("vbroadcastss" in line for line in x) == 4 and not any("vmaskmov" in line for line in x)]
    assert full
    assert min(len([line for line in x if "(%rsp)" in line]) for x in full) == 0
    assert min(map(len, full)) <= 36
