"""A process that loads and calls files which may be forged: python -m tools.forge.victim FOLDER FIRST

Reads FOLDER/calls.npz (inputs and right results of calls) and FOLDER/<number>.tw from FIRST on, and prints one line of JSON for
each: its number and what came of it. A crash leaves the line of the file that it was at without an end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tools.forge.guarded import GuardedMemory

REFUSED, HARMLESS, WRONG, RAW = "refused", "harmless", "wrong", "raw"


def calls_of(path: Path) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Inputs and results of each call; a call without results has to be refused."""
    found: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    with np.load(path) as stored:
        for name in sorted(stored.files):
            number, kind, _ = name.split("_")
            while len(found) <= int(number):
                found.append(([], []))
            found[int(number)][kind == "out"].append(stored[name])
    return found


def outcome(path: Path, calls: list[tuple[list[np.ndarray], list[np.ndarray]]], memory: GuardedMemory) -> tuple[str, str]:
    """What came of a file, and the words about it."""
    try:
        fn = tw.load(path)
        for number, (inputs, results) in enumerate(calls):
            given = [memory.array(a, at_end=number % 2 == 0) for a in inputs]
            out = tuple(memory.array(np.zeros_like(a), at_end=number % 2 == 0) for a in results)
            written: dict[str, Any] = {"out": out[0] if len(out) == 1 else out}
            for options in ({}, written) if results else ({},):
                try:
                    got: Any = fn(*given, **options)
                except tw.errors.TilewrightError:
                    if results:
                        raise
                    continue
                made = got if isinstance(got, tuple) else (got,)
                if len(made) != len(results) or not all(map(_is_equal, made, results)):
                    return WRONG, f"call {number}"
    except tw.errors.TilewrightError as error:
        return REFUSED, f"{type(error).__name__}: {error}"
    except Exception as error:
        return RAW, f"{type(error).__name__}: {error}"
    return HARMLESS, ""


def _is_equal(got: Any, wanted: np.ndarray) -> bool:
    return isinstance(got, np.ndarray) and got.dtype == wanted.dtype and np.array_equal(got, wanted)


def main() -> None:
    folder, first = Path(sys.argv[1]), int(sys.argv[2])
    calls, memory = calls_of(folder / "calls.npz"), GuardedMemory()
    number = first
    while (path := folder / f"{number}.tw").exists():
        print(f'{{"number": {number}, ', end="", flush=True)
        kind, words = outcome(path, calls, memory)
        print(f'"kind": "{kind}", "words": {json.dumps(words[:300])}}}', flush=True)
        number += 1


if __name__ == "__main__":
    main()
