"""The suite of the partition: a workload is the same function in all systems, and XLA's text is counted as it is executed."""

from __future__ import annotations

import numpy as np
import pytest

from tools.bench.partition.columns import STEP, Reader
from tools.bench.partition.optimizers import sizes
from tools.bench.partition.training import WORKLOADS
from tools.bench.partition.xla import counted_in

TEXT = """
HloModule jit_run
%fused (p: f32[4,8]) -> f32[4] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %r = f32[4]{0} reduce(%p, %c), dimensions={1}
}
ENTRY %main.1 (x: f32[4,8], y: bf16[8]) -> (f32[4], bf16[8]) {
  %x = f32[4,8]{1,0} parameter(0), metadata={op_name="x"}
  %y = bf16[8]{0} parameter(1)
  %s = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %n = bf16[8]{0} negate(%y)
  ROOT %t = (f32[4]{0}, bf16[8]{0}) tuple(%s, %n)
}
"""


def test_what_xla_executes_is_counted() -> None:
    counted = counted_in(TEXT)
    assert (counted.launches, counted.bytes) == (2, 4 * 8 * 4 + 4 * 4 + 2 * 8 * 2)


def test_bert_has_its_parameters() -> None:
    assert len(sizes()) == 199
    assert sum(a * (b or [1])[0] for a, *b in sizes()) == 109_482_240
    assert min(first for first, *_ in sizes(64)) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("passes", [1, 2])
def test_the_reader_reads_every_byte(threads: int, passes: int) -> None:
    array = np.random.default_rng(threads).integers(0, 1 << 32, 4 * threads * STEP // 4, np.uint32)
    np.testing.assert_array_equal(Reader(threads).folded(array, passes), np.bitwise_xor.reduce(array.reshape(-1, 16), 0))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_workloads_are_over_rows(workload: object) -> None:
    given = workload.given  # type: ignore[attr-defined]
    assert any("T" in g.size for g in given)
