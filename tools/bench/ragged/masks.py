"""Products over all rows of a batch on the emulated GPU: warp instructions with masks everywhere, and with whole tiles apart."""

from __future__ import annotations

import argparse

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.gpu.mma import MmaConfig
from tilewright.passes.spaces.gpu.simt import SimtConfig
from tilewright.passes.spaces.gpu.wgmma import WgmmaConfig
from tilewright.runtime.emulator.emulator_device import EmulatorDevice

_INNER, _COLUMNS = 256, 256
_ROWS = (300, 900)  # of a batch
_CASES = (("f32", "sm_80"), ("f16", "sm_80"), ("f16", "sm_90a"))


def main(given: argparse.Namespace) -> int:
    """Print instructions of the same kernel: of a dense model, of a ragged one, and of that with rows up to a whole tile."""
    for dtype, arch in _CASES:
        dense = tw.compile(_model(["N", _INNER], dtype), {"N": tw.Dim(1, 1024)}, target=f"emulator:{arch}")
        fn = tw.compile(_model(["B", "S", _INNER], dtype), {"B": tw.Dim(1, 4), "S": tw.Ragged(1, 1024, over="B")},
                        target=f"emulator:{arch}")
        for rows in _ROWS:
            shown = fn.explain(S=[rows]).calls[0]
            tile = parse_config(shown.config)
            assert isinstance(tile, SimtConfig | MmaConfig | WgmmaConfig)
            whole = -(-rows // tile.bm) * tile.bm
            masked, split, padded = (_instructions(f, n, dtype) for f, n in ((dense, rows), (fn, rows), (fn, whole)))
            same = {dense.explain(N=rows).calls[0].config, fn.explain(S=[whole]).calls[0].config} == {shown.config}
            print(f"{dtype} {arch} {rows} rows: {masked:,} warp instructions with masks, {split:,} with whole tiles apart "
                  f"({split / masked - 1:+.1%}), {padded:,} padded to {whole} rows ({padded / split - 1:+.1%}); {shown.config}"
                  f"{'' if same else ', not in all three'}", flush=True)
    return 0


def _model(dims: list[int | str], dtype: str) -> ops.Graph:
    g = ops.Graph()
    g.output(ops.relu(ops.dense(g.input("x", dims, dtype), g.input("w", [_INNER, _COLUMNS], dtype))))
    return g


def _instructions(fn: tw.CompiledFunction, rows: int, dtype: str) -> int:
    """Of the product of one call with so many rows."""
    device = fn._caller.device  # type: ignore[attr-defined]
    assert isinstance(device, EmulatorDevice)
    numpy = {"f32": np.float32, "f16": np.float16}[dtype]
    x, w = np.ones((rows, _INNER), numpy), np.ones((_INNER, _COLUMNS), numpy)
    if fn.program.ragged:
        fn(x, w, S_lengths=[rows])
    else:
        fn(x, w)
    return device.launches[-1].warp_instructions
