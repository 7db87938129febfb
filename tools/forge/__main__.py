"""Attacks what is stored: forged models with right hashes, mutants with wrong bytes, flipped bits in the cache.

Exits with 1 where one was not stood.

    python -m tools.forge --forgeries 300 --mutants 5000 --flips 200 [--seed 0] [--show KIND]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.forge.attack import Victim, outcomes, victims
from tools.forge.cache_flips import REBUILT, flip_bits
from tools.forge.forgery import Forged, forgeries, mutants


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forgeries", type=int, default=300)
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="append", default=[], help="tell each file with this outcome; repeatable")
    given = parser.parse_args()
    found, bad = victims(), 0
    for name, count, made in (("forgeries", given.forgeries, forgeries), ("mutants", given.mutants, mutants)):
        counts: Counter[str] = Counter()
        for number, victim in enumerate(found):
            share = count // len(found) + (number < count % len(found))
            rng = random.Random(f"{given.seed} {name} {number}")
            counts += _count(victim, made(victim.data, share, rng), given.show)
        bad += sum(n for kind, n in counts.items() if kind not in ("refused", "harmless"))
        print(f"{name}: {_text(counts)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        flips = flip_bits(Path(folder), given.flips, random.Random(f"{given.seed} flips"))
    print(f"flips in the cache: {_text(flips)}", flush=True)
    return int(bad > 0 or flips.total() > flips[REBUILT])


def _count(victim: Victim, forged: Iterator[Forged], shown: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    batch = 200  # files on the disk at a time
    while piece := [one for _, one in zip(range(batch), forged, strict=False)]:
        for outcome in outcomes(victim, piece):
            counts[outcome.kind] += 1
            if outcome.kind in shown:
                print(f"{outcome.kind}: {outcome.forged.what}: {outcome.words}", flush=True)
    return counts


def _text(counts: Counter[str]) -> str:
    return f"{counts.total()}: {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items()))}"


if __name__ == "__main__":
    sys.exit(main())
