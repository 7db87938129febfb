"""The kernels that run untuned, read as SASS: their main loops by pipe, and the share of an H100's peak that arithmetic gives.

    python -m tools.bench gpu-table [--filter 'square*'] [--precision f16] [--json predicted.jsonl] [--check]
    python -m tools.bench gpu-table --filter dense_768x2304 --precision f16 --points 2048 --config 'wgmma{bm=256 bn=128}'

Everything here is predicted, not measured: no GPU is asked. Each case is compiled for sm_90a, assembled by ptxas and disassembled
by nvdisasm or cuobjdump (of NVIDIA's packages, a CUDA toolkit, or an installed Triton). `gpu_roofline.py` states the arithmetic,
`sass_pipes.py` the rates and their sources, `peer_arithmetic.py` what cuBLAS, FlashAttention-3 and Triton would need.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.compiler.builder.build import build_kernel
from tilewright.compiler.builder.ptxas import PtxasReport, assemble_ptx, disassembly
from tilewright.compiler.cli.output import Output
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.tuning.dispatch_tables import numerics_of
from tilewright.passes.spaces.family_registry import config_text, cost_of, families_of, parse_config
from tilewright.passes.spaces.in_order import default_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Dim
from tilewright.runtime.target import Target
from tilewright.search.space.dense import dense_symbols
from tools.bench import command
from tools.bench.gpu.cases import Case, cases, graph
from tools.bench.gpu.gpu_roofline import Prediction, Subject
from tools.bench.gpu.peer_arithmetic import Peer, bandwidth, cublas, flash_attention
from tools.bench.gpu.sass import Listing, read_listings

ARCH = "sm_90a"
_GROUP = 4 * WARP  # threads of a warpgroup
_SYMBOL = "kernel"
KINDS = ("matmul", "attention", "softmax", "layernorm")
_SLOTS = 0.9  # least share of products of warpgroups in what a step's instructions take of the issue slots and tensor cores


class Kernels:
    """The default kernels of a case, or one in their place; each compiled once."""

    def __init__(self, case: Case, instead: str = "") -> None:
        self.instead = parse_config(instead) if instead else None
        self.case, self.limits, self.target = case, GpuLimits.of(ARCH), Target.parse(f"cuda:{ARCH}")
        options = CompileOptions(precision=case.precision if case.precision == "tf32" else "f32")
        model = outline(Compilation(graph(case), {"T": Dim(case.step, case.largest, case.step)}, self.target, options))
        self.workload: Workload = max(model.workloads, key=lambda w: w.flops.evaluate(dict.fromkeys(w.dims, 64)))
        self.use = model.uses[self.workload.key][0]
        family = families_of(self.workload, self.limits, numerics_of(options))[0]
        self.configs, self.tree = default_of(family, self.workload, self.limits)
        self._built: dict[TileConfig, tuple[MicroKernel, PtxasReport, Listing]] = {}

    def built(self, config: TileConfig) -> tuple[MicroKernel, PtxasReport, Listing]:
        if config not in self._built:
            made = build_kernel(self.workload.ir, "", _SYMBOL, config_text(config), self.target)
            report = assemble_ptx(made.code.decode(), ARCH)
            self._built[config] = made.kernel, report, read_listings(disassembly(report.cubin))[_SYMBOL]
        return self._built[config]

    def chosen(self, dims: Mapping[str, int]) -> TileConfig:
        """What dispatch takes: the last, which has no guards, where those of the tree's choice do not hold."""
        config = self.instead or self.configs[select(self.tree, dims).kernel]
        return config if self.built(config)[0].legal(dense_symbols(self.workload, dims)) else self.configs[-1]

    def at(self, point: int) -> dict[str, Any]:
        """The record of a value of T."""
        dims = {name: extent.evaluate({"T": point}) for name, extent in self.use.items()}
        config = self.chosen(dims)
        kernel, report, listing = self.built(config)
        entry = report.entries[_SYMBOL]
        costs = cost_of(config.family)
        subject = Subject(
            self.workload, costs.kernel_cost(config, self.workload, self.limits), listing, entry.registers,
            {name: extent.evaluate(dims) for name, extent in costs.extents(self.workload).items()}, dims,
            _multiplying(config, kernel), bool(getattr(config, "pingpong", False)), self.limits)
        found = subject.predict()
        us, slots = 1e6 / subject.rates.clock, found.pipes["tensor"] + found.pipes["issue"]
        return {
            "record": "gpu_table", "says": "predicted, not measured", "arch": ARCH, "case": self.case.name,
            "precision": self.case.precision, "T": point, "config": config_text(config), "registers": entry.registers,
            "spills": sum(e.spills for e in report.entries.values()), "fences_in_loop": subject.fences(),
            "products_share": round(found.pipes["tensor"] / slots, 3), "family": config.family,
            "loop": dict(subject.work.counts.most_common()), "loop_found": subject.loop is not None,
            "step": {"shared_bytes": round(subject.pipes()["shared"] * 128), "l2_bytes": round(subject.block.step.bytes),
                     "cycles": {n: round(c, 1) for n, c in found.pipes.items()}, "alone": round(found.alone, 1)},
            "tiles": subject.tiles, "steps": subject.steps, "waves": subject.waves(), "behind_cycles": round(found.behind),
            "predicted_us": round(found.total * us, 2), "bytes_bound_us": round(found.memory * us, 2),
            "share_of_peak": round(found.share_of_peak, 3), "share_of_bound": round(found.share, 3), "bound": found.bound,
            **_beside(self.case, subject, found, us),
        }  # fmt: skip


