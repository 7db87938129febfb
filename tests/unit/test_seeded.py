"""What tests draw by torch's own generator is the same in each run, whatever ran before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("number", range(2))
def test_tests_begin_with_one_seed(number: int) -> None:
    assert torch.initial_seed() == 0 and torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))
