"""The kernels that mutants are made of: one of every family and path, small, at shapes that end inside tiles."""

from __future__ import annotations

import functools
from collections.abc import Callable

from attention_workloads import attention
from emulator.mutants import Subject
from gpu_workloads import RELU, contraction, convolution, gather, pointwise, rows, transpose
from product_rows_workloads import product_rows
from tensor_core_workloads import product

Recipe = Callable[[], Subject]


def subjects(part: str = "") -> dict[str, Subject]:
    """The kernels whose names contain `part`, by name."""
    return {name: recipe() for name, recipe in (_plain() | _tensor_cores() | _parts()).items() if part in name}


def subject(name: str) -> Subject:
    """The kernel of this name."""
    return (_plain() | _tensor_cores() | _parts())[name]()


def _recipe(*given: object, **more: object) -> Recipe:
    return functools.partial(Subject, *given, **more)  # type: ignore[arg-type]


def _plain() -> dict[str, Recipe]:
    """Kernels of scalar instructions, whose operands have gaps between their rows."""
    dense = contraction("m k,k n,m n")
    gaps = {0: (0, 4), 1: (0, 8), 2: (0, 4)}
    odd = {0: (0, 1), 1: (0, 2), 2: (0, 3)}
    rows_ends = [(m, 4, 28) for m in (9, 16, 23, 24, 25, 31)] + [(96, 64, 12)]
    sizes = [(37, 36, 84), (4, 4, 4), (65, 64, 12), (64, 68, 20), (105, 32, 28), (50, 8, 40), (8, 8, 0), *rows_ends]
    free = [(33, 31, 73), (3, 2, 17), (65, 33, 8), (32, 64, 9), (50, 17, 33), (105, 25, 3), (5, 6, 0), (4, 15, 16), *rows_ends,
            *((3, n, k) for n, k in ((9, 27), (10, 29), (23, 30), (24, 31), (96, 40)))]
    tile = "bm=32 bn=32 bk=8 tm=4 tn=4 group-m=2"
    body = "%s = arith.mulf %x0, %x1 : f32\n linalg.yield %s : f32"
    times = pointwise(body, lambda x, b: x * b)
    return {
        "simt": _recipe(dense, f"simt{{{tile} stages=3}}", "MNK", sizes, gaps),
        "simt any": _recipe(dense, f"simt{{{tile} stages=2 vec=1 index=64}}", "MNK", free, odd),
        "simt turned": _recipe(contraction("m k,n k,m n"), f"simt{{{tile} transpose-on-copy=true vec=1}}", "MNK", free, odd),
        "simt split": _recipe(contraction("m k,k n,m n", epilogue=RELU), f"simt{{{tile} split-k=2}}", "MNK",
                              [(37, 36, 100), (4, 8, 4), (65, 64, 60), (64, 68, 8), (105, 4, 72), (96, 32, 8), (17, 24, 256),
                               (5, 8, 44), *rows_ends],
                              {0: (0, 4), 1: (0, 8), 3: (0, 4), 4: (0, 8)}),
        "simt batch": _recipe(contraction("b m k,b n k,b m n"), f"simt{{{tile} stages=2}}", "BMNK",
                              [(2, 33, 36, 84), (3, 4, 4, 8), (2, 64, 68, 20), (2, 105, 32, 36), (3, 96, 32, 4), (2, 8, 8, 0)],
                              {0: (0, 4, 4), 1: (0, 4, 8), 2: (0, 0, 4)}),
        "simt convolution": _recipe(convolution("nhwc", 2, 1, 8, 36), f"simt{{{tile}}}", "B", [(1,), (3,), (5,), (32,)]),
        "rows softmax": _recipe(rows("softmax"), "gpu_rows{threads=128 per_row=64 vec=1 vectors-in-registers=2 unroll=1}", "MN",
                                [(5, 100), (2, 3), (1, 128)], {0: (0, 3), 1: (0, 5)}, (1, 1000)),
        "rows softmax warp": _recipe(rows("softmax"), "gpu_rows{vectors-in-registers=2 unroll=1}", "MN", [(5, 100), (9, 256)],
                                     {0: (0, 4), 1: (0, 4)}, (1, 1000)),
        "rows softmax rounded": _recipe(rows("softmax", element="f16"), "gpu_rows{vec=8 vectors-in-registers=2 unroll=1}", "MN",
                                        [(5, 104), (9, 512), (1, 8)], {0: (0, 8), 1: (0, 16)}, (1, 1000)),
        "rows layernorm": _recipe(rows("layernorm"), "gpu_rows{threads=128 per_row=64 vec=1}", "MN",
                                  [(3, 130), (2, 5), (5, 583), (1, 256), (2, 700), (3, 190), (3, 192)], {0: (0, 3), 3: (0, 5)}),
        "rows shared by blocks": _recipe(rows("layernorm"), "gpu_rows{threads=128 per_row=64 vec=1 blocks=2}", "MN",
                                         [(3, 130), (2, 5), (1, 256), (2, 700), (5, 257), (3, 384)], {0: (0, 3), 3: (0, 5)}),
        "columns shared by blocks": _recipe(rows("sum0"), "gpu_rows{threads=64 per_row=1 vec=1 unroll=4 blocks=4}", "MN",
                                            [(9, 130), (6, 3), (97, 65), (21, 5), (8, 64)], {0: (0, 3)}),
        "rows sum of columns": _recipe(rows("sum0"), "gpu_rows{per_row=1 vec=1 unroll=4}", "MN",
                                       [(9, 130), (6, 3), (3, 300), (21, 5), (8, 2)], {0: (0, 3)}),
        "pointwise": _recipe(times, "gpu_pointwise", "MN", [(9, 36), (127, 8)], {0: (0, 4), 2: (0, 4)}),
        "pointwise any": _recipe(times, "gpu_pointwise{vec=1 index=64}", "MN", [(9, 35), (3, 1)], {0: (0, 3), 2: (0, 5)}),
        "transpose": _recipe(transpose(), "gpu_pointwise{vec=1 tile=32}", "MN",
                             [(36, 33), (5, 64), (65, 32), (33, 100), (96, 32), (32, 96)], {0: (0, 3), 1: (0, 5)}),
        "gather": _recipe(gather(), "gpu_pointwise{vec=1}", "MNK", [(7, 5, 300), (3, 9, 2)], {0: (0, 3), 2: (0, 5)}),
    }


