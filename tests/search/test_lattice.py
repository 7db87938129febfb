from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from search_surfaces import LIMITS, dense

from tilewright.passes.spaces.family_registry import heuristics_of, space_of
from tilewright.runtime.errors import OptionError
from tilewright.search.cost_model.forms import feature_space
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.space.lattice import Lattice


@pytest.fixture(scope="module")
def lattice() -> Lattice:
    w = dense()
    return Lattice.of(w, LIMITS, ("host_matmul",), heuristics_of("host_matmul").default(w, LIMITS)[0])


def test_members_are_distinct_legal_and_found_by_text(lattice: Lattice) -> None:
    assert len(set(lattice.texts)) == len(lattice) > 100
    space = space_of("host_matmul")
    assert all(space.why_invalid(c, lattice.workload, LIMITS) is None for c in lattice)
    assert all(lattice.number(text) == i for i, text in enumerate(lattice.texts))
    assert lattice.number("host_matmul{mr=77}") is None


def test_neighbours_differ_in_one_coordinate_and_are_mutual(lattice: Lattice) -> None:
    for index in lattice.sample(40, np.random.default_rng(0)):
        here = lattice.kernel_cost(index).coordinates
        near = lattice.neighbours(index)
        assert near and index not in near
        for other in near:
            there = lattice.kernel_cost(other).coordinates
            assert sum(here[k] != there[k] for k in here) == 1
            assert index in lattice.neighbours(other)


def test_a_sample_repeats_with_its_seed_and_holds_no_member_twice(lattice: Lattice) -> None:
    first, again = (lattice.sample(50, np.random.default_rng(3)) for _ in range(2))
    assert first == again and len(set(first)) == 50
    assert len(lattice.sample(10**6, np.random.default_rng(0))) == len(lattice)


def test_rules_of_a_workload_prune_the_space() -> None:
    few = Lattice.of(dense(), replace(LIMITS, vector_registers=16), ("host_matmul",))
    assert len(few) < len(Lattice.of(dense(), LIMITS, ("host_matmul",)))
    with pytest.raises(OptionError, match="no legal configuration"):
        Lattice(dense(), LIMITS, [])


def test_features_have_names_and_numbers(lattice: Lattice) -> None:
    space = feature_space(lattice, [(("d0", m),) for m in (1, 7, 64)])
    pairs = Pairs.product(range(20), range(3), (1, 2))
    rows = space.pair_rows(pairs)
    assert len(rows.names) == len(set(rows.names)) == rows.values.shape[1]
    assert rows.values.shape[0] == len(pairs) == 120
    assert np.all(np.isfinite(rows.values))
    assert "occ" in rows.names and "pad" in rows.names
    assert "host_matmul.fmas_per_load" in space.config_rows.names
    assert np.isnan(rows.under(("occ", "unheard-of"))[:, 1]).all()


def test_padding_and_occupancy_are_those_of_the_paper() -> None:
    from tilewright.search.cost_model import analytic

    extents, tiles = np.array([[60, 96]]), np.array([[8, 48]])
    assert analytic.pad(extents, tiles, tiles, np.ones((1, 2)))[0] == pytest.approx(60 / 64)
    slow = analytic.pad(np.array([[60]]), np.array([[48]]), np.array([[8]]), np.array([[2.0]]))
    assert slow[0] == pytest.approx(60 / (48 + 32))
    assert analytic.units(extents, np.array([[0, 48]]))[0] == 2
    assert analytic.occ(np.array([5.0]), np.array([2.0]))[0] == pytest.approx(5 / 6)
    # 13 rows in blocks of 8, the rest 4 + 1, where a block costs at least as much as 2 rows: 8 + 4 + 2
    assert analytic.tails(np.array([[13]]), np.array([[8]]), np.array([[2]]), np.array([[1]]))[0] == pytest.approx(13 / 14)
    assert analytic.tails(np.array([[9]]), np.array([[8]]), np.array([[4]]), np.array([[0]]))[0] == pytest.approx(9 / 12)
