from __future__ import annotations

import pytest

from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Dim, Expr, ShapeRange
from tilewright.search.space.shapes import Points, evaluation_points, held_out

T = Expr.dim("T")


def test_a_small_range_is_looked_at_whole() -> None:
    points = evaluation_points(ShapeRange.of({"T": (1, 128)}), [{"d0": T}])
    assert [s[0][1] for s in points.shapes] == list(range(1, 129))
    assert sum(points.weights) == pytest.approx(1)


def test_a_large_range_has_its_ends_its_samples_and_numbers_no_tile_divides() -> None:
    points = evaluation_points(ShapeRange.of({"T": Dim(1, 100_000, samples=(333,))}), [{"d0": T}], count=64)
    values = [s[0][1] for s in points.shapes]
    assert values[0] == 1 and values[-1] == 100_000 and 333 in values
    assert sum(v % 2 == 1 and v % 3 != 0 for v in values) > 15


def test_uses_map_model_dims_and_equal_shapes_are_joined() -> None:
    uses = [{"d0": T * 12, "d1": T}, {"d0": T * 12, "d1": T}]
    points = evaluation_points(ShapeRange.of({"T": (1, 4)}), uses)
    assert points.shapes == tuple((("d0", 12 * t), ("d1", t)) for t in (1, 2, 3, 4))


def test_traffic_gives_the_shapes_and_their_weights() -> None:
    points = evaluation_points(ShapeRange.of({"T": (1, 128)}), [{"d0": T}], [({"T": 57}, 3.0), ({"T": 5}, 1.0)])
    assert points.shapes == ((("d0", 5),), (("d0", 57),))
    assert points.weights == pytest.approx((0.25, 0.75))
    assert points.measured_weights


def test_multiples_are_respected() -> None:
    for dim in (Dim(0, 40, multiple_of=8), Dim(8, 80_000, multiple_of=8)):
        points = evaluation_points(ShapeRange.of({"T": dim}), [{"d0": T}], count=32)
        assert all(dim.contains(s[0][1]) for s in points.shapes)


def test_held_out_shapes_are_new_and_repeat_with_the_seed() -> None:
    ranges = ShapeRange.of({"T": (1, 1000)})
    taken = [(("d0", t),) for t in range(1, 500)]
    first, again = (held_out(ranges, [{"d0": T}], taken, 8, seed=5) for _ in range(2))
    assert first == again and len(set(first)) == 8
    assert not set(first) & set(taken)
    assert held_out(ranges, [{"d0": T}], taken, 8, seed=6) != first
    assert held_out(ShapeRange.of({"T": (1, 3)}), [{"d0": T}], [(("d0", t),) for t in (1, 2, 3)], 8, 0) == []


def test_thinned_points_keep_the_whole_weight() -> None:
    points = evaluation_points(ShapeRange.of({"T": (1, 500)}), [{"d0": T}])
    thin = points.thin(20)
    assert len(thin) <= 20 and sum(thin.weights) == pytest.approx(1)
    assert thin.shapes[0] == points.shapes[0] and thin.shapes[-1] == points.shapes[-1]
    assert set(thin.shapes) <= set(points.shapes)


def test_no_shape_is_an_error() -> None:
    with pytest.raises(OptionError, match="no shape"):
        Points.of([])