def _tensor_cores() -> dict[str, Recipe]:
    """Kernels of mma.sync and wgmma, with their asynchronous copies and barriers."""
    nn, nt = "m k,k n,m n", "m k,n k,m n"
    sizes = [(40, 72, 104), (8, 8, 8), (33, 32, 72), (32, 64, 32), (97, 24, 136), (15, 40, 0), (97, 64, 328)]
    free = [(33, 31, 73), (3, 2, 17), (65, 33, 8), (32, 64, 9), (50, 17, 33), (5, 6, 0), (1, 97, 64),
            (1, 1, 8224), (65, 32, 9), (3, 8, 5)]
    gaps, odd = {0: (0, 8), 1: (0, 16), 2: (0, 4)}, {0: (0, 1), 1: (0, 2), 2: (0, 3)}
    keys = [(2, 40, 104), (1, 33, 32), (1, 31, 90), (2, 64, 64), (1, 3, 2), (1, 90, 16), (1, 32, 33), (1, 3, 4128)]
    causal, apart = attention(mask="causal", depth=16, columns=16), {0: (0, 0, 8), 1: (8, 0, 16), 2: (0, 0, 8), 3: (8, 0, 4)}
    tiles = [(136, 72, 328), (8, 8, 8), (72, 136, 200), (264, 72, 0), (200, 136, 64), (128, 64, 456)]
    return {
        "mma": _recipe(product(nn, epilogue="relu"), "mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=3 group-m=2}", "MNK", sizes,
                       {0: (0, 8), 1: (0, 16), 3: (0, 8), 4: (0, 8)}),
        "mma any": _recipe(product(nt), "mma{bm=32 bn=32 bk=16 wm=16 wn=16 stages=2 vec=1 index=64 staged=false group-m=2}",
                           "MNK", free, odd),
        "mma few rows": _recipe(product(nt), "mma{bm=8 bn=32 bk=32 wm=8 wn=16 stages=3 swapped=true split-k=2}", "MNK",
                                [(8, 72, 136), (3, 32, 64), (16, 8, 8), (9, 40, 328), (5, 8, 0), (97, 72, 40)], gaps),
        "mma_rows": _recipe(product_rows("softmax", 136), "mma_rows{bm=16 bn=32 bk=32 wm=16 wn=16 stages=3 lanes=4 "
                            "vectors-in-registers=2}", "MK",
                            [(1, 8), (17, 40), (33, 96), (16, 0), (49, 136), (7, 56), (3, 88), (5, 120)], {0: (0, 8)}),
        "gpu_attention": _recipe(causal, "gpu_attention{bm=32 bn=16}", "BMN", keys, apart),
        "gpu_attention parts": _recipe(causal, "gpu_attention{bm=32 bn=16 split-kv=2}", "BMN",
                                       [*keys[:-1], (1, 3, 8288)], apart),
        "gpu_attention pages": _recipe(attention(mask="lengths", depth=16, columns=16, page=8),
                                       "gpu_attention{bm=16 bn=16 split-kv=2}", "BMNPC",
                                       [(2, 3, 40, 4, 5), (1, 17, 104, 3, 13), (3, 1, 8, 1, 1)],
                                       {0: (0, 0, 8), 1: (0, 8, 16), 2: (8, 0, 8), 3: (0, 3)}),
        "wgmma_attention": _recipe(attention(mask="causal"), "wgmma_attention{bn=64}", "BMN",
                                   [(1, 128, 330), (1, 150, 5), (1, 3, 2), (1, 1, 65), (1, 128, 160), (2, 40, 104), (1, 65, 64),
                                    (1, 31, 330)], apart,
                                   arch="sm_90a"),
        "wgmma": _recipe(product(nt), "wgmma{bm=128 bn=64 stages=3 blocks=1 group-m=1}", "MNK", tiles, gaps, arch="sm_90a"),
        "wgmma copied": _recipe(product(nn, out="f16"), "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=1 copied=true}", "MNK",
                                [*tiles, (520, 72, 8)], {0: (0, 8), 1: (0, 16), 2: (0, 8)}, arch="sm_90a"),
        "wgmma parts of rows": _recipe(product(nn, out="f16"), "wgmma{bm=64 bn=80 consumers=1 stages=2 blocks=1 copied=true}",
                                       "MNK", [(136, 88, 328), (8, 8, 8), (72, 168, 200), (264, 72, 0), (128, 80, 64)],
                                       {0: (0, 8), 1: (0, 16), 2: (0, 8)}, arch="sm_90a"),
        "wgmma ping-pong": _recipe(product(nn, out="f16"),
                                   "wgmma{bm=64 bn=64 stages=3 blocks=1 group-m=2 copied=true pingpong=true}",
                                   "MNK", [(136, 72, 328), (8, 8, 8), (264, 72, 0), (200, 136, 64)], {0: (0, 8), 2: (0, 8)},
                                   arch="sm_90a"),
        "wgmma cluster": _recipe(product(nt), "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=2 group-m=2 cluster-m=2}", "MNK",
                                 [*tiles, (264, 72, 8)], gaps, arch="sm_90a"),
        "wgmma square cluster": _recipe(
            product(nn), "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=4 group-m=2 cluster-m=2 cluster-n=2 deep=2}", "MNK",
            [(128, 136, 328), (8, 8, 8), (264, 128, 200), (72, 136, 0)], gaps, arch="sm_90a"),
    }


