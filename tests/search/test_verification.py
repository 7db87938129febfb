from __future__ import annotations

import msgspec
import numpy as np
import pytest
from gpu_surfaces import narrow, square
from search_surfaces import dense

from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr, ShapeRange
from tilewright.search.runner.case_form import CaseForm
from tilewright.search.runner.verification import Case, edge_shapes, legal_cases, seeded, why_wrong
from tilewright.search.space.shapes import evaluation_points

KERNEL = MicroKernel("k", "w", "simt", "simt", (), ("1", "1", "1"))


def case(workload: Workload, m: int = 5) -> Case:
    shape = tuple((d, m) for d in workload.dims)
    a, b = (x.astype(np.float64) for x in seeded(workload, shape, 3))
    return Case(shape, 3, (a @ b,))


def test_right_results_pass_and_wrong_ones_do_not() -> None:
    w = dense(96, 64)
    c = case(w)
    right = c.outputs[0].astype(np.float32)
    assert why_wrong(w, c, [right], KERNEL) is None
    one = right.copy()
    one[2, 3] += 0.01 * np.abs(right).max()
    assert "largest error" in str(why_wrong(w, c, [one], KERNEL))
    assert why_wrong(w, c, [right * np.float32(1.0001)], KERNEL)
    nan = right.copy()
    nan[0, 0] = np.nan
    assert "NaN" in str(why_wrong(w, c, [nan], KERNEL))
    assert why_wrong(w, c, [np.zeros_like(right)], KERNEL)


def test_bounds_follow_the_least_exact_type() -> None:
    w = narrow(96, 64)
    c = case(w)
    assert why_wrong(w, c, [c.outputs[0].astype(np.float16)], KERNEL) is None
    assert why_wrong(w, c, [(c.outputs[0] * 1.02).astype(np.float16)], KERNEL)
    coarse = (c.outputs[0] * 1.001).astype(np.float32)
    assert why_wrong(dense(96, 64), c, [coarse], KERNEL)
    assert why_wrong(dense(96, 64), c, [coarse], msgspec.structs.replace(KERNEL, config="mma{tf32=true}")) is None
    integers = Case(c.shape, 3, (np.arange(6.0),))
    assert why_wrong(w, integers, [np.arange(6, dtype=np.int32)], KERNEL) is None
    assert why_wrong(w, integers, [np.array([0, 1, 2, 3, 4, 6], np.int32)], KERNEL)


def test_a_reference_that_overflows_the_type_wants_infinities() -> None:
    w = narrow(96, 64)
    c = Case((("d0", 1),), 0, (np.array([1.0, 1e9, -1e9]),))
    assert why_wrong(w, c, [np.array([1.0, np.inf, -np.inf], np.float16)], KERNEL) is None
    assert why_wrong(w, c, [np.array([1.0, np.inf, np.inf], np.float16)], KERNEL)


def test_inputs_are_the_same_everywhere() -> None:
    w, shape = dense(96, 64), (("d0", 5),)
    first, second = seeded(w, shape, 1), seeded(w, shape, 1)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (first[0] != seeded(w, shape, 2)[0]).any()
    assert float(first[0][0, 0]) == pytest.approx(0.1439076, abs=1e-6)  # archives travel between machines


def test_shapes_to_verify_are_the_smallest_a_rough_one_and_a_whole_one() -> None:
    ranges = ShapeRange.of({"d0": (1, 4096)})
    chosen = edge_shapes(dense(96, 64), evaluation_points(ranges, [{"d0": Expr.dim("d0")}]))
    sizes = [dict(s)["d0"] for s in chosen]
    assert len(sizes) == len(set(sizes)) == 3 and sizes[0] == 1
    assert any(s % 2 for s in sizes[1:]) and any(s % 8 == 0 for s in sizes) and max(sizes) > 64


def test_a_kernel_is_asked_only_where_its_guards_hold() -> None:
    w = square()
    cases = [Case((("d0", 4), ("d1", n)), 0, ()) for n in (3, 4)]
    guarded = msgspec.structs.replace(KERNEL, guards=("mod(operand1.stride0, 4)",))
    assert [dict(c.shape)["d1"] for c in legal_cases(w, guarded, cases)] == [4]
    assert len(legal_cases(w, KERNEL, cases)) == 2


def test_a_case_survives_as_plain_data() -> None:
    c = case(dense(96, 64))
    data = msgspec.msgpack.encode(CaseForm.of(c))
    back = msgspec.msgpack.decode(data, type=CaseForm).case()
    assert back.shape == c.shape and (back.outputs[0] == c.outputs[0]).all()
    with pytest.raises(ArtifactError, match="damaged"):
        CaseForm((("d0", 1),), 0, (((2, 3), b"\0" * 8),)).case()
