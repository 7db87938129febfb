"""Calls that may write over a donated argument come behind those that read it, where these do not need what they give."""

from __future__ import annotations

import random

import pytest

from tilewright.compiler.host.donated_order import readers_first


def test_calls_stay_in_their_order_where_nothing_is_written_over() -> None:
    assert readers_first([[], [0], [0], [1, 2]], {}) == ([0, 1, 2, 3], [[], [0], [0], [1, 2]])
    assert readers_first([[], []], {1: [0]}) == ([0, 1], [[], [0]])


def test_a_writer_goes_behind_a_later_reader_and_takes_along_what_needs_it() -> None:
    assert readers_first([[], [0], []], {0: [2]}) == ([2, 0, 1], [[], [0], [1]])


@pytest.mark.parametrize("over", [{0: [1]}, {0: [2]}])
def test_a_reader_that_needs_the_writer_stays_behind_it(over: dict[int, list[int]]) -> None:
    assert readers_first([[], [0], [1]], over) == ([0, 1, 2], [[], [0], [1]])


def test_of_two_that_read_what_the_other_one_writes_over_one_is_first() -> None:
    order, waits = readers_first([[], []], {0: [1], 1: [0]})
    assert order == [1, 0] and waits == [[], [0]]


@pytest.mark.parametrize("seed", range(20))
def test_any_graph_keeps_an_order_that_can_be_run(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 12)
    producers = [rng.sample(range(n), rng.randint(0, min(n, 3))) for n in range(size)]
    over = {w: rng.sample(range(size), rng.randint(1, 2)) for w in rng.sample(range(size), rng.randint(1, size))}
    over = {w: [r for r in readers if r != w] for w, readers in over.items()}
    order, waits = readers_first(producers, over)
    assert sorted(order) == list(range(size))
    assert all(n < at for at, each in enumerate(waits) for n in each)
    place = {number: at for at, number in enumerate(order)}
    assert all(place[p] < place[number] for number, each in enumerate(producers) for p in each)
