"""What spaces say of a contraction's loops is what the plans of families find in its IR, equal extents or not."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from convolution_workloads import layer
from gpu_workloads import contraction
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import T, empty, filled, workload
from matmul_workloads import generic

from tilewright.passes.analysis.canonical_spec import KEY, KIND
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.host_kernel import Grid, HostKernel
from tilewright.passes.codegen.index import Index
from tilewright.passes.dispatch_creation.outlined import workload_of
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.host.host_matmul_plan import Plan
from tilewright.passes.families.host.host_matmul_taps import Taps
from tilewright.passes.mlir import functions, ir
from tilewright.passes.spaces.gemm_operands import (
    Gemm,
    bytes_run_along_k,
    column_loop,
    on_tensor_cores,
    row_and_column_extents,
    tensor_core_bytes,
)
from tilewright.passes.spaces.host.host_matmul import Extents
from tilewright.passes.spaces.padding import padded_windows
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType
from tilewright.search.database.workload_form import WorkloadForm

MANY = settings(max_examples=80, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Drawn:
    """A contraction over loops of some roles: axes of the operands and of the result by loop, and which of them are computed.

    order: axes of the stored result, a transposition behind the product.
    """

    roles: str
    extents: tuple[int | str, ...]
    axes: tuple[tuple[int, ...], ...]
    units: tuple[int | None, ...]
    order: tuple[int, ...]
    computed: tuple[bool, bool]
    element: str

    def text(self) -> str:
        loops = ", ".join(f"d{i}" for i in range(len(self.roles)))
        maps = [f"({loops}) -> ({', '.join(f'd{d}' for d in axes)})" for axes in self.axes]
        wide = {"f16": "f32", "i8": "i32", "f32": "f32"}[self.element]
        tensors = [T(self.element, tuple(self.extents[d] for d in axes), unit)
                   for axes, unit in zip(self.axes[:2], self.units, strict=True)]
        out = T(wide, tuple(self.extents[d] for d in self.axes[2]))
        stored = T(wide, tuple(out.dims[a] for a in self.order))
        lines, read = [], {}
        for name, t, computed in zip("ab", tensors, self.computed, strict=True):
            read[f"{name}_square" if computed else name] = t
            if computed:
                lines += [empty(f"{name}_to", t), generic(f"{name}_square", _same(len(t.dims), 2), "p" * len(t.dims), {name: t},
                                                          (f"{name}_to", t), _square(t.element))]
        cast = {"f16": "arith.extf", "i8": "arith.extsi"}.get(self.element)
        casts = "\n".join(f"%w{i} = {cast} %x{i} : {self.element} to {wide}" for i in (0, 1)) if cast else ""
        factors = ("%w0", "%w1") if cast else ("%x0", "%x1")
        f = "i" if wide == "i32" else "f"
        body = f"{casts}\n%p = arith.mul{f} {factors[0]}, {factors[1]} : {wide}\n%s = arith.add{f} %acc, %p : {wide}\n" \
               f"linalg.yield %s : {wide}"
        kinds = "".join("r" if r == "k" else "p" for r in self.roles)
        lines += [filled("z", out, "0" if f == "i" else "0.0"), generic("y", maps, kinds, read, ("z", out), body)]
        last, result = "y", out
        if self.order != tuple(range(len(self.order))):
            dims = [f"e{i}" for i in range(len(self.order))]
            turned = [f"({', '.join(dims)}) -> ({', '.join(to)})" for to in (dims, [dims[a] for a in self.order])]
            copy = f"linalg.yield %x0 : {wide}"
            lines += [empty("to", stored), generic("t", turned, "p" * len(dims), {"y": out}, ("to", stored), copy)]
            last, result = "t", stored
        named = [d for t in (*tensors, out) for d in t.dims if isinstance(d, str)]
        return workload(dict(zip("ab", tensors, strict=True)), list(dict.fromkeys(named)), "\n".join(lines), {last: result})


def _same(rank: int, count: int) -> list[str]:
    dims = ", ".join(f"d{i}" for i in range(rank))
    return [f"({dims}) -> ({dims})"] * count


def _square(element: str) -> str:
    return f"%q = arith.mul{'f' if 'f' in element else 'i'} %x0, %x0 : {element}\nlinalg.yield %q : {element}"


@st.composite
def contractions(draw: st.DrawFn) -> Drawn:
    roles = draw(st.sampled_from(["mnk", "nmk", "kmn", "bmnk", "mbnk", "mmnk", "mnnk", "mnkk", "bbmnk", "bmnkk", "mk", "nk",
                                  "bnk"]))
    extents = tuple(draw(st.sampled_from([1, 5, 8, 8, 8, "M", "M", "N"])) for _ in roles)
    sides = [[d for d, r in enumerate(roles) if r in held] for held in ("bmk", "bnk", "bmn")]
    axes = tuple(tuple(draw(st.permutations(side))) for side in sides)
    units = tuple(draw(st.sampled_from([None, *range(len(a)), len(a) - 1, len(a) - 1])) for a in axes[:2])
    order = tuple(draw(st.permutations(range(len(axes[2])))))
    computed = draw(st.sampled_from([(False, False), (False, False), (True, False), (False, True)]))
    return Drawn(roles, extents, axes, units, order, computed, draw(st.sampled_from(["f32", "f16", "i8"])))


def described(text: str, kind: Kind = Kind.CONTRACTION) -> Workload:
    """The workload of a function's text; by way of the form that logs keep."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        fn = next(functions(module))
        fn.attributes[KEY], fn.attributes[KIND] = ir.StringAttr.get("key"), ir.StringAttr.get(kind.value)
        found = workload_of(fn, "workload")
    assert WorkloadForm.of(found).workload() == found
    return found


