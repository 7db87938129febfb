"""Parts of k over a cluster: `mma` and `wgmma` on the emulator, under all of its checks, against NumPy in f64."""

from __future__ import annotations

import pytest
from emulator.test_families import sweep
from tensor_core_workloads import product

NN, NT = "m k,k n,m n", "m k,n k,m n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config,size", [
    ("mma{bm=32 bn=32 bk=32 wm=16 wn=16 cluster-k=2}", (40, 72, 200)),
    ("mma{bm=32 bn=64 bk=32 wm=16 wn=32 stages=2 vec=1 index=64 cluster-k=8}", (33, 35, 203)),
    ("wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=0 cluster-k=8}", (72, 136, 328)),
    ("wgmma{bm=128 bn=64 consumers=2 stages=2 blocks=0 cluster-k=2}", (136, 72, 456)),
])
def test_parts_of_k_are_summed_over_a_cluster(config: str, size: tuple[int, ...]) -> None:
    """More parts than steps among them."""
    case = product(NN, out="f16", epilogue="tanh")
    assert sweep(case, config, "MNK", [size, (8, 8, 0)], 1, arch="sm_90a") == 2


def test_bytes_are_summed_too() -> None:
    config = "mma{bm=32 bn=32 bk=64 wm=16 wn=16 stages=2 vec=16 cluster-k=2}"
    assert sweep(product(NT, "i8"), config, "MNK", [(48, 32, 320)], arch="sm_90a") == 1
