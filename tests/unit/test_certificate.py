"""The shapes of a certificate: what is told of a shape the search did not look at."""

from __future__ import annotations

import msgspec
import numpy as np

from tilewright.runtime.program.certificate import Expected
from tilewright.search.search_strategy.certify import certify


def test_the_nearest_shape_answers_for_one_that_was_not_looked_at() -> None:
    empty = certify((), np.zeros(3), np.ones(3), 0)
    assert empty.near({"d0": 5}) is None
    found = msgspec.structs.replace(empty, expected=tuple(Expected((n, 2 * n), n * 1e-6) for n in (1, 10, 100)))
    near = [found.near({"d0": n, "d1": 2 * n}) for n in (1, 2, 5, 30, 90, 5000)]
    assert [e.dims[0] for e in near if e] == [1, 1, 10, 10, 100, 100]
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