def _multiplying(config: TileConfig, kernel: MicroKernel) -> int:
    """Threads that run the main loop for a tile: those of the warpgroups that multiply it, else all."""
    readers: int | None = getattr(config, "readers", getattr(config, "consumers", None))
    return kernel.threads if readers is None else readers * _GROUP


def _beside(case: Case, subject: Subject, found: Prediction, us: float) -> dict[str, Any]:
    """What the best peer would need."""
    e = subject.extents
    peer: Peer
    if case.kind == "matmul":
        size = {"f16": 2, "tf32": 4}.get(case.precision)
        if size is None:
            return {}
        peer = cublas(e["rows"], e["columns"], e["depth"], size, subject.limits)
    elif case.kind == "attention":
        peer = flash_attention(case.flops(e["queries"]), int(case.inputs[0][-1]), found.memory * us)
    else:
        peer = bandwidth(found.memory * us)
    return {"peer": peer.name, "peer_us": round(peer.us, 2), "of_peer": round(peer.us / (found.total * us), 2)}


def chosen(pattern: str, precision: str) -> Iterator[Case]:
    """The cases whose name matches, of the kinds that have one kernel to look at."""
    for case in cases():
        if case.kind in KINDS and fnmatch.fnmatch(case.name, pattern) and precision in ("", case.precision):
            yield case


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the records."""
    columns = ("case", "T", "configuration", "loop", "cycles of a step", "bound", "us", "of peak", "of bound", "of peer", "flags")
    listed = [(f"{r['case']} {r['precision']}", r["T"], r["config"], " ".join(f"{n} {c}" for n, c in r["loop"].items()),
               " ".join(f"{n} {c:.0f}" for n, c in r["step"]["cycles"].items() if c >= 1), r["bound"], r["predicted_us"],
               r["share_of_peak"], r["share_of_bound"], r.get("of_peer", ""), flags(r)) for r in rows]
    Output(False).table(f"Predicted for {ARCH}, not measured", columns, listed)


def flags(row: Mapping[str, Any]) -> str:
    """What should stand in no main loop. Instructions beside the products of `wgmma` are to be few; other families compute."""
    named = (("spills", "bytes spilled"), ("fences_in_loop", "fences in the loop"))
    found = [f"{row[key]} {text}" for key, text in named if row[key]]
    if row["family"] == "wgmma" and row["products_share"] < _SLOTS:
        found.append(f"products are {row['products_share']:.2f} of the loop, wanted {_SLOTS}")
    return ", ".join(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("gpu-table", __doc__)
    parser.add_argument("--filter", default="*", help="only cases whose name matches")
    parser.add_argument("--precision", default="", choices=["", "f32", "tf32", "f16"], help="only cases of it")
    parser.add_argument("--points", type=lambda text: {int(x) for x in text.split(",")}, help="only these values of T: 1,16,128")
    parser.add_argument("--json", type=Path, help="append a line per kernel and shape to this file")
    parser.add_argument("--config", default="", help="this configuration in place of the default ones, where its guards hold")
    parser.add_argument("--check", action="store_true", help="fail where something has a flag")
    args = parser.parse_args(argv)
    rows = []
    for case in chosen(args.filter, args.precision):
        kernels = Kernels(case, args.config)
        for point in case.points:
            if args.points is None or point in args.points:
                rows.append(kernels.at(point))
                if args.json:
                    with args.json.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    table(rows)
    return int(args.check and any(map(flags, rows)))
