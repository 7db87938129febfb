"""The arena plan: no two live buffers overlap for any dims, and buffers of disjoint lives share memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.errors import OptionError
from tilewright.runtime.program.arena_plan import Temporary, plan
from tilewright.runtime.shape import Expr

B, S = Expr.dim("B"), Expr.dim("S")
SIZES = [Expr.of(0), Expr.of(100), 4 * B, 3072 * B * S, 4 * B * S, 48 * B * S * S, 4 * S.maximum(B), 4 * (S // 2) + 8]
lives = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda t: (t[0], t[0] + t[1]))
temporaries = st.lists(st.tuples(st.sampled_from(SIZES), lives), max_size=14).map(
    lambda rows: [Temporary(f"t{i}", size, *life) for i, (size, life) in enumerate(rows)]
)
dims = st.fixed_dictionaries({"B": st.integers(0, 40), "S": st.integers(0, 600)})


@settings(max_examples=150, deadline=None)
@given(temporaries, dims, st.sampled_from([None, {"B": (0.0, 40.0), "S": (0.0, 600.0)}]))
def test_live_buffers_never_overlap(
    buffers: list[Temporary], point: dict[str, int], ranges: dict[str, tuple[float, float]] | None
) -> None:
    result = plan(buffers, ranges)
    total = result.total.evaluate(point)
    spans = []
    for t in buffers:
        start = result.offsets[t.name].evaluate(point)
        assert start % 64 == 0
        assert 0 <= start <= start + t.size.evaluate(point) <= total
        spans.append((t, start, start + t.size.evaluate(point)))
    for i, (a, a0, a1) in enumerate(spans):
        for b, b0, b1 in spans[:i]:
            if a.overlaps(b):
                assert a1 <= b0 or b1 <= a0 or a0 == a1 or b0 == b1, (a, b)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Temporary(f"t{i}", 3072 * B * S, i, i + 1) for i in range(30)]
    assert plan(chain).total == 6144 * B * S


def test_smaller_buffers_move_into_larger_slots_without_max() -> None:
    result = plan([Temporary("a", 64 * B, 0, 1), Temporary("b", 3072 * B * S, 2, 3)], {"B": (1, 8), "S": (1, 128)})
    assert result.total == 3072 * B * S
    assert result.offsets == {"a": Expr.of(0), "b": Expr.of(0)}


def test_sizes_that_cannot_be_compared_share_by_max() -> None:
    result = plan([Temporary("a", 64 * B, 0, 1), Temporary("b", 64 * S, 2, 3)])
    assert result.total == (64 * B).maximum(64 * S)


def test_writer_and_reader_of_one_call_do_not_share() -> None:
    result = plan([Temporary("in", Expr.of(64), 0, 3), Temporary("out", Expr.of(64), 3, 4)])
    assert result.total == Expr.of(128)


def test_equal_names_are_refused() -> None:
    with pytest.raises(OptionError, match="twice"):
        plan([Temporary("a", B, 0, 1), Temporary("a", B, 2, 3)])


def test_no_temporaries() -> None:
    assert plan([]).total == Expr.of(0)
