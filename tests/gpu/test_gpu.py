"""Every family on a CUDA device, over the shapes of the emulator's tests, against NumPy and against the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_workloads import attention
from gpu.cuda_device import FilledDevice, missing_reason
from gpu_harness import TOLERANCE, Placed, check, is_legal, random, run
from gpu_workloads import (
    RELU,
    TANH,
    Case,
    concat,
    contraction,
    convolution,
    gather,
    padded,
    pointwise,
    rows,
    transpose,
)
from product_rows_workloads import product_rows
from tensor_core_workloads import product

import tilewright as tw
from tilewright.compiler.reference import compare, evaluate

REASON = missing_reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]

DATA = Path(__file__).parent.parent / "data"
FREE = "simt{bm=32 bn=32 bk=8 tm=2 tn=4 stages=2 vec=1 index=64}"
VECTOR = "simt{bm=32 bn=64 bk=16 tm=4 tn=4}"
MMA = "mma{bm=32 bn=32 bk=32 wm=16 wn=32 stages=2}"
ODD = ((1, 1, 1), (32, 32, 16), (31, 33, 7), (33, 31, 17), (2, 67, 40), (65, 3, 9), (257, 129, 65))
WHOLE = ((4, 4, 4), (32, 64, 16), (36, 60, 20), (28, 68, 44), (260, 132, 64))
ROWS = ((1, 1), (5, 8), (3, 37), (9, 256), (130, 100), (128, 31), (7, 200))
HALF = TOLERANCE["f16"]  # of what exponentials in 16 bits give
ROUNDED_LAST = 2e-5  # sums of products of 16 bits, and of a row, in f32
PLANES = ((1, 4), (3, 8), (127, 36), (64, 64), (1000, 132))


@dataclass(frozen=True)
class Sweep:
    """A kernel and its shapes, of dims named by the letters of `names`. tolerance: None is that of the result's type."""

    case: Case
    config: str
    names: str
    sizes: tuple[tuple[int, ...], ...]
    tolerance: float | None = None


def _sweeps() -> dict[str, Sweep]:
    body = "%s = arith.mulf %x0, %x1 : f32\n %t = math.tanh %s : f32\n linalg.yield %t : f32"
    layouts = {"nn": "m k,k n,m n", "nt": "m k,n k,m n", "tn": "k m,k n,m n"}
    found = {}
    for name, maps in layouts.items():
        found[f"simt {name}"] = Sweep(contraction(maps), VECTOR, "MNK", WHOLE)
        found[f"simt {name} large"] = Sweep(contraction(maps), "simt{bm=128 bn=128 tm=8 tn=8}", "MNK", WHOLE)
        found[f"simt {name} any"] = Sweep(contraction(maps), FREE, "MNK", ODD)
        found[f"mma {name}"] = Sweep(product(maps), MMA, "MNK", ((8, 8, 8), (40, 56, 72)))
    for element in ("f64", "f16", "bf16", "i32"):
        found[f"simt {element}"] = Sweep(contraction("m k,k n,m n", element), FREE, "MNK", ODD)
    found["simt relu"] = Sweep(contraction("m k,k n,m n", epilogue=RELU), VECTOR, "MNK", ((32, 32, 16), (37, 68, 20)))
    found["simt tanh"] = Sweep(contraction("m k,k n,m n", epilogue=TANH), FREE, "MNK", ODD)
    found["simt split"] = Sweep(contraction("m k,k n,m n"), "simt{bm=32 bn=32 bk=8 tm=4 tn=4 split-k=4}", "MNK", WHOLE)
    found["simt batch"] = Sweep(contraction("b m k,b n k,b m n"), FREE, "BMNK", ((1, 1, 1, 1), (3, 5, 17, 18), (2, 33, 34, 7)))
    for layout in ("nhwc", "nchw"):
        found[f"simt {layout}"] = Sweep(convolution(layout, 2, 1, 8, 20), "simt", "B", ((1,), (3,)))
    for kind in ("sum", "sum0", "softmax", "layernorm"):
        found[f"rows {kind}"] = Sweep(rows(kind), "gpu_rows{vec=1}", "MN", ROWS)
        config = "gpu_rows{threads=256 per_row=256 vec=1 vectors-in-registers=4 unroll=1}"
        found[f"rows {kind} block"] = Sweep(rows(kind), config, "MN", ROWS)
        found[f"rows {kind} shared"] = Sweep(rows(kind), "gpu_rows{threads=64 per_row=64 vec=1 blocks=4}", "MN", ROWS)
    for kind in ("softmax", "layernorm"):
        config = "mma_rows{bm=16 bn=64 wm=16 lanes=4 vectors-in-registers=1}"
        found[f"mma_rows {kind}"] = Sweep(product_rows(kind, 72), config, "MK", ((1, 8), (40, 72), (130, 136)), ROUNDED_LAST)
    found["pointwise"] = Sweep(pointwise(body, lambda x, b: np.tanh(x * b)), "gpu_pointwise", "MN", PLANES)
    found["transpose"] = Sweep(transpose(), "gpu_pointwise{vec=1 tile=32}", "MN", ((4, 8), (36, 33), (64, 1), (300, 100)))
    found["concat"] = Sweep(concat(), "gpu_pointwise{vec=1}", "MNL", tuple((m, n, 2 * n + 8) for m, n in ROWS))
    found["pad"] = Sweep(padded(), "gpu_pointwise{vec=1}", "MNL", tuple((m, n, n + 4) for m, n in ROWS))
    return found