def on_host(text: str, work: Workload, taps: bool = False) -> None:
    """Compares within the frame of a host kernel, where a plan can be made."""
    gemm = Gemm.of(work)
    with ir.Context(), ir.Location.unknown():
        kernel = HostKernel(ir.Module.parse(text), "k")

        def body(begin: Index, end: Index, workspace: ir.Value) -> Grid:
            plan = Plan.of(kernel)
            assert gemm is not None
            assert (gemm.column, gemm.rows, gemm.b_in_place, gemm.b_transposed) == \
                (plan.column, plan.rows, plan.in_place, plan.transposed)
            assert [gemm.a.loops, gemm.b.loops] == [plan.view.loops_of(w) for w in (plan.narrow, plan.wide)]
            extents = Extents.of(work)
            assert (extents.rows, extents.columns, extents.depth) == \
                (plan.row_count, plan.view.extents[plan.column], plan.depth)
            if taps:
                assert Taps.of(kernel, plan).windows == tuple(padded_windows(work))
            return Grid(Expr.of(1))

        kernel.build(body)


@MANY
@given(contractions())
def test_spaces_see_what_the_plan_of_the_host_finds(drawn: Drawn) -> None:
    on_host(drawn.text(), described(drawn.text()))


@MANY
@given(contractions())
def test_spaces_see_what_the_plan_of_a_gpu_finds(drawn: Drawn) -> None:
    text = drawn.text()
    work = described(text)
    with ir.Context(), ir.Location.unknown():
        plan = SimtPlan.of(GpuKernel(ir.Module.parse(text), "k", 32))
        sizes = plan.size(plan.rows), plan.size(plan.columns)
        last = plan.view.k[-1] if plan.view.k else None
        along = [plan.view.linear_axis(which, last) for which in (0, 1)]
    assert row_and_column_extents(work) == sizes
    assert column_loop(work) in plan.columns or column_loop(work) in plan.view.batch
    units = [len(a) - 1 if computed else u for a, u, computed in zip(drawn.axes[:2], drawn.units, drawn.computed, strict=True)]
    if drawn.element == "i8":
        assert bytes_run_along_k(work) == all(a == u for a, u in zip(along, units, strict=True))
    assert tensor_core_bytes(work) == {"f32": None, "f16": 2, "i8": 1}[drawn.element]


@pytest.mark.parametrize("size", [(7, 9), (8, 8)])
def test_windows_go_along_rows_of_a_convolution(size: tuple[int, int]) -> None:
    work = layer(8, 8, 8)
    on_host(work.ir, work, taps=True)
    assert [w.row for w in padded_windows(work)] == [1, 2]


def test_equal_extents_hide_no_transposed_weight() -> None:
    found = [Extents.of(described(contraction(maps, sizes={"n": 768, "k": 768}).text)).transposed
             for maps in ("m k,k n,m n", "m k,n k,m n")]
    assert found == [False, True]


def test_types_of_factors_are_those_that_are_multiplied_not_any_that_occur() -> None:
    """A bias of 8-bit floats makes no tensor-core product of an f32 contraction."""
    a100, ada = GpuLimits.of("sm_80"), GpuLimits.of("sm_89")
    work = described(contraction("m k,k n,m n", "f8E5M2").text)
    assert {f.dtype for f in work.factors} == {DType.F8E5M2}
    assert (on_tensor_cores(work, a100), on_tensor_cores(work, ada)) == (False, True)
    plain = described(contraction("m k,k n,m n").text)
    assert tensor_core_bytes(plain) is None and not on_tensor_cores(plain, ada)


def test_old_logs_have_no_axes_and_are_read() -> None:
    work = described(contraction("m k,n k,m n").text)
    fields = msgspec.to_builtins(WorkloadForm.of(work))
    for name in ("factors", "transcendentals", "reductions"):
        del fields[name]
    for operand in (*fields["inputs"], *fields["outputs"]):
        del operand["axes"]
    old = msgspec.convert(fields, WorkloadForm).workload()
    assert column_loop(old) == 1 and Gemm.of(old) is None and not Extents.of(old).transposed
    assert row_and_column_extents(old) == row_and_column_extents(work)