def _parts() -> dict[str, Recipe]:
    """Kernels of few rows or few tiles, whose parts of k are summed over a cluster or by a second launch."""
    nn, nt, gaps = "m k,k n,m n", "m k,n k,m n", {0: (0, 8), 1: (0, 16), 2: (0, 4)}
    deep = [(3, 36, 300), (9, 64, 124), (1, 65, 4), (5, 64, 260), (2, 8, 0)]
    pairs = [(13, 40, 328), (33, 64, 248), (33, 8, 520), (2, 8, 0)]
    tiles = [(72, 136, 520), (64, 64, 256), (8, 8, 8), (136, 72, 72), (136, 64, 72), (8, 72, 0)]
    return {
        "gemv": _recipe(contraction(nt, epilogue=RELU), "gemv{rows=4 warps=2 cluster-k=2}", "MNK", deep,
                        {0: (0, 4), 1: (0, 8), 3: (0, 4), 4: (0, 8)}, arch="sm_90a"),
        "gemv any": _recipe(contraction(nn), "gemv{rows=2 warps=2 unroll=1 vec=1 index=64}", "MNK",
                            [(3, 33, 73), (2, 32, 32), (1, 1, 1), (5, 65, 31), (5, 32, 33), (2, 3, 0)],
                            {0: (0, 1), 1: (0, 2), 2: (0, 3)}),
        "gemv matrix": _recipe(product(nt), "gemv{rows=16 warps=2 vec=8 tensor=true cluster-k=2}", "MNK",
                               [*pairs, (3, 129, 72)], gaps, arch="sm_90a"),
        "gemv split": _recipe(product(nn), "gemv{rows=8 bn=64 warps=2 unroll=1 vec=8 tensor=true split-k=2}", "MNK",
                              [*pairs, (3, 136, 72)], gaps),
        "mma parts": _recipe(product(nn), "mma{bm=32 bn=32 bk=32 wm=16 wn=16 stages=2 group-m=2 cluster-k=2}", "MNK",
                             [*tiles, (8, 8, 1040)], gaps, arch="sm_90a"),
        "wgmma streamed": _recipe(product(nt), "wgmma{bm=64 bn=64 consumers=1 stages=3 blocks=5 group-m=2 streamed=true}", "MNK",
                                  [(136, 72, 328), (8, 8, 8), (64, 64, 1096), (264, 136, 200), (72, 8, 0), (328, 64, 136)], gaps,
                                  arch="sm_90a", multiprocessors=1),
        "wgmma parts": _recipe(product(nt), "wgmma{bm=64 bn=64 consumers=1 stages=2 blocks=0 group-m=1 cluster-k=2}", "MNK",
                               tiles, gaps, arch="sm_90a"),
    }
