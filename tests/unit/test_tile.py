"""`tile` cuts a region into work units without changing what it computes, and the kernel has the units that the IR says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from attention_workloads import attention
from gpu_workloads import RELU, Case, contraction, convolution, diagonals, padded, pointwise, rows, transpose
from kernel_harness import NUMPY

from tilewright.compiler.reference.interpreter import evaluate
from tilewright.passes.base import PassPipeline
from tilewright.passes.codegen.emit_micro_kernel import EmitMicroKernel
from tilewright.passes.codegen.tile import Tile
from tilewright.passes.linalg.symbolic import argument_attributes, read_dims
from tilewright.passes.mlir import functions, ir, walk
from tilewright.runtime.errors import PassError

CONTRACTIONS = ("host_matmul{mr=3 nv=1 lanes=4}", "host_matmul{mr=2 nv=1 lanes=4 mc=5 panels=2}",
                "host_matmul{mr=1 nv=2 lanes=4 mc=3 stream=2}", "simt{bm=32 bn=32 bk=8 group=2}",
                "simt{bm=32 bn=32 bk=8 split=2 vec=1}")
ROWS = ("host_rows{block=3}", "host_rows{axis=lane lanes=4 unroll=2}", "gpu_rows{threads=64 per-row=16 vec=1}")
ATTENTION = ("host_attention{mr=2 nv=1 lanes=8 keys=32 mc=3}", "gpu_attention{bm=16 bn=16 vec=1}",
             "gpu_attention{bm=16 bn=16 vec=1 split=2}")
POINTWISE = ("generic{lanes=4 chunk=16}", "gpu_pointwise{vec=1 threads=32 chunks=2}", "gpu_pointwise{vec=1 tile=32}")
DIMS = {"B": 3, "G": 2, "M": 37, "N": 41, "K": 7}
CASES: Mapping[str, tuple[Case, tuple[str, ...]]] = {
    "matmul": (contraction("m k,k n,m n"), CONTRACTIONS),
    "batch last": (contraction("m k b,k n b,m n b", epilogue=RELU), CONTRACTIONS),
    "convolution": (convolution("nhwc", pad=1), (*CONTRACTIONS, "host_winograd{lanes=8 mc=4 chunks=2}")),
    "channels first": (convolution("nchw"), CONTRACTIONS),
    "softmax": (rows("softmax"), ROWS),
    "attention": (attention(), ATTENTION),
    "attention, heads inside": (attention("b m g d,b n g d,b n g e,b m g e"), ATTENTION),
    "pointwise": (pointwise("%s = arith.mulf %x0, %x1 : f32\n linalg.yield %s : f32", np.multiply), POINTWISE),
    "transpose": (transpose(), POINTWISE),
    "padded": (padded(), POINTWISE),
    "scatter": (diagonals(), POINTWISE),
}


def arguments(module: ir.Module, case: Case) -> list[np.ndarray]:
    """Random operands, then the dims in the order of the function."""
    rng = np.random.default_rng(7)
    operands = [rng.standard_normal(t.shape(DIMS)).astype(NUMPY[t.element]).astype(np.float64) for t in case.inputs]
    dims = argument_attributes(next(functions(module)))[len(operands):]
    return [*operands, *(np.asarray(DIMS[str(read_dims(named["tw.dims"])[0])]) for named in dims)]


def iterations(module: ir.Module) -> list[tuple[int, ...]]:
    """Static iterations of each loop over units; 0 where they depend on the dims."""
    loops = [op for op in walk(module.operation) if op.name == "scf.forall"]
    absent = ir.ShapedType.get_dynamic_size()
    return [tuple(0 if b == absent else b for b in ir.DenseI64ArrayAttr(op.attributes["staticUpperBound"])) for op in loops]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "config"), [(name, c) for name, (_, configs) in CASES.items() for c in configs])
def test_tiles_put_together_are_what_the_region_computes(name: str, config: str) -> None:
    case = CASES[name][0]
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(case.text)
        inputs = arguments(module, case)
        wanted = evaluate(module, inputs)
        PassPipeline([Tile(config)]).run(module)
        assert iterations(module)
        found = evaluate(module, inputs)
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)
        PassPipeline([EmitMicroKernel()]).run(module)
        assert not iterations(module)


def test_a_region_is_tiled_before_it_is_emitted() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(CASES["matmul"][0].text)
        with pytest.raises(PassError, match="run `tile` before this pass"):
            PassPipeline([EmitMicroKernel()]).run(module)
