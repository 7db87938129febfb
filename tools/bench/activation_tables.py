"""One row by weights of 1 to 4 bits: tables of activations, as T-MAC has them, against what is chosen.

    python -m tools.bench codes-tables [--formats 1g128,2g128,2g32,3g128,4g128,4g32] [--sizes 4096x4096] [--ring 32]
        [--json out.jsonl]

The tables' kernel is activation_tables.c, built by the C compiler `cc`; it wants AVX-512 VBMI and VNNI. Ours rounds its row to
bytes (`activations="int8"`), the tables round sums of four activations to bytes. Both take the row in f32, on one thread, in
turns.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.compiler.ops.codes import planes
from tilewright.runtime.errors import OptionError
from tilewright.runtime.host.host_cpu import cpu_features
from tools.bench import command
from tools.bench.codes import times
from tools.bench.codes_systems import Call, Case, ours

OUTPUTS, BLOCKS, STEP = 16, 4, 32  # of a register of sums; registers; values of k of 64 bytes of codes
_WANTED = ("avx512vbmi", "avx512vnni")
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")


@cache
def library() -> ctypes.CDLL:
    if missing := [f for f in _WANTED if f not in cpu_features()]:
        raise OptionError(f"codes-tables: wanted a CPU with {', '.join(_WANTED)}, this one has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tables.so"
        subprocess.run(["cc", *_FLAGS, str(Path(__file__).with_suffix(".c")), "-o", str(path), "-lm"], check=True)
        return ctypes.CDLL(str(path))


def whole(case: Case, number: int) -> np.ndarray:
    """The codes of a weight of the ring, [n, k]."""
    stored, widths = case.arrays(number)[0], planes(case.bits)
    found = np.zeros((case.n, case.k), np.uint8)
    for i, (codes, bits) in enumerate(zip(stored, widths, strict=True)):
        part = np.stack([(codes >> s) & ((1 << bits) - 1) for s in range(0, 8, bits)], -1).reshape(case.n, -1)
        found |= part << sum(widths[:i])
    return found


def laid_out(case: Case, codes: np.ndarray) -> np.ndarray:
    """[n / 64][k / group][bits][group / 32][4][64]: a byte has, of an output, a bit of four values of k in its low half, and of
    those 16 further on in its high half; four bytes in a row are one output's."""
    parts = codes.reshape(-1, BLOCKS, OUTPUTS, case.k // case.group, case.group // STEP, 2, 4, 4)
    bits = (parts[..., None] >> np.arange(case.bits)) & 1
    nibbles = (bits << np.arange(4)[:, None]).sum(-2).astype(np.uint8)  # [n64, block, out, group, step, half, four, bit]
    joined = nibbles[..., 0, :, :] | nibbles[..., 1, :, :] << 4
    return np.ascontiguousarray(joined.transpose(0, 3, 6, 4, 1, 2, 5))


def by_tables(case: Case) -> Call:
    """All products of the ring; [weights][n]."""
    kernel, kept, y = library().product, [], np.empty((case.weights, case.n), np.float32)
    room = np.zeros(4 * case.k + 8 * case.k // case.group + 64, np.uint8)
    for number in range(case.weights):
        scale = case.arrays(number)[1].astype(np.float32)
        kept.append((laid_out(case, whole(case, number)),
                     np.ascontiguousarray(scale.reshape(-1, BLOCKS * OUTPUTS, case.k // case.group).transpose(0, 2, 1))))
    sizes = [ctypes.c_long(v) for v in (case.n, case.k, case.group, case.bits)]

    def call(x: np.ndarray) -> np.ndarray:
        for (codes, scales), out in zip(kept, y, strict=True):
            kernel(*(ctypes.c_void_p(a.ctypes.data) for a in (x, codes, scales, out)), *sizes, ctypes.c_void_p(room.ctypes.data))
        return y

    return call


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("codes-tables", __doc__)
    parser.add_argument("--formats", default="1g128,2g128,2g32,3g128,4g128,4g32")
    parser.add_argument("--sizes", default="2048x2048,4096x4096")
    parser.add_argument("--ring", type=int, default=32, help="MiB of weights")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a size and format")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    for size in given.sizes.split(","):
        k, n = (int(e) for e in size.split("x"))
        x = np.random.default_rng(0).standard_normal((1, k), dtype=np.float32)
        for form in given.formats.split(","):
            case = Case.read(form, (k, n), given.ring)
            chosen, tables = times([ours(case, 1, 1, "int8"), by_tables(case)], x, given.seconds)
            us = [t / case.weights * 1e6 for t in (chosen, tables)]
            print(f"{size:11}{form:7} chosen {us[0]:8.1f} us, tables {us[1]:8.1f}, tables over chosen {us[1] / us[0]:.2f}",
                  flush=True)
            command.append(given.json, [{"size": size, "format": form, "ring": case.weights, "chosen": us[0], "tables": us[1]}])
    return 0
