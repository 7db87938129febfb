"""Products of one row with weights in few bits that stay in the caches, beside the least time of their instructions.

    python -m tools.bench codes-bound [--formats 4g32,p64,...] [--size 2048x512] [--less 2048x256] [--activations f32,int8]
                                      [--json out.jsonl]

Every instruction of a call is counted (instructions.py) and the ports of Intel's server cores tell the cycles that they take at
least; the clock is measured in the same run. So is the time in which a loop of loads reads as many bytes as the weight has, from
the same caches: where that is longer, it is the bound. `share` is the bound over the median time of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import command
from tools.bench.codes import times
from tools.bench.codes_systems import Case, ours
from tools.bench.instructions import clock, counted, reader

_FORMATS = "1g32,2g32,3g32,4g32,5g32,6g32,7g32,8g32,p16,p64,p256,p256x2"


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("codes-bound", __doc__)
    parser.add_argument("--formats", default=_FORMATS)
    parser.add_argument("--size", default="2048x512", help="K x N")
    parser.add_argument("--less", default="", help="K x N of a smaller product, whose count and time are taken off, so that what "
                        "every call costs is left out")
    parser.add_argument("--activations", default="f32,int8", help="f32; int8 for codes, bits of whole numbers for pools")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a product")
    parser.add_argument("--json", type=Path, help="append the records to this file")
    given = parser.parse_args(argv)
    sizes = [tuple(int(e) for e in size.split("x")) for size in (given.size, given.less) if size]
    print(f"{'format':9}{'rows':6}{'instructions':>13}{'cycles':>9} {'limit':20}{'bound us':>9}{'us':>9}{'share':>7}")
    for form in given.formats.split(","):
        for activations in given.activations.split(","):
            found = _measured(form, activations, [(k, n) for k, n in sizes], given.seconds)
            print(f"{form:9}{activations:6}{found['instructions']:>13}{found['cycles']:>9.0f} {found['limit']:20}"
                  f"{found['bound_us']:>9.1f}{found['us']:>9.1f}{found['share']:>7.2f}", flush=True)
            command.append(given.json, [{"format": form, "rows": activations, "size": given.size, "less": given.less, **found}])
    return 0


def _measured(form: str, activations: str, sizes: Sequence[tuple[int, int]], seconds: float) -> dict[str, Any]:
    """Of the first size, less the second where there are two, called in turns."""
    bits = "8" if form.startswith("p") and activations == "int8" else activations
    rng = np.random.default_rng(0)
    calls = [partial(ours(Case.read(form, size, 0), 1, 1, bits), rng.standard_normal((1, size[0]), np.float32)) for size in sizes]
    counts = [counted(call) for call in calls]
    limit = counts[0].bound[0]
    cycles = counts[0].cycles[limit] - sum(c.cycles[limit] for c in counts[1:])
    readers = [reader(Case.read(form, size, 0).bytes) for size in sizes]
    us, reading = (_microseconds(found, seconds) for found in (calls, readers))
    computed = cycles / clock() * 1e6
    bound, limit = max((computed, limit), (reading, "reading"))
    return {"limit": limit, "instructions": counts[0].instructions - sum(c.instructions for c in counts[1:]), "cycles": cycles,
            "computing_us": computed, "reading_us": reading, "bound_us": bound, "us": us, "share": bound / us}


def _microseconds(calls: Sequence[Callable[[], object]], seconds: float) -> float:
    """Of a call of the first, less those of the others, in turns."""
    first, *others = times([lambda _, call=call: call() for call in calls], np.zeros(0, np.float32), seconds)  # type: ignore[misc]
    return (first - sum(others)) * 1e6
