"""Kernels with code of their own for tiles that no edge cuts, in every form that a product over all rows may have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulator.test_families import sweep
from tensor_core_workloads import product

from tilewright.passes.linalg.symbolic import WHOLE_TILES

NN, NT = "m k,k n,m n", "m k,n k,m n"
FORMS = [
    ("f16", NT, "mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=2 group-m=2}", "sm_80"),
    ("f16", NN, "mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=3 split-k=2}", "sm_80"),
    ("f16", NN, "mma{bm=32 bn=32 bk=32 wm=16 wn=16 cluster-k=2}", "sm_90a"),
    ("f32", NN, "simt{bm=32 bn=64 bk=16 tm=4 tn=4 stages=2}", "sm_80"),
    ("f32", NT, "simt{bm=32 bn=64 bk=16 tm=4 tn=4 transpose-on-copy=true split-k=2}", "sm_80"),
    ("f16", NN, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=2 cluster-m=2}", "sm_90a"),
    ("f16", NT, "wgmma{bm=64 bn=64 stages=2 blocks=2 pingpong=true}", "sm_90a"),
    ("f16", NT, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=0 split-k=2}", "sm_90a"),
    ("f16", NN, "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=0 cluster-k=2}", "sm_90a"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("element,maps,config,arch", FORMS)
def test_whole_and_cut_tiles(element: str, maps: str, config: str, arch: str) -> None:
    """Tiles of both kinds, whole ones alone, and none; k of whole steps and not."""
    case = product(maps, element, epilogue="tanh")
    text = case.text.replace(") {\n", f") attributes {{{WHOLE_TILES}}} {{\n", 1)
    assert WHOLE_TILES in text
    sizes = [(136, 72, 64), (64, 64, 40), (8, 8, 0)]
    assert sweep(replace(case, text=text), config, "MNK", sizes, 1, arch=arch) == len(sizes)