def _waves() -> dict[str, Sweep]:
    """Kernels for sm_90a whose tiles fill an H100 twice: blocks take a second tile, or start while others end. The first size is
    for the device, the second for an emulator of four multiprocessors."""
    nn, tile = product("m k,k n,m n", out="f16"), "bm=64 bn=64 stages=3"
    forms = {"": "consumers=1", " copied": "consumers=1 copied=true", " in turn": "copied=true pingpong=true",
             " in pairs": "consumers=1 copied=true cluster-m=2", " in parts": "consumers=1 blocks=0 cluster-k=2"}
    sizes = ((2112, 1088, 136), (130, 200, 136))
    found = {f"wgmma{name}": Sweep(nn, f"wgmma{{{tile} {form}}}", "MNK", sizes) for name, form in forms.items()}
    found["mma"] = Sweep(product("m k,k n,m n"), MMA, "MNK", ((2048, 2208, 40), (72, 104, 40)))
    found["simt"] = Sweep(contraction("m k,k n,m n"), VECTOR, "MNK", ((2048, 4416, 20), (72, 136, 20)))
    found["gemv"] = Sweep(product("m k,n k,m n"), "gemv{rows=8 vec=8 tensor=true}", "MNK", ((8, 68_000, 64), (8, 264, 64)))
    found["rows"] = Sweep(rows("softmax"), "gpu_rows{vec=1}", "MN", ((34_000, 8), (70, 8)))
    found["mma_rows"] = Sweep(product_rows("layernorm", 72), "mma_rows{bm=16 bn=64 wm=16 lanes=4 vectors-in-registers=1}", "MK",
                              ((22_000, 40), (140, 40)), ROUNDED_LAST)
    heads = attention(depth=64, columns=64)
    found["wgmma_attention"] = Sweep(heads, "wgmma_attention{bn=64 consumers=1}", "BMN", ((1100, 64, 40), (9, 64, 40)), HALF)
    pages = attention(mask="lengths", depth=64, columns=64, page=16)
    found["gpu_attention pages"] = Sweep(pages, "gpu_attention{bm=16 split-kv=2}", "BMNPC",
                                         ((800, 8, 512, 512, 32), (5, 8, 64, 9, 4)), HALF)
    return found


SWEEPS, WAVES = _sweeps(), _waves()


@pytest.fixture
def device() -> Iterator[Any]:
    made = FilledDevice()
    yield made
    made.close()


@pytest.mark.parametrize("name", SWEEPS)
def test_family_matches_the_reference_and_the_emulator(device: Any, name: str) -> None:
    s, ran = SWEEPS[name], 0
    for size in s.sizes:
        dims = dict(zip(s.names, size, strict=True))
        ran += check(s.case.text, s.config, s.case.inputs, s.case.results, dims, s.case.reference, arch=device.arch,
                     device=device)
        inputs = [Placed(random(t, dims, i)) for i, t in enumerate(s.case.inputs)]
        outputs = [Placed(random(t, dims)) for t in s.case.results]
        if is_legal(s.case.text, s.config, dims, [*inputs, *outputs]):
            real, emulated = (run(s.case.text, s.config, dims, inputs, outputs, arch=device.arch, device=d)
                              for d in (device, None))
            for t, a, b in zip(s.case.results, real, emulated, strict=True):
                scale = max(1.0, float(np.abs(b.astype(np.float64)).max(initial=0)))
                assert np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0) <= TOLERANCE[t.element] * scale, dims
    assert ran


@pytest.mark.parametrize("name", WAVES)
def test_several_waves(device: Any, name: str) -> None:
    if device.arch != "sm_90a":
        pytest.skip(f"for sm_90a, not {device.arch}")
    s = WAVES[name]
    dims = dict(zip(s.names, s.sizes[0], strict=True))
    assert check(s.case.text, s.config, s.case.inputs, s.case.results, dims, s.case.reference, arch=device.arch, device=device,
                 tolerance=s.tolerance)


def test_gather_reads_the_rows_that_it_is_given(device: Any) -> None:
    table, at = np.arange(35, dtype=np.float32).reshape(7, 5), np.array([6, 0, 3], np.int64)
    got = run(gather().text, "gpu_pointwise{vec=1}", {"M": 7, "N": 5, "K": 3}, [Placed(table), Placed(at)],
              [Placed(np.zeros((3, 5), np.float32))], arch=device.arch, device=device)
    np.testing.assert_array_equal(got[0], table[at])


@pytest.mark.parametrize("name,dims,shapes", [("bert_layer_dyn_seq", {"arg0.1": (1, 128)}, [1, 5, 64, 128]),
                                              ("resnet_block_dyn_batch", {"arg0.0": (0, 4)}, [0, 1, 4])])
def test_models(name: str, dims: dict[str, tuple[int, int]], shapes: list[int]) -> None:
    text = (DATA / f"{name}.mlir").read_text()
    fn = tw.compile(text, dims, target="cuda")
    rng = np.random.default_rng(0)
    symbol = next(iter(dims)).replace(".", "_")
    for size in shapes:
        arrays = [(rng.standard_normal([d.evaluate({symbol: size}) for d in a.spec().dims]) * 0.1).astype(a.dtype.numpy)
                  for a in fn.inputs]
        got, want = fn(*arrays), evaluate(text, arrays)[0]
        assert got.shape == want.shape
        assert not got.size or compare(got, want).ok(2e-5, 1e-4), size
