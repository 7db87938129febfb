"""Soak: processes compile, tune, save, load and call random models for a stated time while faults are made.

    python -m tools.soak --minutes 60 --seed 0 --json out.json
    python -m tools.soak --minutes 5 --actors caller,compiler,tuner,tuner --faults "kill an actor,flip a cache entry"
    python -m tools.soak --replay FOLDER             the cases of a finding again, without faults

Prints counts by class, and every finding with the folder that reproduces it. Exit code 1 when there is any: a wrong result, an
error that is none of Tilewright's, a crash, a hang, something that leaks.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from tilewright.compiler.cli.output import Output
from tools.soak.crew import Role
from tools.soak.driver import Driver, Plan
from tools.soak.faults import FAULTS
from tools.soak.reproduce import replay

ACTORS = MappingProxyType({
    "caller": "tools.soak.calling:Caller",
    "forker": "tools.soak.calling:Forker",
    "pickler": "tools.soak.calling:Pickler",
    "compiler": "tools.soak.files:Compiler",
    "loader": "tools.soak.files:Loader",
    "tuner": "tools.soak.files:Tuner",
})
DEFAULT = "caller,caller,compiler,compiler,loader,tuner,tuner,forker,pickler"


def roles(names: Sequence[str]) -> list[Role]:
    """Seats of these actors; those of one kind are numbered."""
    return [Role(name, ACTORS[name], names[:i].count(name)) for i, name in enumerate(names)]


def _listed(known: Sequence[str]) -> object:
    def parse(text: str) -> list[str]:
        names = [n.strip() for n in text.split(",") if n.strip()]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(known)}")
        return names

    return parse


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of models, shapes, layouts and the schedule of faults")
    parser.add_argument("--json", type=Path, help="write the counts and findings to this file")
    parser.add_argument("--folder", type=Path, help="of the run; default a new one among temporary files")
    parser.add_argument("--actors", type=_listed(list(ACTORS)), default=DEFAULT.split(","), help=f"default {DEFAULT}")  # type: ignore[arg-type]
    parser.add_argument("--faults", type=_listed(list(FAULTS)), default=list(FAULTS), help=f"default {','.join(FAULTS)}")  # type: ignore[arg-type]
    parser.add_argument("--pace", type=float, default=2.0, help="seconds between two faults on average")
    parser.add_argument("--hang", type=float, default=60.0, help="seconds without a word that count as a hang")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="run the cases of a finding again")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    if given.replay is not None:
        wrong = replay(given.replay)
        print("\n".join(wrong) or "right")
        return 1 if wrong else 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"run in {folder}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the end of Driver.run, which ends the actors
    plan = Plan(roles(given.actors), given.minutes * 60, given.seed, folder, given.faults, given.pace, given.hang,
                progress=lambda tally: print(tally.line(), flush=True))
    tally = Driver(plan).run()
    tally.show(Output(False))
    if given.json is not None:
        given.json.write_text(json.dumps({"seed": given.seed, "folder": str(folder), **tally.as_json()}, indent=1) + "\n")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
