"""Products of one row with weights in few bits that stay in the caches, beside the least time of their instructions.

    python -m tools.bench codes-bound [--formats 4g32,p64,...] [--size 2048x512] [--activations f32,int8] [--json out.jsonl]

Every instruction of a call is counted (instructions.py) and the ports of Intel's server cores tell the cycles that they take at
least; the clock is measured in the same run. `share` is that time over the median time of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tools.bench import command
from tools.bench.codes import times
from tools.bench.codes_systems import Case, ours
from tools.bench.instructions import clock, counted

_FORMATS = "1g32,2g32,3g32,4g32,5g32,6g32,7g32,8g32,p16,p64,p256,p256x2"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("codes-bound", __doc__)
    parser.add_argument("--formats", default=_FORMATS)
    parser.add_argument("--size", default="2048x512", help="K x N")
    parser.add_argument("--activations", default="f32,int8", help="f32; int8 for codes, bits of whole numbers for pools")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a product")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    k, n = (int(e) for e in given.size.split("x"))
    x = np.random.default_rng(0).standard_normal((1, k), dtype=np.float32)
    print(f"{'format':9}{'rows':6}{'instructions':>13}{'cycles':>9} {'limit':20}{'bound us':>9}{'us':>9}{'share':>7}")
    for form in given.formats.split(","):
        for activations in given.activations.split(","):
            call = ours(Case.read(form, (k, n), 0), 1, 1, "8" if form.startswith("p") and activations == "int8" else activations)
            count = counted(lambda call=call: call(x))  # type: ignore[misc]
            limit, cycles = count.bound
            (seconds,) = times([call], x, given.seconds)
            bound = cycles / clock()
            print(f"{form:9}{activations:6}{count.instructions:>13}{cycles:>9.0f} {limit:20}{bound * 1e6:>9.1f}"
                  f"{seconds * 1e6:>9.1f}{bound / seconds:>7.2f}", flush=True)
            command.append(given.json, [{"format": form, "rows": activations, "size": given.size, "limit": limit,
                                         "instructions": count.instructions, "cycles": cycles, "bound_us": bound * 1e6,
                                         "us": seconds * 1e6, "share": bound / seconds}])
    return 0
